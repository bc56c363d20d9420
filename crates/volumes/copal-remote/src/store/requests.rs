//! The client with the rules of its requests.

use crate::{client::RemoteClient, retry::RetryRules};

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(super) struct RequestRules {
    pub(super) service: RemoteClient,
    pub(super) rules: RetryRules,
    /// Most requests at the same time.
    pub(super) connections: usize,
}
