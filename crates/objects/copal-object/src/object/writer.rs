//! Staged objects: large immutable data that is written as it is produced, before any record names it.
//!
//! Design: docs/design/object.md#interface
//! Invariants
//! - Staged pages are in no record: a crash frees them implicitly, dropping them frees them at once.
//! - The epoch of staged data is the one that is open when its last write *completes* (OBJ-6).
//! - The data pages are followed by the trailer of their sums, whose hash the record carries.

use crate::{
    CreateOptions, ObjectId, ObjectKind, StoreError,
    engine::{
        pump::{pump, wait_change},
        steps::advance,
    },
    flaw::StoreFlaw,
    format::{
        hash128,
        ops::{ObjectTraits, RecordOp},
        run::PageRun,
    },
    object::placement_class::placement_class,
    resize::grow::make_available,
    space::home::PageHome,
    state::{StoreCore, commit::UNFLUSHED_BYTES_MAX},
    tables::unit_pages,
};
use copal_device::{AlignedBuf, Completion, IoClass, IoDone};
use std::{collections::VecDeque, sync::Arc};

/// Pieces in flight; beyond this `append` waits for the oldest.
const PIECES_MAX: usize = 4;

/// Data on the device that no record names yet. `Op::Publish` makes it an object; dropping frees it.
pub struct StagedObject {
    space: StagedSpace,
    id: ObjectId,
    what: ObjectTraits,
    len: u64,
    trailer: u128,
    epoch: u64,
}

/// Pages that are freed on drop unless they were published.
pub(crate) struct StagedSpace {
    inner: Arc<StoreCore>,
    runs: Vec<PageRun>,
}

impl StagedSpace {
    /// Owns `runs`, which are taken and counted as staged.
    pub(crate) fn new(inner: &Arc<StoreCore>, runs: Vec<PageRun>) -> StagedSpace {
        StagedSpace { inner: Arc::clone(inner), runs }
    }
}

impl Drop for StagedSpace {
    fn drop(&mut self) {
        if !self.runs.is_empty() {
            let runs = std::mem::take(&mut self.runs);
            self.inner.state.lock().space.unstage(&runs);
            self.inner.changed.notify_all();
        }
    }
}

impl StagedObject {
    /// Its future id.
    #[must_use]
    pub fn id(&self) -> ObjectId {
        self.id
    }

    /// Length in bytes, without the sums that the store adds.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn traits(&self) -> &ObjectTraits {
        &self.what
    }

    pub(crate) fn runs(&self) -> &[PageRun] {
        &self.space.runs
    }

    pub(crate) fn belongs_to(&self, inner: &Arc<StoreCore>) -> bool {
        Arc::ptr_eq(&self.space.inner, inner)
    }

    /// The operation that publishes it; the tables own its pages from now on.
    pub(crate) fn publish(mut self) -> (RecordOp, Vec<PageRun>) {
        let runs = std::mem::take(&mut self.space.runs);
        let op = RecordOp::Publish {
            id: self.id.0,
            what: self.what,
            len: self.len,
            runs: runs.clone(),
            trailer: self.trailer,
            epoch: self.epoch,
        };
        (op, runs)
    }
}

/// A piece on its way to the device.
struct StagedPiece {
    bytes: u64,
    /// A flaw (OBJ-6): the epoch of its submission.
    submitted_in: Option<u64>,
    completion: Completion<Vec<IoDone>>,
}

/// Writes a large immutable object piece by piece, before it has an id.
pub struct ObjectWriter {
    space: StagedSpace,
    id: ObjectId,
    what: ObjectTraits,
    class: usize,
    len: u64,
    sums: Vec<u32>,
    /// The piece being filled; the buffer goes to the device without a copy.
    buffer: AlignedBuf,
    /// Filled bytes of it; less than a piece.
    filled: usize,
    piece_bytes: usize,
    in_flight: VecDeque<StagedPiece>,
    epoch: u64,
}

impl ObjectWriter {
    pub(crate) fn new(inner: &Arc<StoreCore>, id: ObjectId, opts: &CreateOptions) -> ObjectWriter {
        let rule = inner.state.lock().tables.sum_rule();
        let what = ObjectTraits { kind: ObjectKind::Sealed, ..ObjectTraits::of(opts, rule) };
        let piece_bytes = inner.shape.io_pages() as usize * inner.shape.page_bytes;
        let unit_bytes = unit_pages(what.check, inner.shape.page_bytes) as usize * inner.shape.page_bytes;
        ObjectWriter {
            space: StagedSpace::new(inner, Vec::new()),
            id,
            what,
            class: placement_class(what.lifetime),
            len: 0,
            sums: Vec::new(),
            buffer: AlignedBuf::stale(0),
            filled: 0,
            piece_bytes: (piece_bytes / unit_bytes * unit_bytes).max(unit_bytes),
            in_flight: VecDeque::new(),
            epoch: 0,
        }
    }

    /// Limits memory to about `bytes`, at least a few pages, by smaller pieces; their number in flight stays.
    /// To be called before the first append.
    #[must_use]
    pub fn with_buffers(mut self, bytes: u64) -> ObjectWriter {
        let unit_bytes = unit_pages(self.what.check, self.space.inner.shape.page_bytes) as usize
            * self.space.inner.shape.page_bytes;
        // One being filled, and one more in flight than the limit before waiting.
        let piece = usize::try_from(bytes).unwrap_or(usize::MAX) / (PIECES_MAX + 2);
        // Buffers are recycled in power-of-two sizes.
        let piece = 1 << piece.max(1).ilog2();
        self.piece_bytes = (piece / unit_bytes * unit_bytes).clamp(unit_bytes, self.piece_bytes);
        self
    }

    /// Adds bytes at the end. Blocks while four pieces of up to 1 MiB are in flight.
    /// # Errors
    /// `NoSpace`: dropping the writer frees its pages. `Device`: the store is fenced.
    pub fn append(&mut self, data: &[u8]) -> Result<(), StoreError> {
        let mut rest = data;
        while !rest.is_empty() {
            if self.buffer.is_empty() {
                self.buffer = AlignedBuf::stale(self.piece_bytes);
            }
            let take = (self.piece_bytes - self.filled).min(rest.len());
            self.buffer[self.filled..self.filled + take].copy_from_slice(&rest[..take]);
            self.filled += take;
            rest = &rest[take..];
            if self.filled == self.piece_bytes {
                self.write_buffer()?;
            }
        }
        self.len += data.len() as u64;
        Ok(())
    }

    /// Bytes added so far.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing was added yet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes the remaining bytes and the sums, and waits for all writes. An object of more than 112 MiB is
    /// flushed; others are not.
    /// # Errors
    /// As [`ObjectWriter::append`].
    pub fn finish(mut self) -> Result<StagedObject, StoreError> {
        if self.filled > 0 {
            self.write_buffer()?;
        }
        let page_bytes = self.space.inner.shape.page_bytes;
        let mut trailer: Vec<u8> = self.sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        trailer.resize(trailer.len().next_multiple_of(page_bytes), 0);
        let hash = hash128(&trailer);
        for part in trailer.chunks(self.piece_bytes) {
            self.write_piece(AlignedBuf::padded(part, page_bytes))?;
        }
        while !self.in_flight.is_empty() {
            self.wait_oldest()?;
        }
        // A recovery that cannot trust the epoch reads all of the object.
        if self.len > UNFLUSHED_BYTES_MAX {
            self.wait_flush()?;
        }
        Ok(StagedObject {
            space: StagedSpace {
                inner: Arc::clone(&self.space.inner),
                runs: std::mem::take(&mut self.space.runs),
            },
            id: self.id,
            what: self.what,
            len: self.len,
            trailer: hash,
            epoch: self.epoch,
        })
    }

    fn write_buffer(&mut self) -> Result<(), StoreError> {
        let page_bytes = self.space.inner.shape.page_bytes;
        let mut buffer = std::mem::replace(&mut self.buffer, AlignedBuf::stale(0));
        let filled = std::mem::take(&mut self.filled);
        buffer.set_len(filled.next_multiple_of(page_bytes));
        buffer[filled..].fill(0);
        let unit = unit_pages(self.what.check, page_bytes);
        self.sums.extend(self.what.sums.unit_sums(&buffer, unit, page_bytes));
        self.write_piece(buffer)
    }

    /// Writes whole pages to newly allocated space.
    fn write_piece(&mut self, bytes: AlignedBuf) -> Result<(), StoreError> {
        let inner = Arc::clone(&self.space.inner);
        let page_bytes = inner.shape.page_bytes;
        let pages = (bytes.len() / page_bytes) as u64;
        let mut state = inner.state.lock();
        let runs = loop {
            state.writable()?;
            state.query_host_when_due();
            if pages <= state.space.available_pages() {
                let home = PageHome { class: self.class, owner: self.id.0, in_group: false, is_frame: false };
                match state.space.allocate(pages, home) {
                    Some(runs) => break runs,
                    // A directory has no number left for another file.
                    None => return Err(state.no_space(pages)),
                }
            }
            make_available(&inner, &mut state, pages, pages)?;
        };
        state.space.stage(pages);
        let submitted_in =
            inner.shape.broken.by(StoreFlaw::StagedAtSubmission).then_some(state.commit.open_epoch());
        drop(state);
        let mut ios = Vec::with_capacity(runs.len());
        if let [run] = *runs {
            ios.extend(inner.write_ios(run, vec![bytes], IoClass::Background));
        } else {
            let mut rest = &bytes[..];
            for &run in &runs {
                let (part, after) = rest.split_at(run.pages as usize * page_bytes);
                ios.extend(inner.write_ios(run, vec![AlignedBuf::padded(part, 1)], IoClass::Background));
                rest = after;
            }
        }
        runs.into_iter().for_each(|run| self.add_run(run));
        let (bytes, completion) = (pages * page_bytes as u64, inner.device.submit(ios));
        self.in_flight.push_back(StagedPiece { bytes, submitted_in, completion });
        if self.in_flight.len() > PIECES_MAX {
            self.wait_oldest()?;
        }
        Ok(())
    }

    fn add_run(&mut self, run: PageRun) {
        match self.space.runs.last_mut() {
            Some(last) if last.end() == run.at && last.pages.checked_add(run.pages).is_some() => {
                last.pages += run.pages;
            }
            _ => self.space.runs.push(run),
        }
    }

    /// Waits until the data is durable.
    fn wait_flush(&self) -> Result<(), StoreError> {
        let inner = &self.space.inner;
        let mut state = inner.state.lock();
        state.commit.want_epoch(self.epoch);
        loop {
            state.writable()?;
            advance(inner, &mut state);
            if state.commit.flushed_epoch() >= self.epoch {
                return Ok(());
            }
            wait_change(inner, &mut state);
        }
    }

    fn wait_oldest(&mut self) -> Result<(), StoreError> {
        let Some(StagedPiece { bytes, submitted_in, completion }) = self.in_flight.pop_front() else {
            return Ok(());
        };
        let result = completion.wait().into_iter().try_for_each(|done| done.result);
        let inner = &self.space.inner;
        let mut state = inner.state.lock();
        if let Err(error) = result {
            state.fence.fail(error.clone());
            return Err(StoreError::Device(error));
        }
        self.epoch = self.epoch.max(submitted_in.unwrap_or(state.commit.open_epoch()));
        let is_due = state.commit.count_staged(bytes);
        drop(state);
        if is_due {
            pump(inner);
        }
        Ok(())
    }
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        // The pages are freed next: no write to them may still be in flight.
        while !self.in_flight.is_empty() {
            if self.wait_oldest().is_err() {
                self.space.runs.clear();
            }
        }
        debug_assert!(self.in_flight.is_empty());
    }
}

impl std::fmt::Debug for StagedObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StagedObject").field("id", &self.id).field("len", &self.len).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ObjectWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectWriter").field("id", &self.id).field("len", &self.len).finish_non_exhaustive()
    }
}
