//! Fetches the chunks of a part of a disk: located together, read pack after pack, decoded by several threads.
//!
//! The calling thread reads. It hands the frames of a pack to the store in one call (`packs::frame_ranges`), so
//! that the store decides which of them are one read. Batches of stored frames go round between the reader and
//! the threads that decode them ([`decode`]).
//!
//! Invariants
//! - A chunk is handed on only if its bytes fit its id and its length (BAK-11).
//! - A chunk whose frame is damaged or gone is fetched from another location, if the index knows one.
//! - Memory: batches of a fixed number and size, and 200 bytes a chunk. A part may thus be much larger than the
//!   memory for it.

mod decode;
mod fetch_job;

use crate::packs::frame_plan::{FramePlan, PlannedFrame};
use crate::packs::pack::reader;
use crate::packs::pack::{FrameLocation, PackNumber};
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use crate::request::progress::CancelFlag;
use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use decode::{ChunkDecoder, FrameBatch};
pub(crate) use fetch_job::{ChunkTaker, TakerFactory, WantedChunk};
use fetch_job::{FetchJob, LostChunk};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Builder;

/// Stored bytes of a full batch.
const BATCH_BYTES: usize = 256 << 10;
/// Fewer chunks are decoded by the calling thread: starting a thread costs as much as some chunks.
const CHUNKS_OF_A_THREAD: usize = 32;
/// Packs that are read at once from a cluster, unless the caller has another wish.
const READERS: usize = 4;
/// Memory of all batches; it limits the number of threads that decode.
const BATCHES_BYTES: usize = 24 << 20;
/// Batches of each thread that decodes: one at work and one that waits.
const BATCHES_OF_A_DECODER: usize = 2;

/// Fetches parts of disks one after another. One per calling thread.
pub(crate) struct ChunkFetcher<'a> {
    pack_store: &'a PackStore,
    cancel: Option<&'a CancelFlag>,
    /// Threads that decode; 0: the calling thread does.
    decoders: usize,
    /// Packs that are read at once.
    readers: usize,
    /// Bytes of the frames that were read.
    pub(crate) fetched_bytes: u64,
    /// Packs that were read from.
    pub(crate) packs: HashSet<PackNumber>,
}

impl<'a> ChunkFetcher<'a> {
    /// A fetcher that decodes with the workers of the pack store, and ends when `cancel` is set.
    pub(crate) fn new(pack_store: &'a PackStore, cancel: Option<&'a CancelFlag>) -> ChunkFetcher<'a> {
        let most = BATCHES_BYTES / (BATCHES_OF_A_DECODER * BATCH_BYTES);
        let fetcher = ChunkFetcher {
            pack_store,
            cancel,
            decoders: pack_store.workers().min(most),
            readers: 1,
            fetched_bytes: 0,
            packs: HashSet::new(),
        };
        fetcher.with_readers(READERS)
    }

    /// As [`ChunkFetcher::new`], on the calling thread alone.
    pub(crate) fn on_this_thread(pack_store: &'a PackStore) -> ChunkFetcher<'a> {
        ChunkFetcher { decoders: 0, ..ChunkFetcher::new(pack_store, None) }
    }

    /// Reads from up to `readers` packs at once if the store is on several servers: the ways there and back
    /// then overlap. A store on this machine has one device, which reads one pack after the other best.
    pub(crate) fn with_readers(mut self, readers: usize) -> ChunkFetcher<'a> {
        if self.pack_store.volumes.store.is_replicated() {
            self.readers = readers.max(1);
        }
        self
    }

    /// Fetches chunks. `takers` makes a taker for each thread; `fault` gets the error of each chunk that cannot
    /// be fetched, in the order of `wanted`, after the others were fetched.
    /// # Errors
    /// `Cancelled`; errors of the store that are not damage; those of a taker and of `fault`.
    pub(crate) fn fetch(
        &mut self,
        wanted: &[WantedChunk],
        takers: &TakerFactory<'_>,
        fault: &mut dyn FnMut(&WantedChunk, Error) -> Result<()>,
    ) -> Result<()> {
        let mut faults: Vec<(u32, Error)> = Vec::new();
        let mut requests: Vec<u32> = (0..).zip(wanted).map(|(request, _)| request).collect();
        // Another host may remove a pack meanwhile: its chunks are then located again, together.
        for is_last in [false, true] {
            requests = self.pass(wanted, requests, takers, is_last, &mut faults)?;
        }
        faults.sort_by_key(|(request, _)| *request);
        faults.into_iter().try_for_each(|(request, error)| fault(&wanted[request as usize], error))
    }

    /// Locates and fetches the chunks of some requests. Returns those whose pack was removed meanwhile; in the
    /// last pass they are fetched one by one from other locations, as damaged ones always are.
    fn pass(
        &mut self,
        wanted: &[WantedChunk],
        requests: Vec<u32>,
        takers: &TakerFactory<'_>,
        is_last: bool,
        faults: &mut Vec<(u32, Error)>,
    ) -> Result<Vec<u32>> {
        let mut planned = Vec::with_capacity(requests.len());
        let places: Vec<_> = requests.iter().map(|request| wanted[*request as usize].chunk.place()).collect();
        self.pack_store.find_frames(&places, &mut |at, located| {
            if self.cancel.is_some_and(CancelFlag::is_cancelled) {
                return Err(Error::Cancelled { kept_bytes: None });
            }
            let request = requests[at];
            // Another host may have moved it, or there is a reason to report.
            let located = located.map_or_else(|| self.pack_store.locate(&wanted[request as usize].chunk), Ok);
            match located {
                Ok(frame) => planned.push(PlannedFrame::of(&frame, request)),
                Err(error) if error.is_corruption() => faults.push((request, error)),
                Err(error) => return Err(error),
            }
            Ok(())
        })?;
        let plan = FramePlan::new(planned);
        let packs = plan.packs();
        if packs.is_empty() {
            return Ok(Vec::new());
        }
        let job = FetchJob {
            pack_store: self.pack_store,
            cancel: self.cancel,
            wanted,
            plan: &plan,
            is_stopped: AtomicBool::new(false),
            first_error: Mutex::new(None),
            lost: Mutex::default(),
            fetched_bytes: AtomicU64::new(0),
        };
        self.packs.extend(packs.iter().map(|frames| frames[0].location.pack));
        match self.decoders.min(plan.len() / CHUNKS_OF_A_THREAD) {
            0 => job.on_this_thread(&packs, takers),
            decoders => job.on_threads(&packs, takers, decoders, self.readers.min(packs.len())),
        }
        if let Some(error) = job.first_error.lock().take() {
            return Err(error);
        }
        let lost = std::mem::take(&mut *job.lost.lock());
        let mut removed = Vec::new();
        if !lost.is_empty() {
            let mut taker = takers();
            for lost in lost {
                if !is_last && self.is_removed(lost.location)? {
                    removed.push(lost.request);
                } else {
                    faults.extend(job.elsewhere(lost, &mut *taker)?);
                }
            }
            taker.pause()?;
        }
        self.fetched_bytes += job.fetched_bytes.load(Ordering::Relaxed);
        Ok(removed)
    }

    /// Whether the pack of a location does not exist.
    fn is_removed(&self, location: FrameLocation) -> Result<bool> {
        match self.pack_store.footer(location.home, location.volume, location.pack) {
            Ok(footer) => Ok(footer.is_none()),
            Err(error) if error.is_corruption() => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Error of a reader whose decoders have ended; they hold the real error.
fn stopped() -> Error {
    Error::Invalid { reason: "the fetch was stopped".into() }
}

impl FetchJob<'_> {
    /// Keeps the first error; later ones are only consequences.
    fn fail(&self, error: Error) {
        self.is_stopped.store(true, Ordering::Relaxed);
        self.first_error.lock().get_or_insert(error);
    }

    /// Notes that a frame cannot be fetched.
    fn lose(&self, frame: &PlannedFrame, error: Error) {
        let location = frame.location;
        let text = error.to_string();
        let mut first = Some(match error {
            error @ Error::Damaged { .. } => error,
            _ => reader::damaged(location.pack, &*text),
        });
        let requests = self.plan.requests(frame).iter();
        self.lost.lock().extend(requests.map(|request| {
            let error = first.take().unwrap_or_else(|| reader::damaged(location.pack, &*text));
            LostChunk { request: *request, location, error }
        }));
    }

    /// Whether reading is to end; notes a cancellation.
    fn must_stop(&self) -> bool {
        if self.cancel.is_some_and(CancelFlag::is_cancelled) {
            self.fail(Error::Cancelled { kept_bytes: None });
        }
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Reads and decodes in turn.
    fn on_this_thread(&self, packs: &[&[PlannedFrame]], takers: &TakerFactory<'_>) {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut decoder = ChunkDecoder::new(self, takers())?;
            self.read_packs(packs, &next, FrameBatch::default(), &mut |mut batch| {
                decoder.batch(&mut batch)?;
                Ok(batch)
            })?;
            decoder.end()
        };
        if let Err(error) = work() {
            self.fail(error);
        }
    }

    /// Reads on this thread and `readers - 1` others, decodes on `decoders` others.
    fn on_threads(
        &self,
        packs: &[&[PlannedFrame]],
        takers: &TakerFactory<'_>,
        decoders: usize,
        readers: usize,
    ) {
        let next = AtomicUsize::new(0);
        let (full_in, full_out) = bounded::<FrameBatch>(decoders + readers);
        let (empty_in, empty_out) = unbounded::<FrameBatch>();
        // A reader holds one batch; each decoder has one at work and one that waits.
        (0..BATCHES_OF_A_DECODER * decoders).for_each(|_| drop(empty_in.send(FrameBatch::default())));
        std::thread::scope(|scope| {
            let mut started = 0;
            for _ in 0..decoders {
                let (full, empty) = (full_out.clone(), empty_in.clone());
                let decode = move || self.decode(&full, &empty, takers);
                match Builder::new().name("decode".to_owned()).spawn_scoped(scope, decode) {
                    Ok(_) => started += 1,
                    Err(error) => tracing::debug!(%error, started, "the system starts no more threads"),
                }
            }
            drop((full_out, empty_in));
            if started == 0 {
                return self.on_this_thread(packs, takers);
            }
            let read = |full: Sender<FrameBatch>, empty: Receiver<FrameBatch>| {
                let read = self.read_packs(packs, &next, FrameBatch::default(), &mut |batch| {
                    // The decoders end early only after one of them has failed.
                    full.send(batch).map_err(|_| stopped())?;
                    empty.recv().map_err(|_| stopped())
                });
                if let Err(error) = read {
                    self.fail(error);
                }
            };
            for _ in 1..readers {
                let (full, empty) = (full_in.clone(), empty_out.clone());
                if let Err(error) =
                    Builder::new().name("read".to_owned()).spawn_scoped(scope, move || read(full, empty))
                {
                    tracing::debug!(%error, "the system starts no more threads");
                }
            }
            read(full_in, empty_out);
        });
    }

    /// Decodes batches until no more come.
    fn decode(&self, full: &Receiver<FrameBatch>, empty: &Sender<FrameBatch>, takers: &TakerFactory<'_>) {
        let work = || {
            let mut decoder = ChunkDecoder::new(self, takers())?;
            loop {
                if full.is_empty() {
                    decoder.pause()?;
                }
                let Ok(mut batch) = full.recv() else { break };
                if self.is_stopped.load(Ordering::Relaxed) {
                    break;
                }
                decoder.batch(&mut batch)?;
                // Without a reader that takes it, the batch is dropped.
                let _ = empty.send(batch);
            }
            decoder.end()
        };
        if let Err(error) = work() {
            self.fail(error);
        }
    }

    /// Reads the packs that no other reader has taken. `hand_on` gets full batches, and returns one to be
    /// filled.
    fn read_packs(
        &self,
        packs: &[&[PlannedFrame]],
        next: &AtomicUsize,
        mut batch: FrameBatch,
        hand_on: &mut dyn FnMut(FrameBatch) -> Result<FrameBatch>,
    ) -> Result<()> {
        while let Some(frames) = packs.get(next.fetch_add(1, Ordering::Relaxed)) {
            if self.must_stop() {
                return Ok(());
            }
            batch = self.read_pack(frames, batch, hand_on)?;
        }
        Ok(())
    }

    fn read_pack(
        &self,
        frames: &[PlannedFrame],
        mut batch: FrameBatch,
        hand_on: &mut dyn FnMut(FrameBatch) -> Result<FrameBatch>,
    ) -> Result<FrameBatch> {
        let at = frames[0].location;
        let (footer, vid) = match self.pack_store.footer(at.home, at.volume, at.pack) {
            Ok(Some(found)) => found,
            Err(error) if !error.is_corruption() => return Err(error),
            // It was there when the chunks were located.
            Ok(None) | Err(_) => {
                let gone = || reader::damaged(at.pack, "it was removed while it was read");
                frames.iter().for_each(|frame| self.lose(frame, gone()));
                return Ok(batch);
            }
        };
        let slots: Vec<u32> = frames.iter().map(|frame| frame.location.slot).collect();
        batch.begin(&footer);
        let mut failed = None;
        self.pack_store.read_frames((&footer, vid), &slots, &mut |index, answer| {
            if self.must_stop() {
                return ControlFlow::Break(());
            }
            match answer {
                Ok(stored) => {
                    self.fetched_bytes.fetch_add(stored.len() as u64, Ordering::Relaxed);
                    batch.push(frames[index], stored);
                }
                Err(error) => self.lose(&frames[index], error),
            }
            if batch.bytes.len() < BATCH_BYTES {
                return ControlFlow::Continue(());
            }
            match hand_on(std::mem::take(&mut batch)) {
                Ok(empty) => {
                    batch = empty;
                    batch.begin(&footer);
                    ControlFlow::Continue(())
                }
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        })?;
        match failed {
            Some(error) => Err(error),
            None if batch.frames.is_empty() => Ok(batch),
            None => hand_on(batch),
        }
    }
}
