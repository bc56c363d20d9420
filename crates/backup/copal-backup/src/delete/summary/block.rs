//! One block of a summary vector, in memory.

use super::Geometry;

/// Bits of one block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    geometry: Geometry,
    words: Vec<u64>,
}

impl Block {
    /// A block without ids.
    pub fn new(geometry: Geometry) -> Block {
        Block { geometry, words: vec![0; geometry.block_words as usize] }
    }

    /// Removes all ids.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Adds an id of this block.
    pub fn insert(&mut self, id: &[u8; 16]) {
        for position in self.geometry.positions(id) {
            self.words[(position / 64) as usize] |= 1 << (position % 64);
        }
    }

    /// Whether an id of this block was added; sometimes true for one that was not.
    pub fn has(&self, id: &[u8; 16]) -> bool {
        self.geometry
            .positions(id)
            .all(|position| self.words[(position / 64) as usize] >> (position % 64) & 1 == 1)
    }

    /// Adds all ids of the same block of another vector. Both have one geometry.
    pub fn merge(&mut self, other: &Block) {
        debug_assert_eq!(self.geometry, other.geometry);
        for (word, other) in self.words.iter_mut().zip(&other.words) {
            *word |= other;
        }
    }

    /// As [`Block::merge`], from the bytes of a file; `None`: they have another length.
    pub(crate) fn merge_bytes(&mut self, bytes: &[u8]) -> Option<()> {
        let (words, rest) = bytes.as_chunks::<8>();
        if words.len() != self.words.len() || !rest.is_empty() {
            return None;
        }
        for (word, other) in self.words.iter_mut().zip(words) {
            *word |= u64::from_le_bytes(*other);
        }
        Some(())
    }

    /// Encodes the bits.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Probability that an id that was not added seems to be there, from the number of set bits.
    pub fn error_rate(&self) -> f64 {
        let set: u64 = self.words.iter().map(|word| u64::from(word.count_ones())).sum();
        let share = set as f64 / (self.words.len() as f64 * 64.0);
        share.powi(i32::from(self.geometry.hashes))
    }
}
