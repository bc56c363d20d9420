//! How a table is walked, and how the inputs of a merge share their read-ahead.

use crate::memory::budget::MemoryClass as Memory;
use copal_device::Class;

/// A window ends where one of these does: reads of objects are rounded to them, or to less.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Read-ahead of a long scan, where there is room for it.
pub(super) const LAST_WINDOW_BYTES: u64 = 256 << 10;
/// A second window that is smaller costs more by its read than it saves by coming early.
const LEAST_AHEAD_BYTES: u64 = 64 << 10;

/// A longer window is not fetched any faster.
const MOST_AHEAD_BYTES: u64 = 1 << 20;

/// How a table is walked.
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    /// Importance of its reads.
    pub class: Class,
    /// Start with the full read-ahead: merges and verification, which take everything.
    pub whole: bool,
    /// Bytes of the largest window of read-ahead.
    pub window: u64,
    /// Have the next window read while this one is walked. All walks that share memory do, or none: one that
    /// has two windows may leave another with single blocks.
    pub ahead: bool,
    /// Going forward, pass over what is damaged instead of answering so: what can still be read is looked
    /// for.
    pub past_damage: bool,
}

impl Default for Scan {
    fn default() -> Scan {
        Scan {
            class: Class::Foreground,
            whole: false,
            window: LAST_WINDOW_BYTES,
            ahead: false,
            past_damage: false,
        }
    }
}

impl Scan {
    /// One scan for each input of a merge, given the bytes of each: they share `room` bytes of read-ahead.
    ///
    /// The larger an input, the faster it is walked, and the longer its windows, so that the device has the
    /// next one ready in time. Where two windows worth a read do not fit for all, each has one.
    pub(crate) fn beside(inputs: &[u64], room: u64) -> Vec<Scan> {
        let total = inputs.iter().sum::<u64>().max(1);
        // Half of the room is for the windows that are walked, half for those on their way.
        let for_all = LEAST_AHEAD_BYTES * inputs.len() as u64;
        let to_share = (room / 2).checked_sub(for_all);
        let window = |bytes: u64| match to_share {
            None => LAST_WINDOW_BYTES,
            Some(rest) => {
                let share = (u128::from(rest) * u128::from(bytes) / u128::from(total)) as u64;
                (LEAST_AHEAD_BYTES + share / PAGE_BYTES * PAGE_BYTES).min(MOST_AHEAD_BYTES)
            }
        };
        let scan = |&bytes: &u64| Scan {
            class: Class::Background,
            whole: true,
            window: window(bytes),
            ahead: to_share.is_some(),
            past_damage: false,
        };
        inputs.iter().map(scan).collect()
    }

    /// What its buffers are charged for.
    pub(super) fn memory(self) -> Memory {
        match self.class {
            Class::Background => Memory::Merges,
            Class::Commit | Class::Foreground => Memory::Scans,
        }
    }
}
