//! File systems on which a preallocated file does not mean what the object store needs it to mean.

use rustix::fd::AsFd;
use std::io;

/// What a file system does with a file that is overwritten in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystemKind {
    /// It stays where it is.
    Plain,
    /// Each write goes elsewhere: preallocation promises nothing, and overwriting can run out of space.
    CopyOnWrite(&'static str),
    /// It is memory: nothing survives a reboot.
    Volatile(&'static str),
}

/// Magic numbers of `statfs(2)`.
const NATURES: [(u64, FileSystemKind); 6] = [
    (0x9123_683e, FileSystemKind::CopyOnWrite("btrfs")),
    (0x2fc1_2fc1, FileSystemKind::CopyOnWrite("zfs")),
    (0xca45_1a4e, FileSystemKind::CopyOnWrite("bcachefs")),
    (0x3434, FileSystemKind::CopyOnWrite("nilfs2")),
    (0x0102_1994, FileSystemKind::Volatile("tmpfs")),
    (0x8584_58f6, FileSystemKind::Volatile("ramfs")),
];

/// The nature of the file system that holds `file`.
pub(super) fn nature(file: impl AsFd) -> io::Result<FileSystemKind> {
    // Magic numbers are 32 bits wide; the field is signed or wider on some machines.
    let magic = rustix::fs::fstatfs(file)?.f_type as u64 & 0xffff_ffff;
    let known = NATURES.iter().find(|(number, _)| *number == magic);
    Ok(known.map_or(FileSystemKind::Plain, |(_, nature)| *nature))
}

/// Whether `bytes` more do not fit, as far as the file system knows. Asked before `fallocate`, which fills
/// the disk to the last block before it finds out, and everybody else on that disk would feel it.
pub(super) fn is_too_full(file: impl AsFd, bytes: u64) -> bool {
    rustix::fs::fstatvfs(file).is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) < bytes)
}
