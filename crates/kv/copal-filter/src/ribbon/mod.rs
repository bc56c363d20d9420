//! Ribbon columns: 15 one-bit filters from one banded linear system.
//!
//! Each key x gives an equation per column j: `row(x) . z_j = r_j(x)`, where `row(x)` is 64 bits wide and
//! begins at slot `start(x)`. Banding ([`RibbonBand`]) happens as keys are added; back substitution yields
//! the columns z_j; a query ([`UnitColumns`]) checks the equations of the loaded columns.
//!
//! Paper: elasticbf §3.1 (filter units). The law FPR(k) = FPR(1)^k holds here with equality: for an absent
//! key `row . z_j` is a fixed bit and `r_j` an independent fair one.
//! Invariants
//! - Every row lies inside the system: start <= slots - 64.
//! - A key that does not fit leaves the band unchanged.
//!
//! This is not homogeneous Ribbon (all r = 0): there an absent key whose row lies in the span of the stored
//! rows would match all columns at once.

mod band;
mod columns;
pub mod reference;

pub use band::{BandPlacement, RibbonBand};
pub use columns::UnitColumns;

use crate::{error::DoesNotFit, hash::KeyHash};

/// Columns of every Ribbon page.
pub const COLUMNS: u8 = 15;
/// Slots of a full system; smaller ones are for the ends of tables and for partitions of large values.
pub const MAX_SLOTS: u32 = 2048;
/// Permitted systems of a page, ascending.
pub const SLOT_CHOICES: [u32; 4] = [256, 512, 1024, 2048];
/// Bits of a row.
const WIDTH: u32 = 64;
/// Starts this far beyond either end are clamped to it, so that the ends fill as well as the middle.
const SMASH: u32 = 16;

/// First slot of the key's row in a system of `slots` slots.
pub(crate) fn start(hash: KeyHash, slots: u32) -> u32 {
    let last = slots - WIDTH;
    let spread = u64::from(last + 1 + 2 * SMASH);
    let s = ((u64::from(hash.start_bits()) * spread) >> 32) as u32;
    s.saturating_sub(SMASH).min(last)
}

/// Builds the columns of `hashes` in the smallest system that holds them. Returns one vector of `slots / 64`
/// words per column, and the number of slots. Free slots get bits from a generator seeded by `uid`.
///
/// # Errors
/// [`DoesNotFit`] when even 2048 slots are not enough; [`RibbonBand::add`] reports that key by key.
pub fn solve(hashes: &[KeyHash], uid: u64) -> Result<(u32, Vec<Vec<u64>>), DoesNotFit> {
    for slots in SLOT_CHOICES.into_iter().filter(|&s| s as usize >= hashes.len() || s == MAX_SLOTS) {
        let mut band = RibbonBand::new(slots);
        if hashes.iter().all(|&h| band.add(h) != BandPlacement::DoesNotFit) {
            return Ok((slots, band.columns(uid)));
        }
    }
    Err(DoesNotFit { keys: hashes.len() as u32, max_slots: MAX_SLOTS })
}

/// Bytes of one column over `keys` keys.
pub(crate) fn unit_bytes(keys: u32) -> u32 {
    let slots = SLOT_CHOICES.into_iter().find(|&s| f64::from(s) >= f64::from(keys) * 1.005);
    slots.unwrap_or(MAX_SLOTS) / 8
}

/// Probability that `columns` loaded columns admit an absent key.
pub(crate) fn fpr(columns: u8) -> f64 {
    0.5f64.powi(i32::from(columns))
}
