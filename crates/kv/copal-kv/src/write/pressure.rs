//! Whether the store is full, or nearly, and what follows: flusher and worker free what they can at once,
//! instead of when it is cheap.
//!
//! It is *full* from a put that finds no room until there is clearly room again, so that this does not come
//! and go with the size of single puts. It is under *pressure* from then on, or from when little is left,
//! until nothing more can be freed.
//!
//! Not here: what is freed (`flusher`, `worker`, `merge_benefit`), what a full store still takes (`reserve`).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// A store is full until this part of it is free, or [`ENOUGH_BYTES`].
const ENOUGH_SHARE: u64 = 16;
/// Free bytes with which no store is full.
const ENOUGH_BYTES: u64 = 1 << 30;
/// A store with less than this part of it free, and less than [`LITTLE_BYTES`], is nearly full.
const LITTLE_SHARE: u64 = 8;
/// Free bytes with which no store is nearly full.
const LITTLE_BYTES: u64 = 4 << 30;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct SpacePressure {
    is_full: AtomicBool,
    is_on: AtomicBool,
    /// Somebody is to look whether memtables hold back what would free space.
    wants_look: AtomicBool,
    shortages: AtomicU64,
}

impl SpacePressure {
    /// A write that only adds found no room.
    pub(crate) fn begin(&self) {
        self.shortages.fetch_add(1, Relaxed);
        self.is_full.store(true, Relaxed);
        self.is_on.store(true, Relaxed);
        self.look_again();
    }

    /// Times that it began since the store was opened.
    pub(crate) fn shortages(&self) -> u64 {
        self.shortages.load(Relaxed)
    }

    /// Whether writes that only add are refused, or were lately.
    pub(crate) fn is_full(&self) -> bool {
        self.is_full.load(Relaxed)
    }

    /// Whether everything that can be freed is to be freed now.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Time has passed: there may be something new to free.
    pub(crate) fn look_again(&self) {
        self.wants_look.store(true, Relaxed);
    }

    /// Whether a look is due under pressure, which it is not any more behind this.
    pub(crate) fn take_look(&self) -> bool {
        self.wants_look.swap(false, Relaxed) && self.is_on()
    }

    /// So many bytes are free of a store of `size_bytes`, and nothing more can be freed unless `may_free`.
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
