//! What all of a member store's parts share: the rows, the queues of its groups, why nothing more is written.

use super::{
    digests::Digests, line::GroupQueue, member_clock::MemberClock, recent_files::RecentFiles, uploads::Uploads,
};
use crate::{format::MemberIdentity, spaces::Spaces};
use copal_kv::{Keyspace, Store};
use copal_volume::{VolumeError, VolumeId, group::GroupId};
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool},
};

/// Keyspaces that only a member of a replicated group has.
#[derive(Clone)]
pub(super) struct MemberSpaces {
    /// gid fid -> a deleted file.
    pub(super) tombs: Keyspace,
    /// gid bucket op -> an accepted operation.
    pub(super) journal: Keyspace,
    /// gid vid name fid -> head of a file beside another of its name.
    pub(super) siblings: Keyspace,
}

/// See the module.
pub(super) struct MemberCore {
    pub(super) kv: Store,
    pub(super) spaces: Spaces,
    pub(super) own: MemberSpaces,
    pub(super) clock: MemberClock,
    pub(super) queues: Mutex<HashMap<GroupId, Arc<GroupQueue>>>,
    /// Bytes of live files in volumes that have a quota and were written to.
    pub(super) used: Mutex<HashMap<VolumeId, u64>>,
    /// Uploads whose file is not there yet.
    pub(super) uploads: Mutex<Uploads>,
    /// Ids of files that were created lately.
    pub(super) recent: Mutex<RecentFiles>,
    /// Digests of what is closed.
    pub(super) digests: Mutex<Digests>,
    /// What is known of the disk's owner and the newest master, once it was asked for.
    pub(super) heard: Mutex<Option<MemberIdentity>>,
    /// The disk takes no creates: what is left is for deletes and what they cost.
    pub(super) is_full: AtomicBool,
    /// Why nothing more is written.
    pub(super) failed: Mutex<Option<String>>,
}

impl MemberCore {
    pub(super) fn writable(&self) -> Result<(), VolumeError> {
        match &*self.failed.lock() {
            None => Ok(()),
            Some(reason) => Err(VolumeError::Failed {
                reason: reason.clone(),
            }),
        }
    }

    /// Takes no more writes from here on.
    pub(super) fn fail(&self, error: &copal_kv::Error) -> String {
        tracing::error!(%error, "a write failed; the disk takes no more operations");
        let reason = error.to_string();
        self.failed.lock().get_or_insert_with(|| reason.clone());
        reason
    }
}
