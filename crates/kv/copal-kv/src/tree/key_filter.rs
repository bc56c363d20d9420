//! Filter of a memtable's keys: a look-up of a key that it lacks takes no lock.
//!
//! A Bloom filter with two bits per key in one word, so a probe costs one cache line. Keys are only added.
//! Invariant: the bits of a key are set before its entry can be visible to a reader.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use xxhash_rust::xxh3::xxh3_64;

/// Bytes of memtable for each byte of filter: about eight bits for each of the smallest entries.
const MEMTABLE_SHARE: u64 = 128;

/// See the module. Without words it lets every key pass.
#[derive(Debug, Default)]
pub(crate) struct KeyFilter {
    /// A power of two of words, or none.
    words: Box<[AtomicU64]>,
}

impl KeyFilter {
    /// A filter for a memtable of that size.
    pub(crate) fn for_memtable(bytes: u64) -> KeyFilter {
        let words = (bytes / MEMTABLE_SHARE / size_of::<AtomicU64>() as u64).max(1).next_power_of_two();
        KeyFilter { words: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Bytes on the heap.
    pub(crate) fn bytes(&self) -> u64 {
        size_of_val(&self.words[..]) as u64
    }

    pub(crate) fn add(&self, key: &[u8]) {
        if let Some((word, bits)) = self.place(key) {
            word.fetch_or(bits, Relaxed);
        }
    }

    /// Whether the key may have been added.
    pub(crate) fn may_have(&self, key: &[u8]) -> bool {
        self.place(key).is_none_or(|(word, bits)| word.load(Relaxed) & bits == bits)
    }

    /// The word of a key, and its bits there.
    fn place(&self, key: &[u8]) -> Option<(&AtomicU64, u64)> {
        let mask = self.words.len().checked_sub(1)?;
        let hash = xxh3_64(key);
        Some((&self.words[(hash >> 12) as usize & mask], 1 << (hash & 63) | 1 << (hash >> 6 & 63)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_added_key_passes_and_few_others_do() {
        let filter = KeyFilter::for_memtable(1 << 20);
        let keys: Vec<[u8; 8]> = (0..8192u64).map(u64::to_be_bytes).collect();
        keys.iter().for_each(|key| filter.add(key));
        assert!(keys.iter().all(|key| filter.may_have(key)));
        let others = (1 << 32..(1 << 32) + 10_000u64).filter(|other| filter.may_have(&other.to_be_bytes()));
        assert!(others.count() < 1200, "about 8 % are expected");
        assert_eq!(filter.bytes(), 8192);
    }

    #[test]
    fn a_filter_without_words_lets_every_key_pass() {
        let filter = KeyFilter::default();
        filter.add(b"a");
        assert!(filter.may_have(b"a") && filter.may_have(b"b") && filter.bytes() == 0);
        assert_eq!(KeyFilter::for_memtable(0).bytes(), 8);
    }
}
