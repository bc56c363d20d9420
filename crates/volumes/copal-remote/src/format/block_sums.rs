//! Checksums of the blocks of a body, so that ranges verify (VOL-6).

use copal_codec::crc32c;
use std::ops::Range;

/// Bytes of a body with one checksum.
pub(crate) const BLOCK_BYTES: u64 = 64 << 10;
const SUM_BYTES: u64 = 4;

/// Bytes of the checksums of a body of `size` bytes.
pub(crate) fn sums_bytes(size: u64) -> u64 {
    size.div_ceil(BLOCK_BYTES) * SUM_BYTES
}

/// The whole blocks that hold `range`, as a range of the body; `range` lies inside it.
pub(crate) fn blocks_around(range: &Range<u64>, size: u64) -> Range<u64> {
    if range.is_empty() {
        return range.start..range.start;
    }
    let start = range.start / BLOCK_BYTES * BLOCK_BYTES;
    start..range.end.next_multiple_of(BLOCK_BYTES).min(size)
}

/// Checksums of a body that is appended to.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockSums {
    sums: Vec<u8>,
    /// Of the last block, which is not full.
    open: u32,
    open_bytes: u64,
}

impl BlockSums {
    /// Adds bytes at the end of the body.
    pub(crate) fn add(&mut self, mut data: &[u8]) {
        while !data.is_empty() {
            let take = (BLOCK_BYTES - self.open_bytes).min(data.len() as u64) as usize;
            let (now, rest) = data.split_at(take);
            self.open = crc32c(self.open, now);
            self.open_bytes += take as u64;
            if self.open_bytes == BLOCK_BYTES {
                self.close();
            }
            data = rest;
        }
    }

    fn close(&mut self) {
        self.sums.extend_from_slice(&self.open.to_le_bytes());
        (self.open, self.open_bytes) = (0, 0);
    }

    /// The checksums, little-endian, one after the other.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        if self.open_bytes > 0 {
            self.close();
        }
        self.sums
    }
}

/// Whether `blocks`, whole blocks of a body, have the checksums `sums`, those of the same blocks.
pub(crate) fn agree(blocks: &[u8], sums: &[u8]) -> bool {
    let expected = sums.chunks_exact(SUM_BYTES as usize);
    expected.len() == blocks.len().div_ceil(BLOCK_BYTES as usize)
        && blocks
            .chunks(BLOCK_BYTES as usize)
            .zip(expected)
            .all(|(block, sum)| crc32c(0, block).to_le_bytes() == sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_pieces_are_those_of_the_whole() {
        let body: Vec<u8> = (0..3 * BLOCK_BYTES + 77).map(|i| (i * 31 % 251) as u8).collect();
        let mut pieces = BlockSums::default();
        for piece in body.chunks(40_961) {
            pieces.add(piece);
        }
        let mut whole = BlockSums::default();
        whole.add(&body);
        let sums = whole.finish();
        assert_eq!(pieces.finish(), sums);
        assert_eq!(sums.len() as u64, sums_bytes(body.len() as u64));
        assert!(agree(&body, &sums));
        let last = body.len() - 1;
        let mut other = body.clone();
        other[last] ^= 1;
        assert!(!agree(&other, &sums));
        assert!(!agree(&body[..last - 77], &sums), "a block is missing");
    }

    #[test]
    fn ranges_grow_to_whole_blocks_inside_the_body() {
        let size = 3 * BLOCK_BYTES + 5;
        assert_eq!(blocks_around(&(0..1), size), 0..BLOCK_BYTES);
        assert_eq!(blocks_around(&(BLOCK_BYTES..BLOCK_BYTES + 1), size), BLOCK_BYTES..2 * BLOCK_BYTES);
        assert_eq!(blocks_around(&(BLOCK_BYTES - 1..size), size), 0..size);
        assert!(blocks_around(&(9..9), size).is_empty());
    }
}
