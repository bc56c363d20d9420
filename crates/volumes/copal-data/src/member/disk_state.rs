//! Shared state of a member store: keyspaces, queues of its groups, and the reason that writing stopped.

use super::{
    digest_cache::DigestCache, disk_space::DiskSpace, group_queue::GroupQueues, member_clock::MemberClock,
    recent_files::RecentFiles, uploads::UploadTable, volume_usage::VolumeUsage,
};
use crate::{
    error::{WriteFence, of_engine, refused_cleanly},
    format::MemberIdentity,
    keyspaces::DataKeyspaces,
};
use copal_kv::{Batch, Durability, Keyspace, Store};
use copal_volume::VolumeError;
use parking_lot::Mutex;

/// With fewer free bytes a disk counts as full.
const LEAST_FREE_BYTES: u64 = 64 << 10;

/// Keyspaces that exist only on a member of a replicated group.
#[derive(Clone)]
pub(super) struct MemberSpaces {
    /// gid fid -> tombstone.
    pub(super) tombstones: Keyspace,
    /// gid bucket op -> accepted operation.
    pub(super) journal: Keyspace,
    /// gid vid name fid -> head of a file beside another one of its name.
    pub(super) siblings: Keyspace,
}

/// Shared state; see the module.
pub(super) struct MemberCore {
    pub(super) kv: Store,
    pub(super) spaces: DataKeyspaces,
    pub(super) own: MemberSpaces,
    pub(super) clock: MemberClock,
    pub(super) queues: GroupQueues,
    pub(super) usage: VolumeUsage,
    /// Uploads without a file yet.
    pub(super) uploads: Mutex<UploadTable>,
    /// Ids of recently created files.
    pub(super) recent: Mutex<RecentFiles>,
    /// Digests of sealed buckets.
    pub(super) digests: Mutex<DigestCache>,
    /// Cached row of the disk's identity.
    pub(super) identity: Mutex<Option<MemberIdentity>>,
    /// Capacity and usage of the disk.
    pub(super) room: DiskSpace,
    pub(super) fence: WriteFence,
}

impl MemberCore {
    /// See `MemberStore::is_full`.
    pub(super) fn is_full(&self) -> bool {
        self.kv.is_full() || self.free_bytes() < LEAST_FREE_BYTES
    }

    /// See `MemberStore::room_bytes`.
    pub(super) fn free_bytes(&self) -> u64 {
        if self.fence.is_host_full() {
            return 0;
        }
        let below_mark = self.room.below_mark();
        self.kv.room_bytes().map_or(below_mark, |bytes| bytes.min(below_mark))
    }

    /// Whether `bytes` of new files fit below the mark. If not, the engine frees deleted data at once.
    pub(super) fn has_room_for(&self, bytes: u64) -> bool {
        let has_room = self.room.below_mark() > bytes;
        if !has_room {
            self.kv.make_room();
        }
        has_room
    }

    /// Commits rows that a full disk needs to open, to seal, or to become emptier. They may use its reserve.
    /// # Errors
    /// `NoSpace`, or another clean refusal: nothing was written. `Failed`.
    pub(super) fn commit_essential(
        &self,
        mut batch: Batch,
        durability: Durability,
    ) -> Result<(), VolumeError> {
        self.fence.check()?;
        batch.essential();
        self.outcome(batch.commit(durability))
    }

    /// Evaluates a commit. A refusal for lack of space or memory has changed nothing. Any other failure stops
    /// all writing, because the written rows are unknown.
    pub(super) fn outcome(&self, committed: Result<(), copal_kv::Error>) -> Result<(), VolumeError> {
        match committed {
            Ok(()) => Ok(()),
            Err(error) if refused_cleanly(&error) => Err(of_engine(&error)),
            Err(error) => Err(VolumeError::Failed { reason: self.fail(&error) }),
        }
    }

    /// Stops all later writes. The outcome of the failed one is unknown, even if the host is full.
    fn fail(&self, error: &copal_kv::Error) -> String {
        tracing::error!(%error, "a write failed; the disk accepts no more operations");
        self.fence.stop(error)
    }
}
