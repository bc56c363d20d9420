//! Detection of files and block devices that share bytes: a partition and its disk, a device and the one
//! below it.
//!
//! The kernel lists these relations below `/sys/dev/block`: the disk of a partition, the `slaves` of a mapped
//! or RAID device, the file or device behind a loop device. Below a file is the device of its file system.
//!
//! Two devices on one disk share nothing, so only "lies on" counts, and loop devices and partitions with the same
//! bytes of one file or device. Unknown are:
//! - relations that the kernel does not list there: a file system over several devices, the paths of a
//!   multipath disk
//! - the file below a loop device, if it was removed or lies in another mount namespace
//! - the lock on a second node of the same device

use rustix::fs::{Dev, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

mod claims;
mod loops;
mod mounts;
pub use claims::kernel_use;
pub use mounts::mounted_on;

/// Whether one of the two is the other or lies on it: then a write to the lower one changes both. `false`
/// also for paths that cannot be examined.
#[must_use]
pub fn share_bytes(one: &Path, other: &Path) -> bool {
    let kernel = DeviceListing::of_the_kernel();
    match (StorageId::of(one), StorageId::of(other)) {
        (Some(one), Some(other)) => kernel.share_bytes(one, other),
        _ => false,
    }
}

/// The first other device or file that shares bytes with `path` and is in use. That is one with a lock, for example of a
/// store open for reading; or with a claim of the kernel, such as a mount, that `path` itself does not show. Around a file
/// only loop devices over it count. Blocks for up to two seconds, see [`DeviceLock::Shared`].
#[must_use]
pub fn overlap_in_use(path: &Path) -> Option<PathBuf> {
    match find_overlap(path)? {
        OverlapUse::Locked(other) | OverlapUse::Claimed(other) => Some(other),
    }
}

/// How a device or file that shares bytes with another one is in use.
pub(super) enum OverlapUse {
    Locked(PathBuf),
    /// By the kernel, or by a program that opened it exclusively.
    Claimed(PathBuf),
}

/// See [`overlap_in_use`].
pub(super) fn find_overlap(path: &Path) -> Option<OverlapUse> {
    let neighbours = DeviceListing::of_the_kernel().neighbours(StorageId::of(path)?);
    neighbours.into_iter().find_map(StorageNeighbour::find_use)
}

/// A device or file that shares bytes with another one.
#[derive(Debug, PartialEq, Eq)]
struct StorageNeighbour {
    path: PathBuf,
    /// The kernel does not carry a claim on this one over to the other one, as it does between a disk and its partitions.
    claims_apart: bool,
}

impl StorageNeighbour {
    fn find_use(self) -> Option<OverlapUse> {
        if is_locked(&self.path) {
            return Some(OverlapUse::Locked(self.path));
        }
        (self.claims_apart && claims::is_claimed(&self.path)).then_some(OverlapUse::Claimed(self.path))
    }
}

/// Longest wait for a shared lock to go away.
const PATIENCE: Duration = Duration::from_secs(2);
const STEP: Duration = Duration::from_millis(10);

/// Kind of the lock on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DeviceLock {
    Free,
    /// A store open for reading, or the device manager, which locks a disk for a moment while it examines it.
    Shared,
    /// A store open for writing, or a restore.
    Exclusive,
}

fn is_locked(node: &Path) -> bool {
    let began = Instant::now();
    loop {
        match lock_on(node) {
            DeviceLock::Free => return false,
            DeviceLock::Exclusive => return true,
            DeviceLock::Shared if began.elapsed() >= PATIENCE => return true,
            DeviceLock::Shared => std::thread::park_timeout(STEP),
        }
    }
}

/// Probes the lock by taking it for a moment.
fn lock_on(node: &Path) -> DeviceLock {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let Ok(fd) = rustix::fs::open(node, flags, Mode::empty()) else {
        return DeviceLock::Free;
    };
    let refused = |operation| rustix::fs::flock(&fd, operation) == Err(Errno::WOULDBLOCK);
    if !refused(FlockOperation::NonBlockingLockExclusive) {
        DeviceLock::Free
    } else if refused(FlockOperation::NonBlockingLockShared) {
        DeviceLock::Exclusive
    } else {
        DeviceLock::Shared
    }
}

/// Identity of a file or device, independent of its names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StorageId {
    Device(Dev),
    /// A file in a file system.
    File {
        device: Dev,
        inode: u64,
    },
}

impl StorageId {
    fn of(path: &Path) -> Option<StorageId> {
        let meta = path.metadata().ok()?;
        Some(if meta.file_type().is_block_device() {
            StorageId::Device(meta.rdev())
        } else {
            StorageId::File { device: meta.dev(), inode: meta.ino() }
        })
    }
}

/// A directory with one entry per block device, named by its number.
struct DeviceListing {
    root: PathBuf,
}

impl DeviceListing {
    fn of_the_kernel() -> DeviceListing {
        DeviceListing { root: PathBuf::from("/sys/dev/block") }
    }

    fn share_bytes(&self, one: StorageId, other: StorageId) -> bool {
        self.lies_on(one, other) || self.lies_on(other, one) || self.parts_meet(one, other)
    }

    fn lies_on(&self, upper: StorageId, lower: StorageId) -> bool {
        self.all_below(upper).contains(&lower)
    }

    /// All storage that `id` lies on, itself included.
    fn all_below(&self, id: StorageId) -> Vec<StorageId> {
        let mut seen = vec![id];
        let mut next = 0;
        while let Some(&id) = seen.get(next) {
            for id in self.below(id) {
                if !seen.contains(&id) {
                    seen.push(id);
                }
            }
            next += 1;
        }
        seen
    }

    /// The storage directly below.
    fn below(&self, id: StorageId) -> Vec<StorageId> {
        if let StorageId::File { device, .. } = id {
            return vec![StorageId::Device(device)];
        }
        let Some(entry) = self.entry(id) else {
            return Vec::new();
        };
        let mut below = Vec::new();
        if entry.join("partition").exists() {
            // The entry is a link to a directory inside that of the disk.
            below.extend(device_in(&entry.join("../dev")));
        }
        let slaves = std::fs::read_dir(entry.join("slaves")).into_iter().flatten().flatten();
        below.extend(slaves.filter_map(|slave| device_in(&slave.path().join("dev"))));
        below.extend(self.loop_part(id).and_then(|part| part.lower));
        below
    }

    fn entry(&self, id: StorageId) -> Option<PathBuf> {
        let StorageId::Device(number) = id else {
            return None;
        };
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        Some(self.root.join(format!("{major}:{minor}")))
    }

    fn devices(&self) -> Vec<StorageId> {
        let entries = std::fs::read_dir(&self.root).into_iter().flatten().flatten();
        entries.filter_map(|entry| device_named(entry.file_name().to_str()?)).collect()
    }

    /// Path of the device node, by the kernel's name.
    fn node(&self, id: StorageId) -> Option<PathBuf> {
        let event = std::fs::read_to_string(self.entry(id)?.join("uevent")).ok()?;
        let name = event.lines().find_map(|line| line.strip_prefix("DEVNAME="))?;
        Some(Path::new("/dev").join(name))
    }
}

fn device_in(file: &Path) -> Option<StorageId> {
    device_named(std::fs::read_to_string(file).ok()?.trim_end())
}

/// Parses "259:3".
fn device_named(number: &str) -> Option<StorageId> {
    let (major, minor) = number.split_once(':')?;
    Some(StorageId::Device(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?)))
}

#[cfg(test)]
mod tests;
