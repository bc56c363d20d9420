//! A key as the simulator needs it: where it stands in the key order, where it lives, and its hash.

use super::random::mix;
use copal_filter::KeyHash;

/// Seed of the simulated store.
pub(super) const STORE_SEED: u64 = 0x00c0_9a15;

/// A key that somebody asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Key {
    /// Its place in the key order: the part of all keys below it, in 2^-64.
    pub(super) position: u64,
    /// Decides in which run it lives, even over 64 bits; `None`: it does not exist.
    pub(super) home: Option<u64>,
    /// What filters see of it.
    pub(super) hash: KeyHash,
}

impl Key {
    /// Key number `id` of `keys` existing ones, or its namesake that does not exist. Hashed: neighbours in
    /// number are no neighbours in the key order.
    pub(super) fn numbered(id: u64, keys: u64, present: bool) -> Key {
        let id = if present { id } else { id + keys };
        Key {
            position: mix(id),
            home: present.then(|| mix(id ^ 0x5555_5555_5555_5555)),
            hash: KeyHash::new(&id.to_le_bytes(), STORE_SEED),
        }
    }
}
