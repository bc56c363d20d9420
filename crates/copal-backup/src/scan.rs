//! Reads a whole pack from front to back: block hashes, encryption, compression, ids.

use crate::affected::Places;
use crate::error::Result;
use crate::pack::format::{self, HEADER_BYTES};
use crate::pack::reader::{Footer, Inflater, open_frame};
use crate::pack_store::PackStore;
use crate::request::CheckReport;
use copal_chunk::IdKey;
use copal_volume::VolumeId;
use std::ops::Range;

/// Reads every byte of a pack and notes what is not as it was written, and where. `ids` checks chunks against theirs.
///
/// Memory: one block and the frame that straddles it.
/// # Errors
/// Those of the store that are no damage.
pub(crate) fn scan(
    pack_store: &PackStore,
    vid: VolumeId,
    footer: &Footer,
    ids: Option<&IdKey>,
    report: &mut CheckReport,
    places: &mut Places,
) -> Result<()> {
    // Blocks that do not fit, with their number in the report; frames that are lost.
    let mut bad_blocks: Vec<(Range<u64>, usize)> = Vec::new();
    let mut lost: Vec<u32> = Vec::new();
    let mut inflater = Inflater::new()?;
    let mut raw = Vec::new();
    let mut held: Vec<u8> = Vec::new();
    let mut held_at = 0u64;
    let mut next_slot = 0usize;
    let blocks = footer.table.chunks_exact(format::BLOCK_HASH_BYTES);
    for (number, hash) in blocks.enumerate() {
        let start = (number * format::BLOCK_BYTES) as u64;
        let end = (start + format::BLOCK_BYTES as u64).min(footer.hashed_end);
        let damaged = |detail: String| footer.damaged(format!("block {number}: {detail}"));
        match pack_store.read(vid, footer.number, start..end) {
            Ok(bytes) => {
                if format::block_hash(&bytes)[..] != *hash {
                    let noted = report.note_at(damaged("its bytes do not fit their hash".into()))?;
                    bad_blocks.extend(noted.map(|noted| (start..end, noted)));
                }
                held.extend_from_slice(&bytes);
            }
            Err(error) => {
                let noted = report.note_at(error)?;
                bad_blocks.extend(noted.map(|noted| (start..end, noted)));
                // Frames in the gap fail to open below and are noted one by one.
                held.resize(held.len() + (end - start) as usize, 0);
            }
        }
        while let Some(row) = footer.rows.get(next_slot).filter(|row| row.end() <= end) {
            let slot = next_slot as u32;
            next_slot += 1;
            let from = (u64::from(row.offset) - held_at) as usize;
            let encrypted = &mut held[from..from + row.stored as usize];
            let opened = open_frame(footer, slot, encrypted).and_then(|payload| {
                let inflated = inflater.inflate(row, payload, &mut raw);
                inflated.map_err(|detail| footer.damaged(format!("frame {slot}: {detail}")))?;
                if ids.is_some_and(|key| key.id(&raw).short() != row.id) {
                    return Err(footer.damaged(format!("frame {slot}: its bytes do not fit its id")));
                }
                Ok(())
            });
            match opened {
                Ok(()) => {
                    report.decoded_frames += 1;
                    report.decoded_bytes += u64::from(row.stored);
                }
                Err(error) => {
                    lost.push(slot);
                    pack_store.note_damaged(footer, slot);
                    places.add(footer.number, slot, report.note_at(error)?);
                }
            }
        }
        // Keep what the next frame has in this block; without one nothing is needed any more.
        let keep_from = footer
            .rows
            .get(next_slot)
            .map_or(end, |row| u64::from(row.offset).clamp(held_at, end));
        held.drain(..(keep_from - held_at) as usize);
        held_at = keep_from;
    }
    for (block, noted) in bad_blocks {
        let overlaps = |slot: &u32| {
            let row = &footer.rows[*slot as usize];
            u64::from(row.offset) < block.end && row.end() > block.start
        };
        for slot in lost.iter().copied().filter(overlaps) {
            places.add(footer.number, slot, Some(noted));
        }
    }
    debug_assert!(footer.rows.is_empty() || footer.rows[0].offset as usize == HEADER_BYTES);
    Ok(())
}
