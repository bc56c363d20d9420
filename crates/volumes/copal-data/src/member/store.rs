//! The store of a disk's groups: opening, handing operations in, closing.

use super::{
    line::Queued,
    member_clock::MemberClock,
    operation::{NotHeld, Operation, Reply},
    room::DiskRoom,
    rows::{MemberCore, MemberSpaces},
    uploads::Uploads,
    work::Work,
};
use crate::{error::of_engine, spaces::Spaces};
use copal_kv::{KeyspaceOptions, Store};
use copal_volume::{
    Clock, ReferenceClock, VolumeError,
    group::{Epoch, GroupId},
};
use parking_lot::Mutex;
use std::sync::Arc;

/// With less room than this a disk is full: next to nothing fits.
const LEAST_ROOM_BYTES: u64 = 64 << 10;

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
        let own =
            MemberSpaces { tombs: rows("tombs")?, journal: rows("journal")?, siblings: rows("siblings")? };
        let spaces = Spaces::of_member(&kv)?;
        let core = MemberCore {
            uploads: Mutex::new(Uploads::load(&spaces)),
            recent: Mutex::default(),
            spaces,
            own,
            kv,
            clock: MemberClock::new(clock),
            queues: Mutex::default(),
            used: Mutex::default(),
            digests: Mutex::default(),
            heard: Mutex::default(),
            room: DiskRoom::default(),
            stopped: Mutex::default(),
        };
        Ok(MemberStore { core: Arc::new(core) })
    }

    /// The engine below, for its counters.
    pub fn kv(&self) -> &Store {
        &self.core.kv
    }

    /// Hands an operation in; `tell` learns what became of it, on the thread that serves the group. Where
    /// nobody serves the group, the caller does: the work it gets is to be run on a thread that may block.
    /// # Errors
    /// `Corrupt`, `Failed`: nothing was handed in.
    pub fn submit(
        &self,
        group: GroupId,
        epoch: Epoch,
        operation: Operation,
        tell: impl FnOnce(Reply) + Send + 'static,
    ) -> Result<Option<Work>, VolumeError> {
        self.submit_while(group, epoch, operation, || true, tell)
    }

    /// As [`MemberStore::submit`], for an operation that is not begun when its turn comes and nobody wants it
    /// any more.
    /// # Errors
    /// As [`MemberStore::submit`].
    pub fn submit_while(
        &self,
        group: GroupId,
        epoch: Epoch,
        operation: Operation,
        is_wanted: impl Fn() -> bool + Send + 'static,
        tell: impl FnOnce(Reply) + Send + 'static,
    ) -> Result<Option<Work>, VolumeError> {
        let may_run = move || match is_wanted() {
            true => Ok(()),
            false => Err(NotHeld::Unwanted),
        };
        self.submit_if(group, epoch, operation, may_run, tell)
    }

    /// As [`MemberStore::submit`], for an operation that `may_run` can refuse when its turn has come: it is
    /// asked while no other operation of the group is under way.
    /// # Errors
    /// As [`MemberStore::submit`].
    pub fn submit_if(
        &self,
        group: GroupId,
        epoch: Epoch,
        operation: Operation,
        may_run: impl Fn() -> Result<(), NotHeld> + Send + 'static,
        tell: impl FnOnce(Reply) + Send + 'static,
    ) -> Result<Option<Work>, VolumeError> {
        let queue = self.core.queue(group)?;
        let queued = Queued { epoch, operation, may_run: Box::new(may_run), tell: Box::new(tell) };
        let core = Arc::clone(&self.core);
        let serves = queue.push(queued);
        // Made only for who is to serve: dropping one abandons the queue.
        Ok(serves.then(|| Work { core, group, queue, is_done: false }))
    }

    /// As [`MemberStore::submit`], and waits.
    /// # Errors
    /// As [`MemberStore::submit`].
    pub fn apply(&self, group: GroupId, epoch: Epoch, operation: Operation) -> Result<Reply, VolumeError> {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        let work = self.submit(group, epoch, operation, move |reply| {
            // The receiver waits below.
            let _ = tell.send(reply);
        })?;
        if let Some(work) = work {
            work.run();
        }
        told.recv().map_err(|_| VolumeError::Failed {
            reason: "the thread that served the group ended by a panic".to_owned(),
        })
    }

    /// Closes the engine; everything acknowledged is durable already.
    /// # Errors
    /// `Failed`.
    pub fn close(&self) -> Result<(), VolumeError> {
        self.core.kv.close().map_err(|error| of_engine(&error))
    }

    /// Goes by the reference of a cluster from here on, as soon as that is told.
    pub fn go_by(&self, reference: Arc<dyn ReferenceClock>) {
        self.core.clock.go_by(reference);
    }

    /// What this machine's own clock shows, ms since 1970.
    pub fn own_clock_ms(&self) -> u64 {
        self.core.clock.own_ms()
    }

    /// From now on `bytes` says how many bytes of the disk are used, and how many there are; asked for each
    /// batch of creates.
    pub fn watch_room(&self, bytes: impl Fn() -> (u64, u64) + Send + Sync + 'static) {
        self.core.room.watch(bytes);
    }

    /// Whether the disk takes no creates of clients, nor pieces of them; deletes go on, unless its host is
    /// full ([`MemberStore::is_host_full`]). It was so lately, or is so now.
    pub fn is_full(&self) -> bool {
        self.core.kv.is_full() || self.room_bytes() < LEAST_ROOM_BYTES
    }

    /// Whether the host ran full inside a write: the disk takes no more operations, and has not failed. With
    /// space on the host it goes on once it is opened again.
    pub fn is_host_full(&self) -> bool {
        let stopped = self.core.stopped.lock();
        stopped.as_ref().is_some_and(|stop| stop.is_host_full)
    }

    /// Bytes that new files may still take, about.
    pub fn room_bytes(&self) -> u64 {
        if self.is_host_full() {
            return 0;
        }
        let below_mark = self.core.room.below_mark();
        self.core.kv.room_bytes().map_or(below_mark, |bytes| bytes.min(below_mark))
    }

    /// Why the disk failed, and takes no more writes; `None`: it has not. A full host is no failure.
    pub fn failure(&self) -> Option<String> {
        let stopped = self.core.stopped.lock();
        let failed = stopped.as_ref().filter(|stop| !stop.is_host_full);
        failed.map(|stop| stop.reason.clone())
    }
}
