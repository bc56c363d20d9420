//! What one open store knows, behind one mutex; and the handle that owns it.
//!
//! Invariants
//! - The mutex is never held across a device call. What must be submitted or delivered is put on `outbox` and
//!   `deliveries`; `engine::pump` takes it from there with the mutex released.
//!
//! Not here: the steps (`engine`), planning a transaction (`commit`).

pub(crate) mod checkpointer;
pub(crate) mod clean_mark;
pub(crate) mod entropy;
pub(crate) mod epoch;
pub(crate) mod group;
pub(crate) mod journal;
pub(crate) mod owners;
pub(crate) mod pending_frames;
pub(crate) mod tail;

use crate::{
    Lsn, StoreError,
    backend::hostfs::HostFiles,
    flaw::{Broken, Flaw},
    format::{ops::RecordOp, run::Run},
    space::{SpaceMap, recent::RecentPages},
    state::{
        checkpointer::Checkpointer, clean_mark::CleanMark, entropy::Entropy, epoch::Epochs, group::Groups,
        journal::Journal, owners::Owners, pending_frames::FrameState, tail::Tail,
    },
    tables::{Effect, Tables, snapshot},
};
use copal_device::{
    AlignedBuf, Class, Completer, Completion, Device, DeviceError, Drive, Geometry, Io, IoKind,
};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

/// Bytes on their way to the device beyond which commits wait.
pub(crate) const IN_FLIGHT_BYTES_MAX: u64 = 64 << 20;
/// Bytes written since the last flush beyond which one is started, so that recovery has little to verify.
pub(crate) const UNFLUSHED_BYTES_MAX: u64 = 128 << 20;

/// What never changes while a store is open.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) page_bytes: usize,
    pub(crate) uuid: u128,
    pub(crate) read_only: bool,
    /// Frames that cannot be read end no stream.
    pub(crate) salvage: bool,
    pub(crate) max_size_bytes: u64,
    pub(crate) geometry: Geometry,
    /// Pages of the smallest stream extent.
    pub(crate) stream_extent_pages: u64,
    pub(crate) broken: Broken,
    /// Close groups also while a flush is under way: more records, more overlap. For tests.
    pub(crate) eager: bool,
    /// Mount as if the journal had no room for the mount record. For tests.
    pub(crate) mount_by_checkpoint: bool,
    /// Shrinking leaves nothing but what is kept, at the end of the store. For tests.
    pub(crate) gives_lowest: bool,
}

impl Shape {
    /// Pages that one I/O can carry.
    pub(crate) fn io_pages(&self) -> u32 {
        (self.geometry.max_io as usize / self.page_bytes).max(1) as u32
    }

    pub(crate) fn byte(&self, page: u64) -> u64 {
        page * self.page_bytes as u64
    }
}

/// The open store.
pub(crate) struct StoreCore {
    pub(crate) device: Arc<dyn Device>,
    /// The device, when it is a directory.
    pub(crate) files: Option<Arc<HostFiles>>,
    pub(crate) driver: Option<Arc<dyn Drive>>,
    pub(crate) shape: Shape,
    pub(crate) state: Mutex<StoreState>,
    pub(crate) changed: Condvar,
    pub(crate) owners: Owners,
}

/// What an I/O was for.
#[derive(Debug)]
pub(crate) enum Tag {
    /// Data of a transaction.
    Data {
        group: u64,
        epoch: u64,
        runs: Vec<Run>,
        bytes: u64,
    },
    Record {
        group: u64,
        epoch: u64,
    },
    Frame {
        stream: u64,
        ticket: u64,
        epoch: u64,
        run: Run,
        bytes: u64,
    },
    Flush {
        epoch: u64,
    },
    Checkpoint,
    Superblock,
    /// A hint; nobody waits for it.
    Discard {
        run: Run,
    },
}

/// A commit that waits to be acknowledged.
pub(crate) struct Waiter {
    pub(crate) lsn: u64,
    pub(crate) completer: Completer<Result<Lsn, StoreError>>,
}

type Delivery = Box<dyn FnOnce() + Send>;

/// Everything that changes.
pub(crate) struct StoreState {
    pub(crate) tables: Tables,
    pub(crate) space: SpaceMap,
    pub(crate) epochs: Epochs,
    pub(crate) journal: Journal,
    pub(crate) groups: Groups,
    pub(crate) checkpointer: Checkpointer,
    pub(crate) tails: BTreeMap<u64, Tail>,
    /// Raw extents that somebody holds: by pin, the stream and its pages.
    pub(crate) raw_extents: BTreeMap<u64, (u64, Run)>,
    /// Frames of deleted streams that commits still wait for.
    pub(crate) orphans: Vec<FrameState>,
    pub(crate) frame_tickets: u64,
    pub(crate) recent: RecentPages,
    pub(crate) entropy: Entropy,
    /// Pages of data writes that are on their way.
    pub(crate) in_flight: BTreeMap<u64, u32>,
    pub(crate) in_flight_bytes: u64,
    /// Beyond this commits wait; at most [`IN_FLIGHT_BYTES_MAX`].
    pub(crate) in_flight_limit: u64,
    pub(crate) unflushed_bytes: u64,
    /// Prepared stream extents: written space, owned, in no record.
    pub(crate) spare_extents: Vec<Run>,
    pub(crate) written_waiters: VecDeque<Waiter>,
    pub(crate) durable_waiters: VecDeque<Waiter>,
    /// Somebody waits for this commit to be durable.
    pub(crate) wanted_lsn: u64,
    /// What the last clean mark covers.
    pub(crate) clean_mark: CleanMark,
    /// The quarantine up to this epoch has to be drained.
    pub(crate) drain_epoch: u64,
    /// The device's length, or what of it is hollow, is being changed: one at a time.
    pub(crate) resizing: bool,
    /// The host has refused the last growth.
    pub(crate) is_growth_refused: bool,
    /// First failed write or flush.
    pub(crate) failure: Option<DeviceError>,
    pub(crate) closed: bool,
    pub(crate) broken: Broken,
    /// The mount is durable: pages may be taken (OBJ-4).
    pub(crate) mounted: bool,
    pub(crate) outbox: Vec<(Tag, Vec<Io>)>,
    pub(crate) deliveries: Vec<Delivery>,
}

impl StoreState {
    /// Whether writes are accepted. A full host is named each time: the caller may not be the one whose write
    /// met it.
    pub(crate) fn writable(&self) -> Result<(), StoreError> {
        match &self.failure {
            Some(error) if error.is_host_full() && !self.closed => Err(StoreError::Device(error.clone())),
            Some(_) => Err(StoreError::Fenced),
            None if self.closed => Err(StoreError::Fenced),
            None => Ok(()),
        }
    }

    /// Applies an operation that was planned against these very tables, and enters it into the open group.
    ///
    /// # Panics
    /// When it does not fit: our own bug.
    pub(crate) fn enter(&mut self, op: &RecordOp, lsn: u64) {
        let mut effect = Effect::default();
        if let Err(misfit) = self.tables.apply(op, lsn, &mut effect) {
            panic!("an operation was planned that does not fit: {misfit}");
        }
        op.encode(&mut self.groups.open.ops);
        if self.broken.by(Flaw::StreamReuseAtOnce) && matches!(op, RecordOp::StreamTrim { .. }) {
            effect.freed.drain(..).for_each(|run| self.space.allocator.release(run));
        }
        self.groups.open.freed.append(&mut effect.freed);
        self.reckon_checkpoint();
    }

    /// The tables have changed, or a checkpoint began or ended: what the next one takes is kept for it.
    pub(crate) fn reckon_checkpoint(&mut self) {
        let pages = self.checkpoint_pages_with(0);
        self.space.checkpoint_pages = pages;
    }

    /// Pages that have to be free for the next checkpoint when the tables have grown by `more` bytes.
    fn checkpoint_pages_with(&self, more: u64) -> u64 {
        let space = &self.space.allocator;
        let body = snapshot::encoded_len(&self.tables, space.zone_runs(), space.hollow_runs()) + more;
        let pages = checkpointer::pages_for(body, self.tables.page_bytes);
        pages.saturating_sub(self.checkpointer.pages_to_come())
    }

    /// Pages that are missing for a checkpoint of tables that are `more` bytes longer; what only `releases`
    /// space may go to the end of what is kept.
    pub(crate) fn pages_for_tables(&self, more: u64, releases: bool) -> u64 {
        let pages = self.checkpoint_pages_with(more);
        let free = self.space.allocator.free_pages();
        if pages <= self.space.checkpoint_pages {
            0
        } else if releases {
            pages.saturating_sub(free)
        } else {
            let free = free.saturating_sub(self.space.reserved_pages);
            SpaceMap::checkpoint_reserve(pages).saturating_sub(free)
        }
    }

    /// Whether something is under way that may change what the journal or a checkpoint has room for.
    pub(crate) fn is_moving(&self) -> bool {
        self.groups.records > 0
            || self.epochs.flushing.is_some()
            || !self.checkpointer.is_idle()
            || !self.outbox.is_empty()
    }

    /// The refusal where no checkpoint fits.
    pub(crate) fn no_checkpoint(&self) -> StoreError {
        let page = self.tables.page_bytes as u64;
        StoreError::NoSpace {
            needed_bytes: self.space.checkpoint_pages * page,
            free_bytes: self.space.allocator.free_pages() * page,
        }
    }

    /// The refusal of something that needs `pages` pages.
    pub(crate) fn no_space(&self, pages: u64) -> StoreError {
        let page = self.tables.page_bytes as u64;
        StoreError::NoSpace {
            needed_bytes: pages.saturating_mul(page),
            free_bytes: self.space.available_pages() * page,
        }
    }

    /// Looks at the host's file system when it is time to, before anything is admitted.
    pub(crate) fn look_at_host(&mut self) {
        let unwritten_bytes = self.in_flight_bytes;
        self.space.allocator.look_when_due(unwritten_bytes);
    }

    /// Whether the journal has room for the open group's record.
    pub(crate) fn can_close(&self) -> bool {
        let group = &self.groups.open;
        self.journal.position_of(group.ops.len(), group.releasing).is_some()
    }

    /// A look at pages has ended; `true` when some of them are free now.
    pub(crate) fn unpin(&mut self, ticket: u64) -> bool {
        let reusable = self.space.unpin(ticket);
        reusable.iter().for_each(|&run| self.recent.forget(run));
        !reusable.is_empty()
    }

    /// Queues a delivery to a caller.
    pub(crate) fn deliver<T: Send + 'static>(&mut self, completer: Completer<T>, value: T) {
        self.deliveries.push(Box::new(move || completer.complete(value)));
    }

    /// Whether a write to `run` is on its way.
    pub(crate) fn is_in_flight(&self, run: Run) -> bool {
        self.in_flight
            .range(..run.end())
            .next_back()
            .is_some_and(|(&at, &pages)| Run::new(at, pages).overlaps(run))
    }
}

impl StoreCore {
    /// A completion whose waiter drives the device when it has no thread.
    pub(crate) fn promise<T>(&self) -> (Completer<T>, Completion<T>) {
        Completion::pair(self.driver.clone())
    }

    /// Reads whole pages on this thread.
    pub(crate) fn read_pages(&self, run: Run) -> Result<Vec<u8>, DeviceError> {
        let mut out = Vec::with_capacity(run.pages as usize * self.shape.page_bytes);
        for piece in pieces(run, self.shape.io_pages()) {
            let buf = AlignedBuf::zeroed(piece.pages as usize * self.shape.page_bytes);
            out.extend_from_slice(&self.device.read_now(self.shape.byte(piece.at), buf)?);
        }
        Ok(out)
    }

    /// A look at pages has ended. They may be what a transaction waits for.
    pub(crate) fn unpin(&self, ticket: u64) {
        let mut state = self.state.lock();
        if state.unpin(ticket) {
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Write commands for `run`, whose bytes are `bufs` in order, each no longer than the device takes.
    pub(crate) fn write_ios(&self, run: Run, bufs: Vec<AlignedBuf>, class: Class) -> Vec<Io> {
        let most = self.shape.io_pages() as usize * self.shape.page_bytes;
        let mut at = run.at;
        let mut ios = Vec::with_capacity(bufs.len());
        for buf in bufs {
            let pages = (buf.len() / self.shape.page_bytes) as u64;
            if buf.len() <= most {
                ios.push(self.write_io(at, buf, class));
            } else {
                let mut within = at;
                for part in buf.chunks(most) {
                    ios.push(self.write_io(within, AlignedBuf::padded(part, 1), class));
                    within += (part.len() / self.shape.page_bytes) as u64;
                }
            }
            at += pages;
        }
        ios
    }

    /// A write command for whole pages.
    pub(crate) fn write_io(&self, page: u64, buf: AlignedBuf, class: Class) -> Io {
        Io { at: self.shape.byte(page), kind: IoKind::Write { buf, fua: false }, class }
    }
}

/// Cuts a run into pieces of at most `most` pages.
pub(crate) fn pieces(run: Run, most: u32) -> impl Iterator<Item = Run> {
    (0..run.pages.div_ceil(most)).map(move |index| {
        let at = index * most;
        Run::new(run.at + u64::from(at), most.min(run.pages - at))
    })
}
