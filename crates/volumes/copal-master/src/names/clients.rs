//! Clients that may do only what they were granted.
//!
//! Paper: beanfs §3.4.1 (access is controlled at the master)
//! Invariant: a name is given once. Nothing but the name stands in a certificate, so that of a client which
//! was taken away would be good again for whoever is called the same.

use crate::master::{Master, MasterError, Mastered};
use crate::tables::meta_store::{ClientRow, setting};

/// Longer than a permit is good.
const REVOKED_FOR_MS: u64 = 15 * 60_000;

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
        if reign.meta.settings()?.contains_key(&setting::removed_client(name)) {
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

    /// Those that were taken away so lately that a permit of theirs may not have ended yet.
    pub fn removed_clients(&self, now_ms: u64) -> Vec<String> {
        let mut reign = self.reign.lock();
        reign.removed_clients.retain(|(_, at_ms)| at_ms.abs_diff(now_ms) < REVOKED_FOR_MS);
        reign.removed_clients.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Takes one away, and its name for good; false: there is none of that name. What it was permitted ends
    /// within ten minutes.
    /// # Errors
    /// The database failed.
    pub fn remove_client(&self, name: &str, now_ms: u64) -> Mastered<bool> {
        let mut reign = self.reign.lock();
        let mut known = reign.meta.clients()?.into_iter();
        if known.any(|client| client.name == name) {
            // First: a name that is free again before this is written would be given to somebody else.
            reign.meta.set(&setting::removed_client(name), Some(&now_ms.to_string()))?;
            reign.removed_clients.push((name.to_owned(), now_ms));
        }
        let is_removed = reign.meta.remove_client(name)?;
        if is_removed {
            let text = format!("client {name} was taken away");
            reign.meta.note(now_ms, "client", &text)?;
        }
        Ok(is_removed)
    }
}
