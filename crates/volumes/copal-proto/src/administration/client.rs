//! Named clients: the list, and changes of one client.

use serde::{Deserialize, Serialize};

/// Reply to `ListClients`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientList {
    /// All named clients.
    pub clients: Vec<ClientRights>,
}

/// A named client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientRights {
    /// Its name.
    pub name: String,
    /// Path below which it has rights; empty: the whole cluster.
    pub path: String,
    /// Its rights, separated by commas.
    pub rights: String,
    /// When it was added, ms since 1970.
    pub made_ms: u64,
}

/// Reply to `AddClient` and `RenewClient`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientCertificate {
    /// Name of the client.
    pub name: String,
    /// Its certificate, PEM.
    pub certificate: String,
}

/// Reply to `RemoveClient`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedClient {
    /// Its name.
    pub removed: String,
    /// Minutes until its last permit has expired.
    pub minutes: u64,
}
