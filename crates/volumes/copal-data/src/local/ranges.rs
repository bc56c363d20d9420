//! Reads of many ranges of a body: all parts of its pieces are handed to the engine together.
//!
//! Ranges that share a block of checksums are read and verified as one run. Where a run ends because it is long
//! enough, the range that goes on behind it is cut there: a block is read once, and reads never go backwards.
//! Invariants
//! - Each range has one answer. A range on damage is read again by itself, so neighbours in its run are answered.
//! - Pieces are taken in windows of [`WINDOW_PIECES`], whose checksums take 64 KiB of memory.
//! - A range in several pieces or runs is put together in memory. Ranges in several pieces take at most
//!   [`ASSEMBLED_BYTES`], others are read by themselves; one in several runs has memory from the arrival of its first
//!   part to that of its last.

use super::body;
use crate::error::of_engine;
use crate::format::{BLOCK_BYTES, FileHead, PIECE_BYTES, parse_sums, piece_len};
use crate::keys;
use crate::keyspaces::DataKeyspaces;
use bytes::Bytes;
use copal_kv::ValuePart;
use copal_volume::{RangeSink, VolumeError, VolumeId};
use std::collections::HashMap;
use std::ops::{ControlFlow, Range};

/// Most pieces of a window.
const WINDOW_PIECES: usize = 256;
/// Most parts of a window: 3 MiB of lists.
const WINDOW_PARTS: usize = 1 << 16;
/// Most bytes of ranges that are put together from several pieces.
const ASSEMBLED_BYTES: u64 = 2 << 20;
/// Most bytes that are verified together, unless one range is longer.
const RUN_BYTES: u64 = 1 << 20;

/// Part of a range inside one piece.
struct RangePart {
    piece: u32,
    bytes: Range<u64>,
    range: u32,
}

impl RangePart {
    /// Its blocks.
    fn cover(&self, size: u64) -> Range<u64> {
        let start = self.bytes.start / BLOCK_BYTES * BLOCK_BYTES;
        start..self.bytes.end.next_multiple_of(BLOCK_BYTES).min(piece_len(size, self.piece))
    }
}

/// Blocks that are read together, for consecutive parts.
struct BlockRun {
    piece: u32,
    bytes: Range<u64>,
    parts: Range<usize>,
}

/// A range that is put together from several parts.
#[derive(Default)]
struct AssembledRange {
    /// Empty until the first part arrives.
    bytes: Vec<u8>,
    missing: usize,
    /// A part is damaged: the range is read by itself.
    has_failed: bool,
}

impl AssembledRange {
    /// A range in one part.
    fn of_one() -> AssembledRange {
        AssembledRange { missing: 1, ..AssembledRange::default() }
    }

    /// Gives it up. Returns whether this is its first damaged part.
    fn fail(&mut self) -> bool {
        self.bytes = Vec::new();
        !std::mem::replace(&mut self.has_failed, true)
    }
}

/// Reads and checks ranges of a body, which may overlap, be empty, reversed, or pass its end. `sink` gets each
/// once. At most `in_flight_bytes` are in flight from the engine, unless one run is longer.
/// # Errors
/// Not `Corrupt`, which is the answer of the ranges on the damage.
pub(crate) fn read_ranges(
    spaces: &DataKeyspaces,
    vid: VolumeId,
    head: &FileHead,
    ranges: &[Range<u64>],
    in_flight_bytes: u64,
    sink: &mut RangeSink<'_>,
) -> Result<(), VolumeError> {
    let mut reader = BodyRangeReader { spaces, vid, head, ranges, in_flight_bytes, sink };
    match head.inline.is_some() || body::is_single_block(head.size) {
        true => reader.read_short().map(drop),
        false => reader.read_pieces().map(drop),
    }
}

struct BodyRangeReader<'a, 'b> {
    spaces: &'a DataKeyspaces,
    vid: VolumeId,
    head: &'a FileHead,
    ranges: &'a [Range<u64>],
    in_flight_bytes: u64,
    sink: &'a mut RangeSink<'b>,
}

/// `Break`: the sink ended the call.
type Flow = Result<ControlFlow<()>, VolumeError>;

impl BodyRangeReader<'_, '_> {
    /// The range, inside the file.
    fn clamped(&self, index: u32) -> Range<u64> {
        let range = &self.ranges[index as usize];
        let end = range.end.min(self.head.size);
        range.start.min(end)..end
    }

    fn answer(&mut self, index: u32, answer: Result<Bytes, VolumeError>) -> ControlFlow<()> {
        (self.sink)(index as usize, answer)
    }

    /// Reads one range by itself.
    fn read_alone(&mut self, index: u32) -> Flow {
        match body::read(self.spaces, self.vid, self.head, self.clamped(index)) {
            Err(error) if !error.is_corruption() => Err(error),
            answer => Ok(self.answer(index, answer)),
        }
    }

    /// A body of one block is read once.
    fn read_short(&mut self) -> Flow {
        let body = body::read(self.spaces, self.vid, self.head, 0..self.head.size);
        for index in 0..self.ranges.len() as u32 {
            let range = self.clamped(index);
            let flow = match &body {
                Ok(body) => self.answer(index, Ok(body.slice(range.start as usize..range.end as usize))),
                Err(_) => self.read_alone(index)?,
            };
            if flow.is_break() {
                return Ok(flow);
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn read_pieces(&mut self) -> Flow {
        let mut order: Vec<u32> = (0..self.ranges.len() as u32).collect();
        order.sort_by_key(|&index| self.ranges[index as usize].start);
        let mut rest = &order[..];
        while !rest.is_empty() {
            let (mut parts, mut assembled, mut alone) = (Vec::new(), HashMap::new(), Vec::new());
            let taken = self.take_window(rest, &mut parts, &mut assembled, &mut alone)?;
            let Some(taken) = taken else { return Ok(ControlFlow::Break(())) };
            rest = &rest[taken..];
            if self.read_window(parts, assembled, &mut alone)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
            for index in alone {
                if self.read_alone(index)?.is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Takes the next ranges of `order`, and answers empty ones. Returns their number; `None`: the sink ended
    /// the call.
    fn take_window(
        &mut self,
        order: &[u32],
        parts: &mut Vec<RangePart>,
        assembled: &mut HashMap<u32, AssembledRange>,
        alone: &mut Vec<u32>,
    ) -> Result<Option<usize>, VolumeError> {
        let (mut pieces, mut assembled_bytes) = (0, 0);
        for (taken, &index) in order.iter().enumerate() {
            let range = self.clamped(index);
            if range.is_empty() {
                if self.answer(index, Ok(Bytes::new())).is_break() {
                    return Ok(None);
                }
                continue;
            }
            let (first, last) = (range.start / PIECE_BYTES, (range.end - 1) / PIECE_BYTES);
            let is_new = parts.last().is_none_or(|part: &RangePart| u64::from(part.piece) != first);
            if pieces + usize::from(is_new) > WINDOW_PIECES || parts.len() + alone.len() > WINDOW_PARTS {
                return Ok(Some(taken));
            }
            let len = range.end - range.start;
            if first < last && assembled_bytes + len > ASSEMBLED_BYTES {
                alone.push(index);
                continue;
            }
            pieces += usize::from(is_new) + (last - first) as usize;
            for piece in first..=last {
                let at = piece * PIECE_BYTES;
                let bytes = range.start.saturating_sub(at)..(range.end - at).min(PIECE_BYTES);
                parts.push(RangePart { piece: piece as u32, bytes, range: index });
            }
            if first < last {
                assembled_bytes += len;
                let missing = (last - first + 1) as usize;
                assembled.insert(index, AssembledRange { missing, ..AssembledRange::default() });
            }
        }
        Ok(Some(order.len()))
    }

    /// Reads all parts; ranges on damage go to `alone`.
    fn read_window(
        &mut self,
        mut parts: Vec<RangePart>,
        mut assembled: HashMap<u32, AssembledRange>,
        alone: &mut Vec<u32>,
    ) -> Flow {
        parts.sort_by_key(|part| (part.piece, part.bytes.start));
        let mut pieces: Vec<u32> = parts.iter().map(|part| part.piece).collect();
        pieces.dedup();
        let keys: Vec<_> = pieces.iter().map(|piece| keys::piece(self.vid, self.head.fid, *piece)).collect();
        let sums = self.sums(&pieces, &keys)?;
        let runs = self.runs(&mut parts, &mut assembled);
        let place = |piece: u32| pieces.binary_search(&piece).unwrap_or(usize::MAX);
        let values: Vec<ValuePart> =
            runs.iter().map(|run| ValuePart { key: place(run.piece), bytes: run.bytes.clone() }).collect();
        let mut failed = Ok(ControlFlow::Continue(()));
        let (spaces, in_flight_bytes) = (self.spaces, self.in_flight_bytes);
        let read = spaces.extents.read_parts(&keys, &values, in_flight_bytes, &mut |index, answer| {
            let run = &runs[index];
            let parts = &parts[run.parts.clone()];
            let piece = values[index].key;
            let checked = match answer.map_err(|error| of_engine(&error)) {
                Ok(Some(bytes)) => {
                    let known = sums.get(piece).and_then(Option::as_deref);
                    known.filter(|sums| self.is_sound(run, &keys[piece], sums, &bytes)).map(|_| bytes)
                }
                Ok(None) => None,
                Err(error) if error.is_corruption() => None,
                Err(error) => {
                    failed = Err(error);
                    return ControlFlow::Break(());
                }
            };
            let Some(bytes) = checked else {
                for part in parts {
                    let is_first = assembled.get_mut(&part.range).is_none_or(AssembledRange::fail);
                    alone.extend(is_first.then_some(part.range));
                }
                return ControlFlow::Continue(());
            };
            for part in parts {
                let start = (part.bytes.start - run.bytes.start) as usize;
                let found = bytes.slice(start..start + (part.bytes.end - part.bytes.start) as usize);
                if let Some(answer) = self.assemble(&mut assembled, part, found)
                    && self.answer(part.range, Ok(answer)).is_break()
                {
                    failed = Ok(ControlFlow::Break(()));
                    return ControlFlow::Break(());
                }
            }
            ControlFlow::Continue(())
        });
        read.map_err(|error| of_engine(&error))?;
        failed
    }

    /// The answer of the part's range, if it is complete. `None` also for a range that has failed.
    fn assemble(
        &self,
        assembled: &mut HashMap<u32, AssembledRange>,
        part: &RangePart,
        found: Bytes,
    ) -> Option<Bytes> {
        let Some(range) = assembled.get_mut(&part.range) else { return Some(found) };
        if range.has_failed {
            return None;
        }
        let whole = self.clamped(part.range);
        range.bytes.resize((whole.end - whole.start) as usize, 0);
        let at = u64::from(part.piece) * PIECE_BYTES + part.bytes.start - whole.start;
        range.bytes[at as usize..at as usize + found.len()].copy_from_slice(&found);
        range.missing -= 1;
        (range.missing == 0).then(|| Bytes::from(std::mem::take(&mut range.bytes)))
    }

    /// The checksums of pieces; `None` for damaged ones.
    fn sums(&self, pieces: &[u32], keys: &[impl AsRef<[u8]>]) -> Result<Vec<Option<Vec<u32>>>, VolumeError> {
        let rows = self.spaces.sums.multi_get(keys);
        let parse = |((piece, key), row): ((&u32, &_), Result<Option<Bytes>, copal_kv::Error>)| {
            let key: &[u8] = AsRef::as_ref(key);
            match row.map_err(|error| of_engine(&error)) {
                Ok(row) => {
                    let len = piece_len(self.head.size, *piece);
                    Ok(row.and_then(|row| parse_sums(key, &row, len).ok()))
                }
                Err(error) if error.is_corruption() => Ok(None),
                Err(error) => Err(error),
            }
        };
        pieces.iter().zip(keys).zip(rows).map(parse).collect()
    }

    /// Joins parts that share a block. A part that makes a run too long is cut behind the run's last block.
    fn runs(
        &self,
        parts: &mut Vec<RangePart>,
        assembled: &mut HashMap<u32, AssembledRange>,
    ) -> Vec<BlockRun> {
        let mut runs: Vec<BlockRun> = Vec::new();
        let mut cut = Vec::with_capacity(parts.len());
        for mut part in parts.drain(..) {
            let cover = part.cover(self.head.size);
            let shares = |run: &&mut BlockRun| {
                run.piece == part.piece && run.bytes.contains(&cover.start) && !cover.is_empty()
            };
            if let Some(run) = runs.last_mut().filter(shares) {
                let length = run.bytes.end - run.bytes.start;
                if cover.end.max(run.bytes.end) - run.bytes.start <= RUN_BYTES.max(length) {
                    run.bytes.end = run.bytes.end.max(cover.end);
                } else {
                    let end = run.bytes.end;
                    cut.push(RangePart { bytes: part.bytes.start..end, ..part });
                    part.bytes.start = end;
                    assembled.entry(part.range).or_insert_with(AssembledRange::of_one).missing += 1;
                    run.parts.end += 1;
                    let bytes = part.cover(self.head.size);
                    runs.push(BlockRun { piece: part.piece, bytes, parts: cut.len()..cut.len() });
                }
            } else {
                runs.push(BlockRun { piece: part.piece, bytes: cover, parts: cut.len()..cut.len() });
            }
            cut.push(part);
            if let Some(run) = runs.last_mut() {
                run.parts.end = cut.len();
            }
        }
        *parts = cut;
        runs
    }

    fn is_sound(&self, run: &BlockRun, key: &[u8], sums: &[u32], bytes: &[u8]) -> bool {
        bytes.len() as u64 == run.bytes.end - run.bytes.start
            && body::check_blocks(self.head, run.piece, key, sums, run.bytes.start, bytes).is_ok()
    }
}
