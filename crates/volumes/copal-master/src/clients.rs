//! Clients that may do only what they were granted.
//!
//! Paper: beanfs §3.4.1 (access is controlled at the master)
//! Invariant: a name is given once. Nothing but the name stands in a certificate, so that of a client which was taken away would
//! be good again for whoever is called the same.

use crate::{
    master::{Master, MasterError, Mastered},
    meta::{ClientRow, setting},
};

impl Master {
    /// All of them, by name.
    /// # Errors
    /// The database failed.
    pub fn clients(&self) -> Mastered<Vec<ClientRow>> {
        Ok(self.reign.lock().meta.clients()?)
    }

    /// Adds one; false: there is one of that name.
    /// # Errors
    /// `Denied`: there was one of that name. The database failed.
    pub fn add_client(&self, client: &ClientRow) -> Mastered<bool> {
        let mut reign = self.reign.lock();
        let name = &client.name;
        if reign
            .meta
            .settings()?
            .contains_key(&setting::removed_client(name))
        {
            let reason = format!(
                "a client {name} was taken away, and its key would be good again: choose another name"
            );
            return Err(MasterError::Denied(reason));
        }
        let is_added = reign.meta.add_client(client)?;
        if is_added {
            let text = format!("client {} was let in below /{}", client.name, client.path);
            reign.meta.note(client.made_ms, "client", &text)?;
        }
        Ok(is_added)
    }

    /// Takes one away, and its name for good; false: there is none of that name. What it was permitted ends within ten minutes.
    /// # Errors
    /// The database failed.
    pub fn remove_client(&self, name: &str, now_ms: u64) -> Mastered<bool> {
        let mut reign = self.reign.lock();
        let mut known = reign.meta.clients()?.into_iter();
        if known.any(|client| client.name == name) {
            // First: a name that is free again before this is written would be given to somebody else.
            reign.meta.set(&setting::removed_client(name), Some("1"))?;
        }
        let is_removed = reign.meta.remove_client(name)?;
        if is_removed {
            let text = format!("client {name} was taken away");
            reign.meta.note(now_ms, "client", &text)?;
        }
        Ok(is_removed)
    }
}
