//! Named clients: the list, and orders about one of them.

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
    /// Volume below which it has rights; empty: everywhere.
    pub path: String,
    /// Its rights, with commas.
    pub rights: String,
    /// When it was added, ms since 1970.
    pub made_ms: u64,
}

/// Reply to `AddClient` and `RenewClient`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientCertificate {
    /// Name of the client.
    pub name: String,
    /// PEM.
    pub certificate: String,
}

/// Reply to `RemoveClient`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemovedClient {
    /// Its name.
    pub removed: String,
    /// Minutes after which its last permit has ended.
    pub minutes: u64,
}
