//! Clients with restricted rights, and the names of removed clients.
//!
//! Paper: beanfs §3.4.1 (access is controlled at the master)
//! Invariant: a name is given once. A certificate holds the name alone, so a second client of that name would
//! make the certificate of the removed one valid again.

use crate::{
    error::{MasterError, MasterResult},
    tables::meta_store::{ClientRow, MetaStore, setting},
};
use std::collections::BTreeMap;

/// Longer than the validity of a permit.
const REVOKED_FOR_MS: u64 = 15 * 60_000;

/// Clients that were removed lately: names, and the times of their removal.
pub(crate) struct RemovedClients {
    names: Vec<(String, u64)>,
}

impl RemovedClients {
    /// Reads the removed clients from the settings of the cluster.
    pub(crate) fn of_settings(settings: &BTreeMap<String, String>) -> RemovedClients {
        let prefix = setting::removed_client("");
        let removed = settings.iter().filter_map(|(key, at_ms)| {
            let name = key.strip_prefix(&prefix)?;
            Some((name.to_owned(), at_ms.parse().ok()?))
        });
        RemovedClients { names: removed.collect() }
    }

    /// Names of clients that may still have a valid permit; forgets the others.
    pub(crate) fn with_permits(&mut self, now_ms: u64) -> Vec<String> {
        self.names.retain(|(_, at_ms)| at_ms.abs_diff(now_ms) < REVOKED_FOR_MS);
        self.names.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Removes a client and reserves its name; false: no client has that name.
    pub(crate) fn remove_client(
        &mut self,
        tables: &mut dyn MetaStore,
        name: &str,
        now_ms: u64,
    ) -> MasterResult<bool> {
        let mut known = tables.clients()?.into_iter();
        if known.any(|client| client.name == name) {
            // First: before this record, another client could get the name.
            tables.set_setting(&setting::removed_client(name), Some(&now_ms.to_string()))?;
            self.names.push((name.to_owned(), now_ms));
        }
        let is_removed = tables.remove_client(name)?;
        if is_removed {
            let text = format!("client {name} was removed");
            tables.add_event(now_ms, "client", &text)?;
        }
        Ok(is_removed)
    }
}

/// Adds a client; false: a client has that name.
pub(crate) fn add_client(tables: &mut dyn MetaStore, client: &ClientRow) -> MasterResult<bool> {
    let name = &client.name;
    if tables.settings()?.contains_key(&setting::removed_client(name)) {
        let reason =
            format!("a client {name} was removed, and its key would be valid again: choose another name");
        return Err(MasterError::Denied(reason));
    }
    let is_added = tables.add_client(client)?;
    if is_added {
        let text = format!("client {} was added with rights below /{}", client.name, client.path);
        tables.add_event(client.made_ms, "client", &text)?;
    }
    Ok(is_added)
}
