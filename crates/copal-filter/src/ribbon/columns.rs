//! Loaded columns: interleaved by word, so that one probe touches one or two neighbouring spots.

use super::start;
use crate::hash::KeyHash;

/// The first `k` columns of a partition in memory: `k` words for slots 0..64, then `k` words for 64..128, ...
#[derive(Clone, Debug)]
pub struct Columns {
    words: Box<[u64]>,
    slots: u32,
    count: u8,
}

impl Columns {
    /// Interleaves the columns of one system. All have `slots / 64` words.
    ///
    /// # Panics
    /// When the columns differ in length or their length is not that of a Ribbon system: the page was not
    /// checked.
    pub fn interleave<C: AsRef<[u64]>>(slots: u32, columns: &[C]) -> Columns {
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
        Columns {
            words: words.into_boxed_slice(),
            slots,
            count: columns.len() as u8,
        }
    }

    /// Columns loaded.
    pub fn count(&self) -> u8 {
        self.count
    }

    /// The first `count` of them, or all.
    #[must_use]
    pub fn first(&self, count: u8) -> Columns {
        let count = count.min(self.count);
        let mut words = Vec::with_capacity((self.slots / 64) as usize * usize::from(count));
        for group in self.words.chunks_exact(usize::from(self.count).max(1)) {
            words.extend_from_slice(&group[..usize::from(count)]);
        }
        Columns {
            words: words.into_boxed_slice(),
            slots: self.slots,
            count,
        }
    }

    /// Bytes of memory behind this value.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// False: the key is not in the partition. True with probability 2^-k for an absent key.
    /// Stops at the first column that differs: two columns on average for an absent key.
    #[inline]
    pub fn may_contain(&self, hash: KeyHash) -> bool {
        let k = usize::from(self.count);
        let slot = start(hash, self.slots);
        let at = (slot / 64) as usize * k;
        let row = hash.row();
        let mut results = u32::from(hash.result_bits());
        let offset = slot % 64;
        if offset == 0 {
            for &word in &self.words[at..at + k] {
                if (word & row).count_ones() & 1 != results & 1 {
                    return false;
                }
                results >>= 1;
            }
        } else {
            // slot <= slots - 64 and offset > 0, so a word follows.
            let (low, high) = self.words[at..at + 2 * k].split_at(k);
            for (&low, &high) in low.iter().zip(high) {
                let word = low >> offset | high << (64 - offset);
                if (word & row).count_ones() & 1 != results & 1 {
                    return false;
                }
                results >>= 1;
            }
        }
        true
    }
}
