//! `RecordedDisk`: a disk in memory that an NBD server exports and whose writes and flushes are recorded.

use crate::disk_server::{DeviceDisk, FuseFile};
use anyhow::Result;
use copal_device::{
    Image,
    fault::{CompletionOrder, FaultDevice, FaultOptions},
};
use std::{path::Path, sync::Arc};

/// The disk as a file.
pub(super) struct RecordedDisk {
    pub(super) device: Arc<FaultDevice>,
    file: FuseFile,
}

impl RecordedDisk {
    /// Serves `image` as a file below `home`. All of it is durable; later writes are recorded.
    pub(super) fn serve(image: Image, home: &Path, ignores_flushes: bool) -> Result<RecordedDisk> {
        let options = FaultOptions {
            order: CompletionOrder::Immediate,
            logical_block: 512,
            max_size: image.size(),
            ..FaultOptions::default()
        };
        let device = FaultDevice::with_options(image, options);
        let disk = match ignores_flushes {
            true => DeviceDisk::ignoring_flushes(device.clone()),
            false => DeviceDisk::new(device.clone()),
        };
        Ok(RecordedDisk { device, file: FuseFile::serve(disk, home, 1)? })
    }

    pub(super) fn file(&self) -> &Path {
        self.file.path()
    }
}
