//! Parts of blocks at the ends of runs of chunks, until the rest of their block is there.
//!
//! Chunks end anywhere, and come in any order. A target gets whole blocks: a device would otherwise read the
//! rest of a block first, and two threads might write one block at once.
//!
//! Memory: at most one block for each chunk of the part of the disk that is being restored, half of one on
//! average.

use parking_lot::Mutex;
use std::collections::HashMap;

/// Size of a block. Holes of a snapshot are whole blocks of this size.
pub(super) const BLOCK_BYTES: usize = 4096;

/// A part of a block: its start in the block, and its bytes.
type BlockPart = (usize, Vec<u8>);

/// The incomplete blocks of one disk.
pub(super) struct BlockEdges {
    size_bytes: u64,
    parts: Mutex<HashMap<u64, Vec<BlockPart>>>,
}

impl BlockEdges {
    /// No blocks yet, of a disk of this size.
    pub(super) fn new(size_bytes: u64) -> BlockEdges {
        BlockEdges { size_bytes, parts: Mutex::default() }
    }

    /// Adds bytes of a block, from `start` on. Returns the block if it is complete now.
    pub(super) fn join(&self, block: u64, start: usize, bytes: &[u8]) -> Option<Vec<u8>> {
        let rest = self.size_bytes.saturating_sub(block * BLOCK_BYTES as u64);
        let whole_bytes = rest.min(BLOCK_BYTES as u64) as usize;
        let mut parts = self.parts.lock();
        let known = parts.get(&block).map_or(0, |known| known.iter().map(|(_, part)| part.len()).sum());
        if known + bytes.len() < whole_bytes {
            parts.entry(block).or_default().push((start, bytes.to_vec()));
            return None;
        }
        let known = parts.remove(&block).unwrap_or_default();
        drop(parts);
        let mut whole = vec![0; whole_bytes];
        whole[start..start + bytes.len()].copy_from_slice(bytes);
        for (start, part) in known {
            whole[start..start + part.len()].copy_from_slice(&part);
        }
        Some(whole)
    }

    /// Takes the parts of blocks that never became complete: beside a hole that is no whole block.
    pub(super) fn take_rest(&self) -> Vec<(u64, Vec<u8>)> {
        let parts = std::mem::take(&mut *self.parts.lock());
        let place = |block: u64, start: usize| block * BLOCK_BYTES as u64 + start as u64;
        let parts = parts.into_iter().flat_map(|(block, parts)| {
            parts.into_iter().map(move |(start, bytes)| (place(block, start), bytes))
        });
        parts.collect()
    }
}
