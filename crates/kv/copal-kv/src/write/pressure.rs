//! Space pressure: whether the store is full or nearly full, so that flusher and worker free everything they
//! can at once, instead of when it is cheap.
//!
//! The store is *full* from a put without space until there is clearly space again, so that the state does
//! not depend on the size of single puts. It is under *pressure* from then on, or once little space is left,
//! until nothing more can be freed.
//!
//! Not here: freeing (`flusher`, `worker`, `merge_benefit`), writes that a full store accepts (`reserve`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A store stays full until this share of it is free, or [`ENOUGH_BYTES`]. A divisor.
const ENOUGH_SHARE: u64 = 16;
/// Free bytes with which no store is full.
const ENOUGH_BYTES: u64 = 1 << 30;
/// A store is nearly full if less than this share of it is free, and less than [`LITTLE_BYTES`]. A divisor.
const LITTLE_SHARE: u64 = 8;
/// Free bytes with which no store is nearly full.
const LITTLE_BYTES: u64 = 4 << 30;

/// Space pressure of one store; see the module.
#[derive(Debug, Default)]
pub(crate) struct SpacePressure {
    is_full: AtomicBool,
    is_on: AtomicBool,
    /// A check is due whether memtables hold deletions that would free space.
    wants_look: AtomicBool,
    shortages: AtomicU64,
}

impl SpacePressure {
    /// Records a put that found no space.
    pub(crate) fn begin(&self) {
        self.shortages.fetch_add(1, Relaxed);
        self.is_full.store(true, Relaxed);
        self.is_on.store(true, Relaxed);
        self.look_again();
    }

    /// Number of puts without space since the store was opened.
    pub(crate) fn shortages(&self) -> u64 {
        self.shortages.load(Relaxed)
    }

    /// Whether puts are refused, or were until recently.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Relaxed)
    }

    /// Whether everything that can be freed should be freed now.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Makes a check due, since there may be something new to free.
    pub(crate) fn look_again(&self) {
        self.wants_look.store(true, Relaxed);
    }

    /// Whether a check is due under pressure; clears it.
    pub(crate) fn take_look(&self) -> bool {
        self.wants_look.swap(false, Relaxed) && self.is_on()
    }

    /// Updates the state: `free_bytes` of a store of `size_bytes` are free; `may_free`: more may become free.
    pub(crate) fn look(&self, free_bytes: u64, size_bytes: u64, may_free: bool) {
        if free_bytes >= (size_bytes / ENOUGH_SHARE).min(ENOUGH_BYTES) {
            self.is_full.store(false, Relaxed);
        }
        if free_bytes < (size_bytes / LITTLE_SHARE).min(LITTLE_BYTES) {
            self.is_on.store(true, Relaxed);
        } else if !may_free {
            self.is_on.store(false, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 64 << 20;

    #[test]
    fn a_store_is_full_until_there_is_clearly_room() {
        let pressure = SpacePressure::default();
        pressure.begin();
        pressure.look(3 << 20, SIZE, true);
        assert!(pressure.is_full());
        pressure.look(4 << 20, SIZE, true);
        assert!(!pressure.is_full());
        pressure.begin();
        pressure.look(ENOUGH_BYTES, 1 << 50, true);
        assert!(!pressure.is_full());
    }

    #[test]
    fn pressure_lasts_until_nothing_more_can_be_freed() {
        let pressure = SpacePressure::default();
        pressure.look(9 << 20, SIZE, true);
        assert!(!pressure.is_on());
        pressure.look(7 << 20, SIZE, false);
        assert!(pressure.is_on() && !pressure.is_full(), "nearly full");
        pressure.look(9 << 20, SIZE, true);
        assert!(pressure.is_on(), "there is more to free");
        pressure.look(9 << 20, SIZE, false);
        assert!(!pressure.is_on());
    }
}
