//! Options of a table scan, and division of read-ahead among the inputs of a merge.

use super::io::ReadSizes;
use crate::memory::budget::MemoryClass as Memory;
use copal_device::IoClass;

impl ReadSizes {
    /// Size of the second read of a scan that goes on beyond its expected length. Each later one doubles.
    pub(super) fn second_window(self) -> u64 {
        self.ahead / 16
    }

    /// Least size of a window that is read while another is used: a smaller one costs more by its read than it
    /// saves by coming early.
    pub(crate) fn least_window(self) -> u64 {
        self.ahead / 4
    }

    /// Largest useful window: a longer one is not read any faster.
    fn largest_window(self) -> u64 {
        self.ahead * 4
    }
}

/// Options of a scan.
#[derive(Clone, Copy, Debug)]
pub struct Scan {
    /// I/O class of its reads.
    pub class: IoClass,
    /// Start with the full read-ahead, for merges and verification, which read everything.
    pub whole: bool,
    /// Bytes of the largest window of read-ahead, if it fits the memory; `None`: as much as the object store
    /// reads at once.
    pub window: Option<u64>,
    /// Read the next window while this one is used. All scans that share memory must agree, since one with
    /// two windows may leave only single blocks to another.
    pub ahead: bool,
    /// Going forward, skip damaged blocks and partitions instead of returning an error.
    pub past_damage: bool,
}

impl Default for Scan {
    fn default() -> Scan {
        Scan { class: IoClass::Foreground, whole: false, window: None, ahead: false, past_damage: false }
    }
}

impl Scan {
    /// One scan for each input of a merge, given the bytes of each input. Together they use `room` bytes of
    /// read-ahead.
    ///
    /// A larger input is consumed faster. So it gets longer windows, and the device has the next one ready in
    /// time. If two useful windows do not fit for every input, each has one.
    pub(crate) fn beside(inputs: &[u64], room: u64, sizes: ReadSizes) -> Vec<Scan> {
        let total = inputs.iter().sum::<u64>().max(1);
        // Half of the room is for the current windows, half for the next ones.
        let least = sizes.least_window();
        let for_all = least * inputs.len() as u64;
        let to_share = (room / 2).checked_sub(for_all);
        let window = |bytes: u64| match to_share {
            None => sizes.ahead,
            Some(rest) => {
                let share = (u128::from(rest) * u128::from(bytes) / u128::from(total)) as u64;
                (least + share / sizes.unit * sizes.unit).min(sizes.largest_window())
            }
        };
        let scan = |&bytes: &u64| Scan {
            class: IoClass::Background,
            whole: true,
            window: Some(window(bytes)),
            ahead: to_share.is_some(),
            past_damage: false,
        };
        inputs.iter().map(scan).collect()
    }

    /// The largest window of a table with these sizes of reads.
    pub(super) fn window(self, sizes: ReadSizes) -> u64 {
        self.window.unwrap_or(sizes.ahead)
    }

    /// Memory class of its buffers.
    pub(super) fn memory(self) -> Memory {
        match self.class {
            IoClass::Background => Memory::Merges,
            IoClass::Commit | IoClass::Foreground => Memory::Scans,
        }
    }
}
