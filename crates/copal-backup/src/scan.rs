//! Reads a whole pack from front to back: block hashes, seals, compression, ids.

use crate::error::Result;
use crate::pack::format::{self, HEADER_BYTES};
use crate::pack::reader::{Footer, Inflater, open_frame};
use crate::request::CheckReport;
use crate::vault::Vault;
use copal_chunk::IdKey;
use copal_volume::VolumeId;

/// Reads every byte of a pack and notes what is not as it was written. `ids` checks chunks against theirs.
///
/// Memory: one block and the frame that straddles it.
/// # Errors
/// Those of the store that are no damage.
pub(crate) fn scan(
    vault: &Vault,
    vid: VolumeId,
    footer: &Footer,
    ids: Option<&IdKey>,
    report: &mut CheckReport,
) -> Result<()> {
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
        match vault.read(vid, footer.number, start..end) {
            Ok(bytes) => {
                if format::block_hash(&bytes)[..] != *hash {
                    report.note(damaged("its bytes do not fit their hash".into()), None)?;
                }
                held.extend_from_slice(&bytes);
            }
            Err(error) => {
                report.note(error, None)?;
                // Frames in the gap fail to open below and are noted one by one.
                held.resize(held.len() + (end - start) as usize, 0);
            }
        }
        while let Some(row) = footer.rows.get(next_slot).filter(|row| row.end() <= end) {
            let slot = next_slot as u32;
            next_slot += 1;
            let from = (u64::from(row.offset) - held_at) as usize;
            let sealed = &mut held[from..from + row.stored as usize];
            let payload = match open_frame(footer, slot, sealed) {
                Ok(payload) => payload,
                Err(error) => {
                    report.note(error, None)?;
                    continue;
                }
            };
            match inflater.inflate(row, payload, &mut raw) {
                Err(detail) => report.note(footer.damaged(format!("frame {slot}: {detail}")), None)?,
                Ok(()) if ids.is_some_and(|key| key.id(&raw).short() != row.id) => {
                    report.note(
                        footer.damaged(format!("frame {slot}: its bytes do not fit its id")),
                        None,
                    )?;
                }
                Ok(()) => {
                    report.decoded_frames += 1;
                    report.decoded_bytes += u64::from(row.stored);
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
    debug_assert!(footer.rows.is_empty() || footer.rows[0].offset as usize == HEADER_BYTES);
    Ok(())
}
