//! Ribbon banding, key by key, and back substitution.

use super::{COLUMNS, WIDTH, start};
use crate::hash::KeyHash;

/// Result of adding a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BandPlacement {
    /// The key took a free slot.
    Took,
    /// Its equations follow from those present (most likely it is the same key again).
    Implied,
    /// Its equations contradict those present; nothing changed.
    DoesNotFit,
}

/// A banded system under construction: at most one row per slot, with its lowest bit at the slot.
pub struct RibbonBand {
    rows: Vec<u64>,
    results: Vec<u16>,
}

impl RibbonBand {
    /// An empty system of `slots` slots, one of [`super::SLOT_CHOICES`].
    pub fn new(slots: u32) -> RibbonBand {
        assert!(super::SLOT_CHOICES.contains(&slots), "{slots} is no size of a Ribbon system");
        RibbonBand { rows: vec![0; slots as usize], results: vec![0; slots as usize] }
    }

    /// Slots of the system.
    pub fn slots(&self) -> u32 {
        self.rows.len() as u32
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.rows.fill(0);
        self.results.fill(0);
    }

    /// Adds a key's equations by Gaussian elimination: about 15 steps in a well-filled system.
    pub fn add(&mut self, hash: KeyHash) -> BandPlacement {
        let mut slot = start(hash, self.slots()) as usize;
        let mut row = hash.row();
        let mut result = hash.result_bits();
        while self.rows[slot] != 0 {
            row ^= self.rows[slot];
            result ^= self.results[slot];
            if row == 0 {
                return if result == 0 { BandPlacement::Implied } else { BandPlacement::DoesNotFit };
            }
            // The row ends inside the system, so a set bit is a slot of it.
            let step = row.trailing_zeros();
            row >>= step;
            slot += step as usize;
        }
        self.rows[slot] = row;
        self.results[slot] = result;
        BandPlacement::Took
    }

    /// Solves for the columns, from the last slot to the first: `slots / 64` words each, bit i of word w is
    /// slot 64 w + i. Free slots get pseudo-random bits seeded by `uid`.
    pub fn columns(&self, uid: u64) -> Vec<Vec<u64>> {
        let words = self.rows.len() / WIDTH as usize;
        let mut columns = vec![vec![0u64; words]; usize::from(COLUMNS)];
        // windows[j]: the 64 solved bits of column j after the current slot, nearest in bit 0.
        let mut windows = [0u64; COLUMNS as usize];
        let mut free = SplitMix(uid);
        for word in (0..words).rev() {
            for slot in (word * 64..word * 64 + 64).rev() {
                let row = self.rows[slot];
                if row == 0 {
                    let bits = free.next();
                    for (j, window) in windows.iter_mut().enumerate() {
                        *window = *window << 1 | (bits >> j & 1);
                    }
                } else {
                    let (rest, results) = (row >> 1, u64::from(self.results[slot]));
                    for (j, window) in windows.iter_mut().enumerate() {
                        // `count_ones() & 1` alone becomes the processor's parity flag.
                        let parity = u64::from((*window & rest).count_ones() & 1);
                        *window = *window << 1 | (parity ^ (results >> j & 1));
                    }
                }
            }
            // The window now holds exactly the slots of this word, lowest in bit 0.
            for (column, window) in columns.iter_mut().zip(&windows) {
                column[word] = *window;
            }
        }
        columns
    }
}

/// SplitMix64: the bits of free slots. Part of the format: pages must be reproducible.
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }
}
