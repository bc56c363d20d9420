//! Options of a table scan, and division of read-ahead among the inputs of a merge.

use crate::memory::budget::MemoryClass as Memory;
use copal_device::IoClass;

/// Windows end at multiples of this: reads of objects are rounded to it, or to less.
pub(super) const PAGE_BYTES: u64 = 4096;
/// Read-ahead of a long scan, if it fits the memory.
pub(super) const LAST_WINDOW_BYTES: u64 = 256 << 10;
/// Least size of a second window: a smaller one costs more by its read than it saves by coming early.
const LEAST_AHEAD_BYTES: u64 = 64 << 10;

/// Largest useful window: a longer one is not read any faster.
const MOST_AHEAD_BYTES: u64 = 1 << 20;

/// Options of a scan.
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    /// I/O class of its reads.
    pub class: IoClass,
    /// Start with the full read-ahead, for merges and verification, which read everything.
    pub whole: bool,
    /// Bytes of the largest window of read-ahead.
    pub window: u64,
    /// Read the next window while this one is used. All scans that share memory must agree, since one with
    /// two windows may leave only single blocks to another.
    pub ahead: bool,
    /// Going forward, skip damaged blocks and partitions instead of returning an error.
    pub past_damage: bool,
}

impl Default for Scan {
    fn default() -> Scan {
        Scan {
            class: IoClass::Foreground,
            whole: false,
            window: LAST_WINDOW_BYTES,
            ahead: false,
            past_damage: false,
        }
    }
}

impl Scan {
    /// One scan for each input of a merge, given the bytes of each input. Together they use `room` bytes of
    /// read-ahead.
    ///
    /// A larger input is consumed faster. So it gets longer windows, and the device has the next one ready in
    /// time. If two useful windows do not fit for every input, each has one.
    pub(crate) fn beside(inputs: &[u64], room: u64) -> Vec<Scan> {
        let total = inputs.iter().sum::<u64>().max(1);
        // Half of the room is for the current windows, half for the next ones.
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
            class: IoClass::Background,
            whole: true,
            window: window(bytes),
            ahead: to_share.is_some(),
            past_damage: false,
        };
        inputs.iter().map(scan).collect()
    }

    /// Memory class of its buffers.
    pub(super) fn memory(self) -> Memory {
        match self.class {
            IoClass::Background => Memory::Merges,
            IoClass::Commit | IoClass::Foreground => Memory::Scans,
        }
    }
}
