//! Page reads from the device that is recovered.

use crate::{flaw::BrokenRule, format::run::PageRun};
use copal_device::{Device, DeviceError};

/// Reads of one device, in pages.
pub(crate) struct RecoverySource<'a> {
    pub(crate) device: &'a dyn Device,
    pub(crate) page_bytes: usize,
    /// Unreadable frames do not end a stream.
    pub(crate) salvage: bool,
    pub(crate) broken: BrokenRule,
}

impl RecoverySource<'_> {
    /// Complete pages of the device; a partial page does not count.
    pub(crate) fn whole_pages(&self) -> u64 {
        self.device.geometry().size / self.page_bytes as u64
    }

    pub(crate) fn read(&self, run: PageRun) -> Result<Vec<u8>, DeviceError> {
        let most = (self.device.geometry().max_io as usize / self.page_bytes).max(1) as u32;
        let mut out = Vec::with_capacity(run.pages as usize * self.page_bytes);
        for piece in crate::state::pieces(run, most) {
            let at = piece.at.saturating_mul(self.page_bytes as u64);
            let bytes = self.device.read_again(at, piece.pages as usize * self.page_bytes)?;
            out.extend_from_slice(&bytes);
        }
        Ok(out)
    }
}
