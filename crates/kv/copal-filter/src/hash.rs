//! Key hash: one hash of a user key for all partitions, units and tables of a store.
//!
//! Invariant: row, start and result bits come from disjoint bits of the hash.

use xxhash_rust::xxh3::{xxh3_64_with_seed, xxh3_128_with_seed};

/// XXH3-128 of a user key under the store's seed; computed once per look-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyHash(pub u128);

impl KeyHash {
    /// Hashes `user_key` under `store_seed`.
    pub fn new(user_key: &[u8], store_seed: u64) -> KeyHash {
        KeyHash(xxh3_128_with_seed(user_key, store_seed))
    }

    /// Ribbon row: the low 64 bits, lowest bit set so that the row begins at its start.
    pub(crate) fn row(self) -> u64 {
        self.0 as u64 | 1
    }

    /// The high 32 bits, which determine the start of the row by multiply-shift.
    pub(crate) fn start_bits(self) -> u32 {
        (self.0 >> 96) as u32
    }

    /// The 15 bits below the start bits: result bit `j` belongs to column `j`.
    pub(crate) fn result_bits(self) -> u16 {
        (self.0 >> 81) as u16 & 0x7fff
    }

    /// An independent 64-bit hash for unit `unit` of the Bloom kinds.
    pub(crate) fn unit_hash(self, unit: u64) -> u64 {
        xxh3_64_with_seed(&self.0.to_le_bytes(), unit)
    }
}

/// Identifies a store's seed without revealing it: a page built with another seed is refused.
pub(crate) fn seed_id(store_seed: u64) -> u32 {
    xxh3_64_with_seed(b"copal filter seed", store_seed) as u32
}
