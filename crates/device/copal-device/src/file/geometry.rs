//! Geometry of a file or block device, from `statx`, an ioctl and sysfs. Nothing is measured.

use super::block;
use super::target::{MAX_IO, TargetKind};
use crate::{Geometry, ZonedModel};
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, FileType, StatxFlags};
use std::io;
use std::path::{Path, PathBuf};

/// Block size if neither `statx` nor sysfs reports one.
const FALLBACK_BLOCK: u32 = 4096;

/// Alignment that direct I/O requires, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DirectAlignment {
    /// Of buffers in memory.
    pub(super) memory: u32,
    /// Of offsets and lengths: the logical block.
    pub(super) offset: u32,
}

/// The alignment for direct I/O; `None` if the file system has no direct I/O for this file.
pub(super) fn alignment(file: impl AsFd, kind: TargetKind) -> io::Result<Option<DirectAlignment>> {
    let stat = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN)?;
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0 {
        let (memory, offset) = (stat.stx_dio_mem_align, stat.stx_dio_offset_align);
        return Ok((offset > 0).then(|| DirectAlignment { memory, offset: offset.max(512) }));
    }
    let offset = match kind {
        TargetKind::Block => rustix::fs::ioctl_blksszget(&file)?,
        TargetKind::File { .. } => FALLBACK_BLOCK,
    };
    Ok(Some(DirectAlignment { memory: offset, offset }))
}

/// Where the kernel's view of devices is mounted.
const SYSFS: &str = "/sys";

/// The geometry of an open target.
pub(super) fn geometry(
    file: impl AsFd,
    kind: TargetKind,
    alignment: DirectAlignment,
) -> io::Result<Geometry> {
    let stat = rustix::fs::fstat(&file)?;
    let (bytes, device) = match kind {
        TargetKind::Block => (block::size(&file)?, stat.st_rdev),
        TargetKind::File { .. } => (stat.st_size as u64, stat.st_dev),
    };
    let queue = DiskQueue::of(Path::new(SYSFS), device);
    let (zoned, zone_bytes) = match kind {
        TargetKind::Block => queue.zones(),
        // The file system below follows the rules of the zones.
        TargetKind::File { .. } => (ZonedModel::None, 0),
    };
    let discard_unit = match kind {
        TargetKind::File { punch_holes: false } => 0,
        TargetKind::File { punch_holes: true } => FALLBACK_BLOCK.max(alignment.offset),
        TargetKind::Block => queue.number("discard_granularity").unwrap_or(0),
    };
    Ok(Geometry {
        size: bytes - bytes % u64::from(alignment.offset),
        logical_block: alignment.offset,
        dma_alignment: alignment.memory.max(1),
        max_io: MAX_IO as u32,
        volatile_cache: queue.text("write_cache").is_none_or(|cache| cache != "write through"),
        fua: queue.number("fua") == Some(1),
        discard_unit,
        gives_back: kind != TargetKind::Block,
        zoned,
        zone_bytes,
        rotational: queue.is_rotational(),
    })
}

/// Whether an open file or directory is on a turning disk, as far as the system reports. `false` where the
/// file system hides its disk.
#[must_use]
pub fn is_on_rotational_disk(file: impl AsFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| DiskQueue::of(Path::new(SYSFS), stat.st_dev).is_rotational())
}

/// Counts of the commands that a disk has completed, as the system keeps them.
pub struct DiskCommands(PathBuf);

impl DiskCommands {
    /// The disk of a block device, or of the file system of a file. `None` where the system names none.
    #[must_use]
    pub fn of(path: &Path) -> Option<DiskCommands> {
        let stat = rustix::fs::stat(path).ok()?;
        let device = match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => stat.st_rdev,
            _ => stat.st_dev,
        };
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let counts = DiskCommands(Path::new(SYSFS).join(format!("dev/block/{major}:{minor}/stat")));
        counts.writes().map(|_| counts)
    }

    /// Writes and flushes so far, also those of other programs.
    #[must_use]
    pub fn writes(&self) -> Option<u64> {
        const WRITES: usize = 4;
        const FLUSHES: usize = 15;
        let text = std::fs::read_to_string(&self.0).ok()?;
        let number = |place| text.split_whitespace().nth(place)?.parse::<u64>().ok();
        // Older kernels count no flushes.
        number(WRITES)?.checked_add(number(FLUSHES).unwrap_or(0))
    }
}

/// The directory in sysfs that describes a disk's request queue.
struct DiskQueue(Option<PathBuf>);

impl DiskQueue {
    /// The queue of a disk or of the disk of a partition, in the sysfs that is mounted at `sysfs`.
    fn of(sysfs: &Path, device: rustix::fs::Dev) -> DiskQueue {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let disk = sysfs.join(format!("dev/block/{major}:{minor}"));
        // A partition has no queue of its own; its disk is the parent directory of the link's target.
        let candidates = [disk.join("queue"), disk.join("../queue")];
        DiskQueue(candidates.into_iter().find(|path| path.is_dir()))
    }

    fn is_rotational(&self) -> bool {
        self.number("rotational") == Some(1)
    }

    fn text(&self, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.0.as_ref()?.join(name)).ok()?;
        Some(text.trim().to_owned())
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.text(name)?.parse().ok()
    }

    /// Rules of the zones, and bytes of a zone.
    ///
    /// A word of a later kernel counts as host-managed. Its rules are not known here: a store that breaks them
    /// fails in the middle of its life, a refusal costs one question.
    fn zones(&self) -> (ZonedModel, u64) {
        let model = match self.text("zoned").as_deref() {
            None | Some("none") => return (ZonedModel::None, 0),
            Some("host-aware") => ZonedModel::HostAware,
            Some(_) => ZonedModel::HostManaged,
        };
        // On a disk without zones the same file holds the stripe of an array.
        (model, self.number("chunk_sectors").map_or(0, |sectors| u64::from(sectors) * 512))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::makedev;

    /// A sysfs with one disk, 8:0, and its partition, 8:1.
    fn sysfs_of(queue: &[(&str, &str)]) -> tempfile::TempDir {
        let sysfs = tempfile::tempdir().unwrap();
        let disk = sysfs.path().join("devices/sda");
        std::fs::create_dir_all(disk.join("queue")).unwrap();
        std::fs::create_dir_all(disk.join("sda1")).unwrap();
        std::fs::create_dir_all(sysfs.path().join("dev/block")).unwrap();
        for (link, target) in [("8:0", "sda"), ("8:1", "sda/sda1")] {
            let target = Path::new("../../devices").join(target);
            std::os::unix::fs::symlink(target, sysfs.path().join("dev/block").join(link)).unwrap();
        }
        for (name, text) in queue {
            std::fs::write(disk.join("queue").join(name), format!("{text}\n")).unwrap();
        }
        sysfs
    }

    #[test]
    fn zones_are_read_for_disks_and_for_their_partitions() {
        let cases = [
            (vec![("zoned", "none"), ("chunk_sectors", "1024")], (ZonedModel::None, 0)),
            (vec![("zoned", "host-aware"), ("chunk_sectors", "524288")], (ZonedModel::HostAware, 256 << 20)),
            (
                vec![("zoned", "host-managed"), ("chunk_sectors", "524288")],
                (ZonedModel::HostManaged, 256 << 20),
            ),
            (vec![("zoned", "host-managed"), ("chunk_sectors", "x")], (ZonedModel::HostManaged, 0)),
            (vec![("zoned", "a word of a later kernel")], (ZonedModel::HostManaged, 0)),
            (vec![("zoned", "")], (ZonedModel::HostManaged, 0)),
            (vec![], (ZonedModel::None, 0)),
        ];
        for (queue, expected) in cases {
            let sysfs = sysfs_of(&queue);
            for minor in [0, 1] {
                let found = DiskQueue::of(sysfs.path(), makedev(8, minor)).zones();
                assert_eq!(found, expected, "{queue:?}, minor {minor}");
            }
            assert_eq!(DiskQueue::of(sysfs.path(), makedev(9, 0)).zones(), (ZonedModel::None, 0));
        }
    }
}
