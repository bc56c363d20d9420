//! Hosts of a run: their VMs and their speeds.

use super::inputs::{BACK_END_BYTES_PER_S, DISK_BYTES_PER_S, UPLOAD_BYTES_PER_S};
use super::sizes::Fleet;

/// Fleet of a run and the speed of its hosts.
pub(super) struct Hosts<'a> {
    pub(super) fleet: &'a Fleet,
    /// Number of slow hosts; they come first.
    pub(super) slow: usize,
    /// Slowdown of their transfers.
    pub(super) slowdown: f64,
}

impl Hosts<'_> {
    pub(super) fn count(&self) -> usize {
        self.fleet.hosts.len()
    }

    fn of(&self, host: usize, bytes_per_s: f64) -> f64 {
        match host < self.slow {
            true => bytes_per_s / self.slowdown,
            false => bytes_per_s,
        }
    }

    pub(super) fn disk_bytes_per_s(&self, host: usize) -> f64 {
        self.of(host, DISK_BYTES_PER_S)
    }

    pub(super) fn back_end_bytes_per_s(&self, host: usize) -> f64 {
        self.of(host, BACK_END_BYTES_PER_S)
    }

    pub(super) fn upload_bytes_per_s(&self, host: usize) -> f64 {
        self.of(host, UPLOAD_BYTES_PER_S)
    }
}
