//! Scans whole packs from front to back: block hashes, encryption, compression, ids.
//!
//! One thread reads the blocks of a pack in order, and cuts them into runs. Workers check the runs; a run has all
//! frames that end in its blocks. So the results of runs in order are those of a scan by one thread.

use crate::packs::pack::format::{self, FrameRow};
use crate::packs::pack::reader::{FrameInflater, PackFooter, open_frame};
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use bytes::Bytes;
use copal_chunk::IdKey;
use copal_volume::VolumeId;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Blocks that are read with one call: those of a pack. Blocks that come early wait for those before them.
const BLOCKS_OF_A_CALL: usize = 128;
/// Blocks of a full run.
const BLOCKS_OF_A_RUN: usize = 2;
/// Memory of a full run, in bytes.
pub(crate) const RUN_BYTES: usize = BLOCKS_OF_A_RUN * format::BLOCK_BYTES;

/// A block of a pack; `None`: it could not be read.
type StoredBlock = (Range<u64>, Option<Bytes>);

/// Consecutive blocks of a pack, and the frames that end in them.
pub(crate) struct BlockRun {
    footer: Arc<PackFooter>,
    /// Blocks before this run that its first frame begins in.
    before: Vec<StoredBlock>,
    first: usize,
    blocks: Vec<Result<Bytes>>,
    slots: Range<usize>,
}

/// The findings of a scan in a run, in order, and the frames that opened.
pub(crate) struct ScannedRun {
    pub(crate) findings: Vec<ScanFinding>,
    pub(crate) frames: u64,
    pub(crate) frame_bytes: u64,
}

/// A finding of a scan.
pub(crate) enum ScanFinding {
    /// The first bytes of the pack.
    Head(Bytes),
    /// A block that could not be read, or has a wrong hash.
    BadBlock(Range<u64>, Error),
    /// A frame that does not open, or not to its id.
    LostFrame(u32, Error),
}

/// Reads every byte of a pack once, in order. `take` gets the blocks as runs.
/// # Errors
/// Errors of the store that are not damage; those of `take`.
pub(crate) fn read_runs(
    pack_store: &PackStore,
    vid: VolumeId,
    footer: &Arc<PackFooter>,
    take: &mut dyn FnMut(BlockRun) -> Result<()>,
) -> Result<()> {
    let count = footer.table.len() / format::BLOCK_HASH_BYTES;
    let mut cutter = RunCutter { run: BlockRun::new(footer, 0, 0, Vec::new()), count };
    for first in (0..count).step_by(BLOCKS_OF_A_CALL) {
        let last = (first + BLOCKS_OF_A_CALL).min(count);
        let ranges: Vec<Range<u64>> = (first..last).map(|number| block_range(footer, number)).collect();
        let mut early: Vec<Option<Result<Bytes>>> = (first..last).map(|_| None).collect();
        let mut next = 0;
        let mut failed = None;
        pack_store.read_ranges((footer, vid), &ranges, &mut |index, answer| {
            early[index] = Some(answer);
            while let Some(block) = early.get_mut(next).and_then(Option::take) {
                next += 1;
                if let Some(run) = cutter.add(block)
                    && let Err(error) = take(run)
                {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        })?;
        if let Some(error) = failed {
            return Err(error);
        }
    }
    Ok(())
}

fn block_range(footer: &PackFooter, number: usize) -> Range<u64> {
    let start = (number * format::BLOCK_BYTES) as u64;
    start..(start + format::BLOCK_BYTES as u64).min(footer.hashed_end)
}

/// Cuts the blocks of a pack into runs.
struct RunCutter {
    run: BlockRun,
    /// Blocks of the pack.
    count: usize,
}

impl RunCutter {
    /// Adds the next block. Returns the run if it is full, or if the pack ends.
    fn add(&mut self, block: Result<Bytes>) -> Option<BlockRun> {
        let run = &mut self.run;
        run.blocks.push(block);
        let next = run.first + run.blocks.len();
        if run.blocks.len() < BLOCKS_OF_A_RUN && next < self.count {
            return None;
        }
        let (rows, end) = (&run.footer.rows, block_range(&run.footer, next - 1).end);
        while rows.get(run.slots.end).is_some_and(|row| row.end() <= end) {
            run.slots.end += 1;
        }
        // After the last frame no bytes are needed.
        let keep_from = rows.get(run.slots.end).map_or(end, |row| u64::from(row.offset));
        let kept = run.stored().filter(|(range, _)| range.end > keep_from).collect();
        let following = BlockRun::new(&run.footer, next, run.slots.end, kept);
        Some(std::mem::replace(run, following))
    }
}

impl BlockRun {
    fn new(footer: &Arc<PackFooter>, first: usize, slot: usize, before: Vec<StoredBlock>) -> BlockRun {
        BlockRun { footer: Arc::clone(footer), before, first, blocks: Vec::new(), slots: slot..slot }
    }

    /// The blocks that the frames of the run lie in, in order.
    fn stored(&self) -> impl Iterator<Item = StoredBlock> {
        let block = |(number, block): (usize, &Result<Bytes>)| {
            (block_range(&self.footer, number), block.as_ref().ok().cloned())
        };
        self.before.iter().cloned().chain((self.first..).zip(&self.blocks).map(block))
    }
}

/// Checks runs.
pub(crate) struct ScanWorker<'a> {
    ids: &'a IdKey,
    inflater: FrameInflater,
    encrypted: Vec<u8>,
    raw: Vec<u8>,
}

impl<'a> ScanWorker<'a> {
    pub(crate) fn new(pack_store: &'a PackStore) -> Result<ScanWorker<'a>> {
        let inflater = FrameInflater::new()?;
        Ok(ScanWorker { ids: &pack_store.keys.id, inflater, encrypted: Vec::new(), raw: Vec::new() })
    }

    /// Opens a frame, and compares a chunk with its id.
    fn frame(
        &mut self,
        footer: &PackFooter,
        slot: u32,
        row: &FrameRow,
        stored: &[StoredBlock],
    ) -> Result<()> {
        self.encrypted.clear();
        let (from, to) = (u64::from(row.offset), row.end());
        for (range, block) in stored.iter().filter(|(range, _)| range.start < to && range.end > from) {
            let part = from.max(range.start)..to.min(range.end);
            match block {
                Some(bytes) => {
                    let at = |place: u64| (place - range.start) as usize;
                    self.encrypted.extend_from_slice(&bytes[at(part.start)..at(part.end)]);
                }
                // A frame in the gap fails to decrypt.
                None => self.encrypted.resize(self.encrypted.len() + (part.end - part.start) as usize, 0),
            }
        }
        let payload = open_frame(footer, slot, &mut self.encrypted)?;
        let inflated = self.inflater.inflate(row, payload, &mut self.raw);
        let raw = inflated.map_err(|detail| footer.damaged(format!("frame {slot}: {detail}")))?;
        if footer.home.has_chunks() && self.ids.id(raw).short() != row.id {
            return Err(footer.damaged(format!("frame {slot}: its bytes do not fit its id")));
        }
        Ok(())
    }

    /// Checks the blocks of a run, and the frames that end in them.
    pub(crate) fn scan(&mut self, run: BlockRun) -> ScannedRun {
        let stored: Vec<StoredBlock> = run.stored().collect();
        let BlockRun { footer, first, blocks, mut slots, .. } = run;
        let mut scanned = ScannedRun { findings: Vec::new(), frames: 0, frame_bytes: 0 };
        let (hashes, _) = footer.table.as_chunks::<{ format::BLOCK_HASH_BYTES }>();
        for (number, block) in (first..).zip(blocks) {
            let range = block_range(&footer, number);
            let end = range.end;
            if let (0, Ok(bytes)) = (number, &block) {
                let head = bytes.slice(..bytes.len().min(format::HEADER_BYTES));
                scanned.findings.push(ScanFinding::Head(head));
            }
            let wrong = || footer.damaged(format!("block {number}: its bytes do not fit their hash"));
            let checked = block.and_then(|bytes| {
                let fits = hashes.get(number) == Some(&format::block_hash(&bytes));
                if fits { Ok(()) } else { Err(wrong()) }
            });
            let bad = checked.err().map(|error| ScanFinding::BadBlock(range, error));
            scanned.findings.extend(bad);
            while let Some(row) = slots.clone().next().map(|slot| &footer.rows[slot])
                && row.end() <= end
            {
                let slot = slots.start as u32;
                slots.start += 1;
                match self.frame(&footer, slot, row, &stored) {
                    Ok(()) => {
                        scanned.frames += 1;
                        scanned.frame_bytes += u64::from(row.stored);
                    }
                    Err(error) => scanned.findings.push(ScanFinding::LostFrame(slot, error)),
                }
            }
        }
        scanned
    }
}
