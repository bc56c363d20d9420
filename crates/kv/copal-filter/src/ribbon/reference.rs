//! Slow reference form: the definition bit by bit, against which the fast path is tested.

use super::{WIDTH, start};
use crate::hash::KeyHash;

/// Whether the key's equation holds in one column, slot by slot.
pub fn holds(column: &[u64], slots: u32, unit: u8, hash: KeyHash) -> bool {
    let first = start(hash, slots);
    let mut sum = false;
    for i in 0..WIDTH {
        let slot = (first + i) as usize;
        let row_bit = hash.row() >> i & 1 == 1;
        let column_bit = column[slot / 64] >> (slot % 64) & 1 == 1;
        sum ^= row_bit & column_bit;
    }
    sum == (hash.result_bits() >> unit & 1 == 1)
}

/// Whether the key's equations hold in all of `columns`, which are the first of their page.
pub fn may_contain(columns: &[Vec<u64>], slots: u32, hash: KeyHash) -> bool {
    columns.iter().enumerate().all(|(unit, column)| holds(column, slots, unit as u8, hash))
}
