//! Store of a disk's groups: opening, submission of operations, space, closing.

mod files;
mod groups;

use super::{
    disk_space::DiskSpace,
    disk_state::{MemberCore, MemberSpaces},
    group_queue::{GroupQueues, QueuedOperation},
    member_clock::MemberClock,
    operation::{GroupOperation, OperationError, OperationResult},
    queue_worker::QueueWorker,
    roles,
    uploads::UploadTable,
    volume_usage::VolumeUsage,
};
use crate::{
    error::{WriteFence, of_engine},
    keyspaces::DataKeyspaces,
};
use copal_kv::{KeyspaceOptions, Store};
use copal_volume::{
    Clock, ReferenceClock, VolumeError,
    group::{Epoch, GroupId},
};
use parking_lot::Mutex;
use std::sync::Arc;

/// The groups of one disk. Cheap to clone; calls block on the device.
#[derive(Clone)]
pub struct MemberStore {
    pub(super) core: Arc<MemberCore>,
}

impl MemberStore {
    /// Opens the rows of a disk's groups in `kv`. Blocks on the device.
    /// # Errors
    /// `Corrupt`, `Failed`.
    pub fn open(kv: Store, clock: Arc<dyn Clock>) -> Result<MemberStore, VolumeError> {
        let rows = |name: &str| {
            let options = KeyspaceOptions {
                group_prefix_len: 0,
                separate_from_bytes: u32::MAX,
                direct_from_bytes: u32::MAX,
                ..KeyspaceOptions::default()
            };
            kv.keyspace(name, options).map_err(|error| of_engine(&error))
        };
        let own = MemberSpaces {
            tombstones: rows("tombs")?,
            journal: rows("journal")?,
            siblings: rows("siblings")?,
        };
        let spaces = DataKeyspaces::of_member(&kv)?;
        let core = MemberCore {
            uploads: Mutex::new(UploadTable::load(&spaces)),
            recent: Mutex::default(),
            spaces,
            own,
            kv,
            clock: MemberClock::new(clock),
            queues: GroupQueues::default(),
            usage: VolumeUsage::default(),
            digests: Mutex::default(),
            identity: Mutex::default(),
            room: DiskSpace::default(),
            fence: WriteFence::default(),
        };
        Ok(MemberStore { core: Arc::new(core) })
    }

    /// The engine below, for its counters.
    pub fn kv(&self) -> &Store {
        &self.core.kv
    }

    /// Submits an operation. `on_result` gets the result, on the worker's thread. If the queue has no worker, the
    /// caller gets one and must run it on a thread that may block.
    /// # Errors
    /// `Corrupt`, `Failed`: nothing was submitted.
    pub fn submit(
        &self,
        group: GroupId,
        epoch: Epoch,
        operation: GroupOperation,
        on_result: impl FnOnce(OperationResult) + Send + 'static,
    ) -> Result<Option<QueueWorker>, VolumeError> {
        self.submit_while(group, epoch, operation, || true, on_result)
    }

    /// As [`MemberStore::submit`]; the operation is not started if `is_wanted` is false at its turn.
    /// # Errors
    /// As [`MemberStore::submit`].
    pub fn submit_while(
        &self,
        group: GroupId,
        epoch: Epoch,
        operation: GroupOperation,
        is_wanted: impl Fn() -> bool + Send + 'static,
        on_result: impl FnOnce(OperationResult) + Send + 'static,
    ) -> Result<Option<QueueWorker>, VolumeError> {
        let may_run = move || match is_wanted() {
            true => Ok(()),
            false => Err(OperationError::Cancelled),
        };
        self.submit_if(group, epoch, operation, may_run, on_result)
    }

    /// As [`MemberStore::submit`]; `may_run` can refuse the operation at its turn, while no other operation
    /// of the group is under way.
    /// # Errors
    /// As [`MemberStore::submit`].
    pub fn submit_if(
        &self,
        group: GroupId,
        epoch: Epoch,
        operation: GroupOperation,
        may_run: impl Fn() -> Result<(), OperationError> + Send + 'static,
        on_result: impl FnOnce(OperationResult) + Send + 'static,
    ) -> Result<Option<QueueWorker>, VolumeError> {
        let queue = roles::queue(&self.core, group)?;
        let queued =
            QueuedOperation { epoch, operation, may_run: Box::new(may_run), on_result: Box::new(on_result) };
        let core = Arc::clone(&self.core);
        let serves = queue.push(queued);
        // Created only if it will run: dropping a worker abandons the queue.
        Ok(serves.then(|| QueueWorker { core, group, queue, is_done: false }))
    }

    /// As [`MemberStore::submit`], and waits for the result.
    /// # Errors
    /// As [`MemberStore::submit`].
    pub fn apply(
        &self,
        group: GroupId,
        epoch: Epoch,
        operation: GroupOperation,
    ) -> Result<OperationResult, VolumeError> {
        let (sender, result) = std::sync::mpsc::sync_channel(1);
        let work = self.submit(group, epoch, operation, move |reply| {
            // The receiver waits below.
            let _ = sender.send(reply);
        })?;
        if let Some(work) = work {
            work.run();
        }
        result.recv().map_err(|_| VolumeError::Failed {
            reason: "the thread of the group's worker panicked".to_owned(),
        })
    }

    /// Closes the engine; acknowledged operations are durable already.
    /// # Errors
    /// `Failed`.
    pub fn close(&self) -> Result<(), VolumeError> {
        self.core.kv.close().map_err(|error| of_engine(&error))
    }

    /// Follows the reference of a cluster as soon as it is known.
    pub fn follow_reference(&self, reference: Arc<dyn ReferenceClock>) {
        self.core.clock.follow_reference(reference);
    }

    /// Current time of the machine's own clock, ms since 1970.
    pub fn own_clock_ms(&self) -> u64 {
        self.core.clock.own_ms()
    }

    /// Sets the source of the disk's used bytes and capacity; it is read for each batch of creates.
    pub fn watch_room(&self, bytes: impl Fn() -> (u64, u64) + Send + Sync + 'static) {
        self.core.room.watch(bytes);
    }

    /// Whether the disk accepts no creates or pieces from clients, now or a moment ago. Deletes are accepted
    /// unless the host is full ([`MemberStore::is_host_full`]).
    pub fn is_full(&self) -> bool {
        self.core.is_full()
    }

    /// Whether the host had no space left during a write. The disk accepts no more operations, but has not
    /// failed: with space on the host it continues after a reopening.
    pub fn is_host_full(&self) -> bool {
        self.core.fence.is_host_full()
    }

    /// Approximate bytes that new files may still take.
    pub fn room_bytes(&self) -> u64 {
        self.core.free_bytes()
    }

    /// Failure after which the disk accepts no writes; `None`: it has not failed. A full host is no failure.
    pub fn failure(&self) -> Option<String> {
        self.core.fence.failure()
    }
}
