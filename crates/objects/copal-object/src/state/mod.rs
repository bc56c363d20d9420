//! State of one open store, behind one mutex, and the handle that owns it.
//!
//! Invariants
//! - The mutex is never held across a device call. Commands and answers go to the [`WorkQueue`];
//!   `engine::pump` takes them from there with the mutex released.
//!
//! Not here: the steps (`engine`), planning a transaction (`commit`).

pub(crate) mod checkpoint;
pub(crate) mod cleaner;
pub(crate) mod commit;
pub(crate) mod entropy;
pub(crate) mod fence;
pub(crate) mod inline_pages;
pub(crate) mod owners;
pub(crate) mod pending_frames;
pub(crate) mod queue;
pub(crate) mod stream;
pub(crate) mod verified_ranges;

use crate::{
    FramePos, ObjectId, StoreError,
    backend::hostfs::HostFiles,
    flaw::{BrokenRule, StoreFlaw},
    format::{moved_part::MovedPart, ops::RecordOp, record, run::PageRun},
    space::{SpaceState, discards::DeviceLoad},
    state::{
        checkpoint::CheckpointState,
        cleaner::{CleanerState, CleanerTrigger},
        commit::{CommitState, group::GroupRoom},
        entropy::EntropySource,
        fence::WriteFence,
        inline_pages::InlinePages,
        owners::StoreOwners,
        queue::WorkQueue,
        stream::StreamState,
        verified_ranges::VerifiedRanges,
    },
    tables::{ObjectTables, OpEffect, snapshot},
};
use bytes::Bytes;
use copal_device::{
    AlignedBuf, Completer, Completion, CompletionDriver, Device, DeviceError, Geometry, Io, IoClass, IoKind,
};
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, OnceLock};

/// Constants of an open store.
#[derive(Debug)]
pub(crate) struct StoreShape {
    pub(crate) page_bytes: usize,
    pub(crate) uuid: u128,
    pub(crate) read_only: bool,
    /// Unreadable frames do not end a stream.
    pub(crate) salvage: bool,
    pub(crate) max_size_bytes: u64,
    pub(crate) geometry: Geometry,
    /// See `Store::gap_bytes`.
    pub(crate) gap_bytes: u64,
    /// Commands of one caller that are in flight together.
    pub(crate) depth: usize,
    /// Most bytes of data of a transaction that lie in its record.
    pub(crate) inline_bytes: usize,
    /// Pages of the smallest stream extent.
    pub(crate) stream_extent_pages: u64,
    pub(crate) broken: BrokenRule,
    /// Close groups also while a flush is in progress: more records, more overlap. For tests.
    pub(crate) eager: bool,
    /// Mount as if the journal had no room for the mount record. For tests.
    pub(crate) mount_by_checkpoint: bool,
    /// Most bytes of a chain page of a checkpoint.
    pub(crate) chain_page_bytes: usize,
    /// Chain pages that are written at a time, and that one caller encodes.
    pub(crate) chain_pages_in_flight: u32,
    pub(crate) cleaner_trigger: CleanerTrigger,
    /// Shrinking keeps only the reserve, at the end of the store. For tests.
    pub(crate) gives_lowest: bool,
}

impl StoreShape {
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
    /// The device, if it is a directory.
    pub(crate) files: Option<Arc<HostFiles>>,
    pub(crate) driver: Option<Arc<dyn CompletionDriver>>,
    pub(crate) shape: StoreShape,
    pub(crate) state: Mutex<StoreState>,
    pub(crate) changed: Condvar,
    pub(crate) owners: StoreOwners,
    /// See `Store::note_verified_ranges`.
    pub(crate) verified: OnceLock<VerifiedRanges>,
}

/// The changing state; each part has its own owner.
pub(crate) struct StoreState {
    pub(crate) tables: ObjectTables,
    pub(crate) space: SpaceState,
    pub(crate) commit: CommitState,
    pub(crate) streams: StreamState,
    pub(crate) inline: InlinePages,
    pub(crate) checkpoint: CheckpointState,
    pub(crate) cleaner: CleanerState,
    pub(crate) fence: WriteFence,
    pub(crate) queue: WorkQueue,
    pub(crate) entropy: EntropySource,
    pub(crate) broken: BrokenRule,
}

impl StoreState {
    /// Whether writes are accepted.
    pub(crate) fn writable(&self) -> Result<(), StoreError> {
        self.fence.writable()
    }

    /// Applies an operation that was planned against these tables, and enters it into the open group.
    ///
    /// # Panics
    /// When it does not fit: a bug of Copal.
    pub(crate) fn enter(&mut self, op: &RecordOp, lsn: u64) {
        let mut effect = OpEffect::default();
        let frees_extents = match op {
            RecordOp::StreamTrim { .. } | RecordOp::StreamTruncate { .. } => true,
            RecordOp::Delete { id } => self.tables.stream(*id).is_some(),
            _ => false,
        };
        if let Err(misfit) = self.tables.apply(op, lsn, &mut effect) {
            panic!("an operation was planned that does not fit: {misfit}");
        }
        if self.broken.by(StoreFlaw::StreamReuseAtOnce) && matches!(op, RecordOp::StreamTrim { .. }) {
            effect.freed.drain(..).for_each(|run| self.space.release(run));
        }
        if frees_extents {
            effect.freed.iter().for_each(|&run| self.space.note_freed_extent(run));
        }
        self.forget_inline(&effect.freed);
        self.commit.enter(op, &mut effect.freed);
        self.space.placement_mut().journal_mut().note_ops(self.commit.open_ops_bytes());
        self.update_checkpoint_reserve();
    }

    /// Inline pages that lost their owner are not placed.
    fn forget_inline(&mut self, freed: &[PageRun]) {
        let needed = self.checkpoint.pending().map(|pending| pending.superblock.checkpoint_lsn);
        for &run in freed {
            self.inline.forget(run, needed, |page| self.space.pin(vec![page]));
        }
    }

    /// Updates the pages kept for the next checkpoint, after the tables have changed or a checkpoint began or
    /// ended.
    pub(crate) fn update_checkpoint_reserve(&mut self) {
        let pages = self.checkpoint_pages_with(0);
        self.space.keep_for_checkpoint(pages);
    }

    /// Pages that must be free for the next checkpoint if the tables grow by `more` bytes.
    fn checkpoint_pages_with(&self, more: u64) -> u64 {
        let space = self.space.placement();
        let body = snapshot::encoded_len(&self.tables, space.zone_runs(), space.hollow_runs()) + more;
        let pages = checkpoint::pages_for(body, self.tables.page_bytes);
        pages.saturating_sub(self.checkpoint.pages_becoming_free())
    }

    /// Whether the journal has room for the open group's record with `ops_bytes` more; `releasing` operations may
    /// use its reserved part.
    pub(crate) fn fits_journal(&self, ops_bytes: usize, releasing: bool) -> bool {
        self.commit.fits_journal(self.space.placement().journal(), ops_bytes, releasing)
    }

    /// Room in the open group for `ops_bytes` bytes of operations (OBJ-16).
    /// # Errors
    /// `TooLarge`: longer than any record.
    pub(crate) fn find_room(&self, ops_bytes: usize, releasing: bool) -> Result<GroupRoom, StoreError> {
        let journal = self.space.placement().journal();
        if record::HEADER_LEN + ops_bytes > journal.record_bytes_max() {
            return Err(StoreError::TooLarge);
        }
        let measured = if self.broken.by(StoreFlaw::GroupNotMeasured) { 0 } else { ops_bytes };
        let Some(admitted) = self.commit.admit(journal, measured) else {
            return Ok(GroupRoom::GroupFull);
        };
        // At least one of the two ways to become durable must be open: a record or a checkpoint.
        if !self.space.fits_checkpoint() && !self.fits_journal(ops_bytes, releasing) {
            return Ok(GroupRoom::JournalFull);
        }
        Ok(GroupRoom::Admitted(admitted))
    }

    /// Pages missing for a checkpoint of tables that are `more` bytes longer. An operation that only frees
    /// space (`releases`) may use the whole reserve.
    pub(crate) fn pages_for_tables(&self, more: u64, releases: bool) -> u64 {
        self.pages_for_tables_with(more, releases, 0)
    }

    /// Like [`StoreState::pages_for_tables`], for an operation that may spend `spendable` reserved pages.
    pub(crate) fn pages_for_tables_with(&self, more: u64, releases: bool, spendable: u64) -> u64 {
        let pages = self.checkpoint_pages_with(more);
        let free = self.space.free_pages();
        if pages <= self.space.checkpoint_pages() {
            0
        } else if releases {
            pages.saturating_sub(free)
        } else {
            let free = free.saturating_sub(self.space.reserved_pages() - spendable);
            SpaceState::checkpoint_reserve(pages).saturating_sub(free)
        }
    }

    /// Whether an operation in progress may change the room in the journal or for a checkpoint.
    pub(crate) fn is_moving(&self) -> bool {
        self.commit.is_moving()
            || !self.checkpoint.is_idle()
            || self.cleaner.is_copying()
            || self.queue.has_ios()
            || self.space.discarding_pages() > 0
    }

    /// The error if no checkpoint fits.
    pub(crate) fn no_checkpoint(&self) -> StoreError {
        let page = self.tables.page_bytes as u64;
        StoreError::NoSpace {
            needed_bytes: self.space.checkpoint_pages() * page,
            free_bytes: self.space.free_pages() * page,
        }
    }

    /// The error if `pages` pages are needed and missing.
    pub(crate) fn no_space(&self, pages: u64) -> StoreError {
        let page = self.tables.page_bytes as u64;
        StoreError::NoSpace {
            needed_bytes: pages.saturating_mul(page),
            free_bytes: self.space.available_pages() * page,
        }
    }

    /// Queries the host's free space if a query is due, before anything is admitted.
    pub(crate) fn query_host_when_due(&mut self) {
        self.space.placement_mut().query_host_when_due(self.commit.in_flight_bytes());
    }

    /// Whether data of groups finds room once the open group is closed, or once the next segment can be entered.
    pub(crate) fn waits_for_group(&self) -> bool {
        let journal = self.space.placement().journal();
        journal.has_data() && (!self.commit.is_open_empty() || journal.awaited_epoch().is_some())
    }

    /// Keeps those of `parts` that no operation has changed. The rest of the others needs another round.
    pub(crate) fn keep_unchanged_parts(&mut self, parts: &mut Vec<MovedPart>) {
        let Some(segments) = self.space.placement().segments() else { return };
        parts.retain(|part| {
            let is_unchanged = self.tables.holds_part(part);
            if let Some(round) = self.cleaner.round.as_mut().filter(|_| !is_unchanged) {
                round.changed.extend(segments.parts(part.from).map(|(segment, _)| segment));
            }
            is_unchanged
        });
    }

    /// Bytes of a page that waits in memory: for its place, or for the record of the open group.
    pub(crate) fn waiting_page(&self, at: u64) -> Option<Bytes> {
        self.inline.page(at).cloned().or_else(|| self.space.placement().journal().page(at))
    }

    /// Whether a page of `run` is not on the device yet.
    pub(crate) fn is_unwritten(&self, run: PageRun) -> bool {
        self.commit.is_in_flight(run) || self.inline.holds(run) || self.space.placement().journal().holds(run)
    }

    /// The write of a frame has completed.
    pub(crate) fn frame_written(&mut self, stream: u64, ticket: u64) {
        let groups = self.streams.frame_written(stream, ticket);
        groups.into_iter().for_each(|group| self.commit.end_group_write(group));
    }

    /// The open group counts only if `frame` and those before it survive, so it completes after their writes.
    pub(crate) fn await_frames(&mut self, stream: u64, frame: u64) {
        let writes = self.streams.await_frames(stream, frame, self.commit.open_group());
        self.commit.await_writes(writes);
    }

    /// Acknowledges frames that are due, in the order of each stream.
    pub(crate) fn acknowledge_frames(&mut self) {
        let (written_lsn, durable_lsn) = (self.commit.written_lsn(), self.commit.durable_lsn());
        for (completer, frame) in self.streams.acknowledge(written_lsn, durable_lsn) {
            self.queue.deliver(completer, Ok(FramePos(frame)));
        }
    }

    /// The stream ends before frame `from`: answers callers that wait for one of the frames that are gone. The next
    /// frame begins behind `used` pages of the last piece.
    pub(crate) fn cut_stream(&mut self, stream: u64, from: u64, used: u32) {
        for (completer, frame) in self.streams.cut_stream(stream, from, used) {
            let error = StoreError::FrameCut { id: ObjectId(stream), frame: FramePos(frame) };
            self.queue.deliver(completer, Err(error));
        }
    }

    /// The stream was deleted: answers callers that wait for one of its frames.
    pub(crate) fn forget_stream(&mut self, stream: u64) {
        for completer in self.streams.forget_stream(stream) {
            self.queue.deliver(completer, Err(StoreError::NotFound(ObjectId(stream))));
        }
    }
}

impl StoreCore {
    /// A completion whose waiter runs the device's events if the device has no thread.
    pub(crate) fn promise<T>(&self) -> (Completer<T>, Completion<T>) {
        Completion::pair(self.driver.clone())
    }

    /// Time and commands of the device.
    pub(crate) fn load(&self) -> DeviceLoad {
        let counters = self.device.counters();
        let commands = counters.reads + counters.writes + counters.flushes + counters.zeroes;
        DeviceLoad { now: self.device.clock().now(), commands }
    }

    /// Reads whole pages on this thread.
    pub(crate) fn read_pages(&self, run: PageRun) -> Result<Vec<u8>, DeviceError> {
        let mut out = Vec::with_capacity(run.pages as usize * self.shape.page_bytes);
        for piece in pieces(run, self.shape.io_pages()) {
            let buf = AlignedBuf::zeroed(piece.pages as usize * self.shape.page_bytes);
            out.extend_from_slice(&self.device.read_now(self.shape.byte(piece.at), buf)?);
        }
        Ok(out)
    }

    /// Ends a pin and wakes waiters: a transaction may wait for these pages.
    pub(crate) fn unpin(&self, ticket: u64) {
        let freed = self.state.lock().space.unpin(ticket);
        if freed {
            self.changed.notify_all();
        }
    }

    /// Write commands for `run`, whose bytes are `bufs` in order; each buffer is at most one I/O of the
    /// device.
    pub(crate) fn write_ios(&self, run: PageRun, bufs: Vec<AlignedBuf>, class: IoClass) -> Vec<Io> {
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
    pub(crate) fn write_io(&self, page: u64, buf: AlignedBuf, class: IoClass) -> Io {
        Io { at: self.shape.byte(page), kind: IoKind::Write { buf, fua: false }, class }
    }
}

/// Cuts a run into pieces of at most `most` pages.
pub(crate) fn pieces(run: PageRun, most: u32) -> impl Iterator<Item = PageRun> {
    (0..run.pages.div_ceil(most)).map(move |index| {
        let at = index * most;
        PageRun::new(run.at + u64::from(at), most.min(run.pages - at))
    })
}
