//! What all of a member store's parts share: the rows, the queues of its groups, why nothing more is written.

use super::{
    digests::Digests, line::GroupQueue, member_clock::MemberClock, recent_files::RecentFiles, room::DiskRoom,
    uploads::Uploads,
};
use crate::{
    error::{Stop, of_engine, refused_cleanly},
    format::MemberIdentity,
    spaces::Spaces,
};
use copal_kv::{Batch, Durability, Keyspace, Store};
use copal_volume::{VolumeError, VolumeId, group::GroupId};
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc};

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
    /// What the disk has, and what of it is used.
    pub(super) room: DiskRoom,
    /// Why nothing more is written.
    pub(super) stopped: Mutex<Option<Stop>>,
}

impl MemberCore {
    /// Whether so many bytes of new files are below the mark; where they are not, what is dead is freed at
    /// once.
    pub(super) fn has_room_for(&self, bytes: u64) -> bool {
        let has_room = self.room.below_mark() > bytes;
        if !has_room {
            self.kv.make_room();
        }
        has_room
    }

    pub(super) fn writable(&self) -> Result<(), VolumeError> {
        self.stopped.lock().as_ref().map_or(Ok(()), |stop| Err(stop.refusal()))
    }

    /// Commits rows without which the disk could not be opened, closed or emptied: they may use what a full
    /// disk keeps back.
    /// # Errors
    /// `NoSpace`, and another clean refusal: nothing was written. `Failed`.
    pub(super) fn commit_essential(
        &self,
        mut batch: Batch,
        durability: Durability,
    ) -> Result<(), VolumeError> {
        self.writable()?;
        batch.essential();
        self.outcome(batch.commit(durability))
    }

    /// What became of a commit. A refusal, for lack of space or memory, left everything as it was; anything
    /// else ends all writing, for nobody knows what was written.
    pub(super) fn outcome(&self, committed: Result<(), copal_kv::Error>) -> Result<(), VolumeError> {
        match committed {
            Ok(()) => Ok(()),
            Err(error) if refused_cleanly(&error) => Err(of_engine(&error)),
            Err(error) => Err(VolumeError::Failed { reason: self.fail(&error) }),
        }
    }

    /// Takes no more writes from here on. Whether this one happened is unknown, also where the host is full.
    fn fail(&self, error: &copal_kv::Error) -> String {
        tracing::error!(%error, "a write failed; the disk takes no more operations");
        let stop = Stop::by(error);
        let reason = stop.reason.clone();
        self.stopped.lock().get_or_insert(stop);
        reason
    }
}
