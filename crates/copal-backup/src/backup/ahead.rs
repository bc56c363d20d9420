//! How much of a disk will be read, told before it is: what progress counts against.
//!
//! Holes take no time, so they are no work. Known before are the bytes that the changes name, or else those that the
//! source's map calls data. Asking for the whole map costs what reading the disk asks for anyway, once more.

use super::changes::zero_bytes;
use super::reader::{DiskPlan, Reader, Stopping};
use crate::request::DiskSource;

impl Reader<'_> {
    /// Bytes of a disk that will be read; 0 when its end is not known.
    pub(super) fn bytes_ahead(&mut self, disk: &DiskSource, plan: &DiskPlan) -> Stopping<u64> {
        let Some(size) = disk.source.size_bytes() else {
            return Ok(0);
        };
        if let (Some(changes), Some(_)) = (&plan.changes, &plan.base) {
            return Ok(changes.dirty_bytes());
        }
        let (mut at, mut bytes) = (0, size);
        while at < size {
            self.check_cancel()?;
            let extent = self.extent_at(disk, at)?;
            bytes -= zero_bytes(&extent, at..size);
            at = extent.end();
        }
        Ok(bytes)
    }
}
