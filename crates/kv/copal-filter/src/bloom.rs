//! Bloom units of 4 bits per key and 3 probes: the unit of the paper.
//!
//! Paper: elasticbf §3.1. Each unit has its own hash function, so FPRs multiply: .1469^k.

use crate::hash::KeyHash;

/// Units per page.
pub(crate) const UNITS: u8 = 6;
const BITS_PER_KEY: u64 = 4;
const PROBES: u32 = 3;
/// A probe position comes from 21 bits of the unit's hash.
const PROBE_BITS: u32 = 21;

/// The first units of a partition's page in memory, one after another.
#[derive(Clone, Debug)]
pub struct BloomUnits {
    words: Box<[u64]>,
    unit_words: u32,
    count: u8,
}

impl BloomUnits {
    /// Concatenates the words of the loaded units; each has `unit_words` words.
    ///
    /// # Panics
    /// When `words` is not `count` units long.
    pub fn new(words: Vec<u64>, unit_words: u32, count: u8) -> BloomUnits {
        assert_eq!(words.len(), unit_words as usize * usize::from(count));
        BloomUnits { words: words.into_boxed_slice(), unit_words, count }
    }

    /// Number of loaded units.
    pub fn count(&self) -> u8 {
        self.count
    }

    /// The first `count` units, or all.
    #[must_use]
    pub fn first(&self, count: u8) -> BloomUnits {
        let count = count.min(self.count);
        let words = &self.words[..self.unit_words as usize * usize::from(count)];
        BloomUnits::new(words.to_vec(), self.unit_words, count)
    }

    /// Bytes of heap memory of this value.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// False: the key is not in the partition.
    pub fn may_contain(&self, hash: KeyHash) -> bool {
        let units = self.words.chunks_exact(self.unit_words as usize);
        units.enumerate().all(|(unit, words)| admits(words, unit as u8, hash))
    }
}

/// Whether unit number `unit` admits the key.
pub(crate) fn admits(words: &[u64], unit: u8, hash: KeyHash) -> bool {
    positions(hash, unit, words.len() as u32 * 64).all(|at| words[(at / 64) as usize] >> (at % 64) & 1 == 1)
}

fn positions(hash: KeyHash, unit: u8, bits: u32) -> impl Iterator<Item = u32> {
    let h = hash.unit_hash(u64::from(unit));
    (0..PROBES).map(move |i| {
        let part = h >> (i * PROBE_BITS) & ((1 << PROBE_BITS) - 1);
        ((part * u64::from(bits)) >> PROBE_BITS) as u32
    })
}

/// Bytes of one unit over `keys` keys.
pub(crate) fn unit_bytes(keys: u32) -> u32 {
    (u64::from(keys) * BITS_PER_KEY).div_ceil(64).max(1) as u32 * 8
}

/// Probability that `units` loaded units admit an absent key.
pub(crate) fn fpr(units: u8) -> f64 {
    (1.0 - (-f64::from(PROBES) / BITS_PER_KEY as f64).exp()).powi(PROBES as i32 * i32::from(units))
}

/// Bits of a unit, and all units over the keys of one partition.
pub(crate) fn build(hashes: &[KeyHash]) -> (u32, Vec<Vec<u64>>) {
    let unit_bytes = unit_bytes(hashes.len() as u32);
    let mut units = vec![vec![0u64; unit_bytes as usize / 8]; usize::from(UNITS)];
    for (unit, words) in units.iter_mut().enumerate() {
        for &hash in hashes {
            for at in positions(hash, unit as u8, unit_bytes * 8) {
                words[(at / 64) as usize] |= 1 << (at % 64);
            }
        }
    }
    (unit_bytes * 8, units)
}
