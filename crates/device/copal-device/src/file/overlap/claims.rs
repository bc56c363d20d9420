//! Use of a block device by the kernel: a mounted file system, swap space, a mapped device on it.
//!
//! The kernel then refuses to open the device exclusively (`O_EXCL`). Its lists say why.

use super::mounts::{MountLine, unescaped};
use super::{DeviceListing, StorageId};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};

/// Whether the kernel, or a program that opened it exclusively, holds the device at `node`.
pub(super) fn is_claimed(node: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NONBLOCK;
    matches!(rustix::fs::open(node, flags, Mode::empty()), Err(Errno::BUSY))
}

/// The kernel's use of `device` or of a device on it, with the way to end it: "is mounted at /mnt; unmount it first".
/// `None`: no list of the kernel has it.
#[must_use]
pub fn kernel_use(device: &Path) -> Option<String> {
    let id = StorageId::of(device)?;
    let kernel = DeviceListing::of_the_kernel();
    let lies_here = |upper: Option<StorageId>| upper.is_some_and(|upper| kernel.lies_on(upper, id));
    if let Some(mount) = MountLine::all().into_iter().find(|mount| lies_here(mount.device())) {
        return Some(format!("is mounted at {}; unmount it first", mount.point.display()));
    }
    if swap_devices().iter().any(|swap| lies_here(StorageId::of(swap))) {
        return Some("is swap space of this machine; end that with swapoff first".to_owned());
    }
    let holder = kernel.holder(id)?;
    Some(format!("is a part of {holder}; use that device, or remove it first"))
}

impl DeviceListing {
    /// Name of a device that is made from this one, such as a mapped or RAID device.
    fn holder(&self, id: StorageId) -> Option<String> {
        let holder = std::fs::read_dir(self.entry(id)?.join("holders")).ok()?.flatten().next()?;
        let mapped = std::fs::read_to_string(holder.path().join("dm/name")).ok();
        Some(match mapped {
            Some(name) => format!("/dev/mapper/{}", name.trim_end()),
            None => format!("/dev/{}", holder.file_name().to_string_lossy()),
        })
    }
}

/// Devices and files that the kernel swaps to.
fn swap_devices() -> Vec<PathBuf> {
    let table = std::fs::read("/proc/swaps").unwrap_or_default();
    let lines = table.split(|&byte| byte == b'\n').skip(1);
    lines.filter_map(|line| line.split(|&byte| byte == b' ').next()).map(unescaped).collect()
}
