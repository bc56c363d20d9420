//! What the master remembers of a server, and no database needs to know.

use copal_volume::group::{Epoch, GroupId, Role};
use std::collections::BTreeMap;

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    /// When it was heard last, ms of the master's own clock; 0: not in this reign.
    pub(crate) heard_ms: u64,
    pub(crate) pid: u32,
    pub(crate) used_bytes: u64,
    /// States of its groups, as it tells them itself.
    pub(crate) roles: BTreeMap<GroupId, (Epoch, Role)>,
}
