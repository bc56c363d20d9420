//! Disks of suites as files and block devices: our own NBD server, and nbdfuse in front of it.

mod device_disk;
mod fuse_file;

pub(crate) use device_disk::{DeviceDisk, DiskExport};
pub(crate) use fuse_file::FuseFile;
