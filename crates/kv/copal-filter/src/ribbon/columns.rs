//! Loaded columns, interleaved by word, so that one probe touches one or two adjacent places in memory.

use super::start;
use crate::hash::KeyHash;

/// Columns compared without a branch between them.
const STRIDE: usize = 4;

/// The first `k` columns of a partition in memory: `k` words for slots 0..64, then `k` words for 64..128, ...
#[derive(Clone, Debug)]
pub struct UnitColumns {
    words: Box<[u64]>,
    slots: u32,
    count: u8,
}

impl UnitColumns {
    /// Interleaves the columns of one system. All have `slots / 64` words.
    ///
    /// # Panics
    /// When the columns differ in length or their length is not that of a Ribbon system: the page was not
    /// checked.
    pub fn interleave<C: AsRef<[u64]>>(slots: u32, columns: &[C]) -> UnitColumns {
        assert!(super::SLOT_CHOICES.contains(&slots) && columns.len() <= usize::from(super::COLUMNS));
        let per_column = (slots / 64) as usize;
        let mut words = Vec::with_capacity(per_column * columns.len());
        for i in 0..per_column {
            for column in columns {
                let column = column.as_ref();
                assert_eq!(column.len(), per_column);
                words.push(column[i]);
            }
        }
        UnitColumns { words: words.into_boxed_slice(), slots, count: columns.len() as u8 }
    }

    /// Number of loaded columns.
    pub fn count(&self) -> u8 {
        self.count
    }

    /// The first `count` columns, or all.
    #[must_use]
    pub fn first(&self, count: u8) -> UnitColumns {
        let count = count.min(self.count);
        let mut words = Vec::with_capacity((self.slots / 64) as usize * usize::from(count));
        for group in self.words.chunks_exact(usize::from(self.count).max(1)) {
            words.extend_from_slice(&group[..usize::from(count)]);
        }
        UnitColumns { words: words.into_boxed_slice(), slots: self.slots, count }
    }

    /// Bytes of heap memory of this value.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// False: the key is not in the partition. True with probability 2^-k for an absent key.
    ///
    /// Stops at the first four columns that differ, which for an absent key are mostly the first four.
    #[inline]
    pub fn may_contain(&self, hash: KeyHash) -> bool {
        let k = usize::from(self.count);
        let slot = start(hash, self.slots);
        let at = (slot / 64) as usize * k;
        let row = hash.row();
        let results = u32::from(hash.result_bits());
        let offset = slot % 64;
        // At offset 0 the row lies in one word, perhaps the last: then the other word is masked out and may
        // be any.
        let next = if offset == 0 { at } else { at + k };
        let (low_row, high_row) = (row << offset, if offset == 0 { 0 } else { row >> (64 - offset) });
        let (low, high) = (&self.words[at..at + k], &self.words[next..next + k]);
        let differ = |column: usize, results: u32, low: u64, high: u64| {
            // Parity is linear: the sum of both words has the parity of both together.
            let sum = (low & low_row) ^ (high & high_row);
            (sum.count_ones() ^ results >> column) & 1
        };
        let (mut lows, mut highs) = (low.chunks_exact(STRIDE), high.chunks_exact(STRIDE));
        let mut results = results;
        for (low, high) in lows.by_ref().zip(highs.by_ref()) {
            // No branch between these, since the first to differ is random.
            let differ =
                (0..STRIDE).fold(0, |any, column| any | differ(column, results, low[column], high[column]));
            if differ != 0 {
                return false;
            }
            results >>= STRIDE;
        }
        let rest = lows.remainder().iter().zip(highs.remainder()).enumerate();
        rest.fold(0, |any, (column, (&low, &high))| any | differ(column, results, low, high)) == 0
    }
}
