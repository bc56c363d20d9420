//! Geometry of a file or block device, from `statx`, an ioctl and sysfs. Nothing is measured.

use super::block;
use super::target::{MAX_IO, TargetKind};
use crate::Geometry;
use rustix::fd::AsFd;
use rustix::fs::{AtFlags, StatxFlags};
use std::io;
use std::path::PathBuf;

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
    let queue = DiskQueue::of(device);
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
    })
}

/// The directory in sysfs that describes a disk's request queue.
struct DiskQueue(Option<PathBuf>);

impl DiskQueue {
    fn of(device: rustix::fs::Dev) -> DiskQueue {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let disk = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        // A partition has no queue of its own; its disk is the parent directory of the link's target.
        let candidates = [disk.join("queue"), disk.join("../queue")];
        DiskQueue(candidates.into_iter().find(|path| path.is_dir()))
    }

    fn text(&self, name: &str) -> Option<String> {
        let text = std::fs::read_to_string(self.0.as_ref()?.join(name)).ok()?;
        Some(text.trim().to_owned())
    }

    fn number(&self, name: &str) -> Option<u32> {
        self.text(name)?.parse().ok()
    }
}
