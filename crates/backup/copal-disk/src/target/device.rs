//! Device target: a block device, overwritten in place.
//!
//! The device is opened exclusively, so the kernel refuses one that is mounted or otherwise in use. It is
//! also locked, so a device with a store that is only being read is refused too.

use super::lock;
use super::{Target, TargetError, file::failed, punch};
use rustix::{
    fs::{Mode, OFlags, SeekFrom},
    io::Errno,
};
use std::{
    fs::File,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// A block device.
#[derive(Debug)]
pub struct DeviceTarget {
    path: PathBuf,
    file: File,
    capacity_bytes: u64,
}

impl DeviceTarget {
    /// Opens a block device for overwriting.
    ///
    /// # Errors
    /// It is in use (mounted, part of a volume group, open in a VM) or may not be written.
    pub fn open(path: &Path) -> Result<DeviceTarget, TargetError> {
        let in_use = |what: &str| TargetError::Unusable {
            reason: format!(
                "{} is in use ({what}); name another device, nothing was written",
                path.display()
            ),
        };
        let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::BUSY => in_use("mounted, part of a volume group, or open in another program"),
            other => failed("open", path)(other.into()),
        })?;
        if !lock::take(&file) {
            return Err(in_use("by the store of a repository, or another restore"));
        }
        let capacity_bytes =
            rustix::fs::seek(&file, SeekFrom::End(0)).map_err(|e| failed("measure", path)(e.into()))?;
        Ok(DeviceTarget { path: path.to_owned(), file: File::from(file), capacity_bytes })
    }
}

impl Target for DeviceTarget {
    fn begin(&self, size_bytes: u64) -> Result<(), TargetError> {
        if size_bytes > self.capacity_bytes {
            return Err(TargetError::Unusable {
                reason: format!(
                    "{} has {} bytes, the disk has {size_bytes}; nothing was written, use a larger device",
                    self.path.display(),
                    self.capacity_bytes
                ),
            });
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), TargetError> {
        self.file.write_all_at(data, offset).map_err(failed("write", &self.path))
    }

    fn hole(&self, offset: u64, length: u64) -> Result<(), TargetError> {
        punch::zero_range(&self.file, offset, length).map_err(failed("zero a range of", &self.path))
    }

    fn finish(&self) -> Result<(), TargetError> {
        self.file.sync_all().map_err(failed("flush", &self.path))
    }
}
