//! Clients that may do only what they were granted.
//!
//! Paper: beanfs §3.4.1 (access is controlled at the master)

use crate::{
    master::{Master, Mastered},
    meta::ClientRow,
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
    /// The database failed.
    pub fn add_client(&self, client: &ClientRow) -> Mastered<bool> {
        let mut reign = self.reign.lock();
        let is_added = reign.meta.add_client(client)?;
        if is_added {
            let text = format!("client {} was let in below /{}", client.name, client.path);
            reign.meta.note(client.made_ms, "client", &text)?;
        }
        Ok(is_added)
    }

    /// Takes one away; false: there is none of that name. What it was permitted ends within ten minutes.
    /// # Errors
    /// The database failed.
    pub fn remove_client(&self, name: &str, now_ms: u64) -> Mastered<bool> {
        let mut reign = self.reign.lock();
        let is_removed = reign.meta.remove_client(name)?;
        if is_removed {
            let text = format!("client {name} was taken away");
            reign.meta.note(now_ms, "client", &text)?;
        }
        Ok(is_removed)
    }
}
