//! How much of a disk will be read, told before it is: what progress counts against.
//!
//! Holes take no time, so they are no work. Known before are the bytes that the changes name, or else those
//! that the source's map calls data. Asking for the whole map costs what reading the disk asks for anyway,
//! once more; where that takes long, or fails, nothing is announced: a backup is not lost for its progress
//! bar.

use super::changes::zero_bytes;
use super::reader::{DiskPlan, Reader};
use super::stop::{Stop, Stopping};
use crate::request::DiskSource;
use std::time::{Duration, Instant};

/// Longest look at a map before the reading begins.
const LONGEST_LOOK: Duration = Duration::from_secs(2);

impl Reader<'_> {
    /// Bytes of a disk that will be read; 0 when its end is not known.
    pub(super) fn bytes_ahead(&mut self, disk: &DiskSource, plan: &DiskPlan) -> Stopping<u64> {
        let Some(size) = disk.source.size_bytes() else {
            return Ok(0);
        };
        if let (Some(changes), Some(_)) = (&plan.changes, &plan.base) {
            return Ok(changes.dirty_bytes());
        }
        let began = Instant::now();
        let (mut at, mut bytes) = (0, size);
        while at < size {
            self.check_cancel()?;
            let extent = match self.extent_at(disk, at) {
                Ok(extent) if began.elapsed() < LONGEST_LOOK => extent,
                // The reading meets the failure again, if it stays, and says so.
                Ok(_) | Err(Stop::Failed(_)) => return Ok(0),
                Err(stop) => return Err(stop),
            };
            bytes -= zero_bytes(&extent, at..size);
            at = extent.end();
        }
        Ok(bytes)
    }
}
