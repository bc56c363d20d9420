//! Scans a whole pack from front to back: block hashes, encryption, compression, ids.

use crate::check::affected::DamagedPlaces;
use crate::packs::pack::format::{self, HEADER_BYTES};
use crate::packs::pack::reader::{FrameInflater, PackFooter, open_frame};
use crate::packs::pack_store::PackStore;
use crate::request::CheckReport;
use crate::request::error::Result;
use bytes::Bytes;
use copal_chunk::IdKey;
use copal_volume::VolumeId;
use std::ops::{ControlFlow, Range};

/// Checks the first block of a pack, which begins with its header.
pub(crate) type HeaderCheck<'h> = dyn FnMut(&mut CheckReport, &[u8]) -> Result<()> + 'h;

/// Blocks that are read with one call: those of a pack. Blocks that come early wait for those before them.
const BLOCKS_OF_A_CALL: usize = 128;

/// Reads every byte of a pack once, in order, and notes damage with its place. If `ids` is set, chunks are
/// compared with their ids. `header` gets the first block. Returns
/// whether no byte is damaged.
///
/// Memory: the blocks that are in flight together, and the frame that straddles them.
/// # Errors
/// Errors of the store that are not damage.
pub(crate) fn scan(
    pack_store: &PackStore,
    vid: VolumeId,
    footer: &PackFooter,
    ids: Option<&IdKey>,
    report: &mut CheckReport,
    places: &mut DamagedPlaces,
    header: &mut HeaderCheck<'_>,
) -> Result<bool> {
    let mut scan = PackScan {
        pack_store,
        footer,
        ids,
        report,
        places,
        is_clean: true,
        bad_blocks: Vec::new(),
        lost: Vec::new(),
        inflater: FrameInflater::new()?,
        raw: Vec::new(),
        held: Vec::new(),
        held_at: 0,
        next_slot: 0,
    };
    let hashes: Vec<&[u8]> = footer.table.chunks_exact(format::BLOCK_HASH_BYTES).collect();
    let range = |number: usize| {
        let start = (number * format::BLOCK_BYTES) as u64;
        start..(start + format::BLOCK_BYTES as u64).min(footer.hashed_end)
    };
    for first in (0..hashes.len()).step_by(BLOCKS_OF_A_CALL) {
        let last = (first + BLOCKS_OF_A_CALL).min(hashes.len());
        let ranges: Vec<Range<u64>> = (first..last).map(range).collect();
        let mut early: Vec<Option<Result<Bytes>>> = (first..last).map(|_| None).collect();
        let mut next = 0;
        let mut failed = None;
        pack_store.read_ranges((footer, vid), &ranges, &mut |index, answer| {
            early[index] = Some(answer);
            while let Some(block) = early.get_mut(next).and_then(Option::take) {
                let number = first + next;
                next += 1;
                let scanned = scan.block(number, hashes[number], range(number), block, header);
                if let Err(error) = scanned.and_then(|()| scan.frames_up_to(range(number).end)) {
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
    scan.frames_of_bad_blocks();
    debug_assert!(footer.rows.is_empty() || footer.rows[0].offset as usize == HEADER_BYTES);
    Ok(scan.is_clean)
}

/// Progress of a scan in its pack.
struct PackScan<'a> {
    pack_store: &'a PackStore,
    footer: &'a PackFooter,
    ids: Option<&'a IdKey>,
    report: &'a mut CheckReport,
    places: &'a mut DamagedPlaces,
    is_clean: bool,
    /// Blocks with a wrong hash, with their number in the report.
    bad_blocks: Vec<(Range<u64>, usize)>,
    /// Lost frames.
    lost: Vec<u32>,
    inflater: FrameInflater,
    raw: Vec<u8>,
    /// Bytes from `held_at` on that the next frame may need.
    held: Vec<u8>,
    held_at: u64,
    next_slot: usize,
}

impl PackScan<'_> {
    /// Adds one block to `held`.
    fn block(
        &mut self,
        number: usize,
        hash: &[u8],
        range: Range<u64>,
        block: Result<Bytes>,
        header: &mut HeaderCheck<'_>,
    ) -> Result<()> {
        let damaged = |detail: String| self.footer.damaged(format!("block {number}: {detail}"));
        match block {
            Ok(bytes) => {
                if number == 0 {
                    header(self.report, &bytes)?;
                }
                if format::block_hash(&bytes)[..] != *hash {
                    self.is_clean = false;
                    let noted = self.report.note_at(damaged("its bytes do not fit their hash".into()))?;
                    self.bad_blocks.extend(noted.map(|noted| (range, noted)));
                }
                self.held.extend_from_slice(&bytes);
            }
            Err(error) => {
                self.is_clean = false;
                let noted = self.report.note_at(error)?;
                // Frames in the gap fail to decrypt below and are noted one by one.
                self.held.resize(self.held.len() + (range.end - range.start) as usize, 0);
                self.bad_blocks.extend(noted.map(|noted| (range, noted)));
            }
        }
        Ok(())
    }

    /// Decrypts the frames that end at `end` or before; keeps the bytes that the next frame needs.
    fn frames_up_to(&mut self, end: u64) -> Result<()> {
        let footer = self.footer;
        while footer.rows.get(self.next_slot).is_some_and(|row| row.end() <= end) {
            self.frame(self.next_slot)?;
            self.next_slot += 1;
        }
        // After the last frame no bytes are needed.
        let keep_from =
            footer.rows.get(self.next_slot).map_or(end, |row| u64::from(row.offset).clamp(self.held_at, end));
        self.held.drain(..(keep_from - self.held_at) as usize);
        self.held_at = keep_from;
        Ok(())
    }

    fn frame(&mut self, index: usize) -> Result<()> {
        let (footer, slot) = (self.footer, index as u32);
        let row = &footer.rows[index];
        let from = (u64::from(row.offset) - self.held_at) as usize;
        let encrypted = &mut self.held[from..from + row.stored as usize];
        let opened = open_frame(footer, slot, encrypted).and_then(|payload| {
            let inflated = self.inflater.inflate(row, payload, &mut self.raw);
            let raw = inflated.map_err(|detail| footer.damaged(format!("frame {slot}: {detail}")))?;
            if self.ids.is_some_and(|key| key.id(raw).short() != row.id) {
                return Err(footer.damaged(format!("frame {slot}: its bytes do not fit its id")));
            }
            Ok(())
        });
        match opened {
            Ok(()) => {
                self.report.decoded_frames += 1;
                self.report.decoded_bytes += u64::from(row.stored);
            }
            Err(error) => {
                self.is_clean = false;
                self.lost.push(slot);
                self.pack_store.note_damaged(footer, slot);
                self.places.add(footer.number, slot, self.report.note_at(error)?);
            }
        }
        Ok(())
    }

    /// A lost frame in a damaged block is also counted for that block.
    fn frames_of_bad_blocks(&mut self) {
        for (block, noted) in &self.bad_blocks {
            let overlaps = |slot: &u32| {
                let row = &self.footer.rows[*slot as usize];
                u64::from(row.offset) < block.end && row.end() > block.start
            };
            for slot in self.lost.iter().copied().filter(overlaps) {
                self.places.add(self.footer.number, slot, Some(*noted));
            }
        }
    }
}
