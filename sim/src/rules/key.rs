//! A key of the simulator: position in the key order, home run, and hash.

use super::random::mix;
use copal_filter::KeyHash;

/// Seed of the simulated store.
pub(crate) const STORE_SEED: u64 = 0x00c0_9a15;

/// A key of a Get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Key {
    /// Its position in the key order: the share of keys below it, in 2^-64.
    pub(crate) position: u64,
    /// Selects the run that holds it, uniform over 64 bits; `None`: it does not exist.
    pub(crate) home: Option<u64>,
    /// Hash for the filters.
    pub(crate) hash: KeyHash,
}

impl Key {
    /// Key number `id` of `keys` existing ones, or its absent counterpart. Positions are hashed: neighbouring
    /// numbers are not neighbours in the key order.
    pub(crate) fn numbered(id: u64, keys: u64, present: bool) -> Key {
        let id = if present { id } else { id + keys };
        Key {
            position: mix(id),
            home: present.then(|| mix(id ^ 0x5555_5555_5555_5555)),
            hash: KeyHash::new(&id.to_le_bytes(), STORE_SEED),
        }
    }
}
