//! File systems on which preallocation does not give the guarantees that the object store needs.

use rustix::fd::AsFd;
use std::io;

/// Behaviour of a file system when a file is overwritten in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileSystemKind {
    /// Data stays in place.
    Plain,
    /// Each write goes elsewhere: preallocation promises nothing, and overwriting can run out of space.
    CopyOnWrite(&'static str),
    /// In memory: nothing survives a reboot.
    Volatile(&'static str),
}

/// Magic numbers of `statfs(2)`.
const FILE_SYSTEM_KINDS: [(u64, FileSystemKind); 6] = [
    (0x9123_683e, FileSystemKind::CopyOnWrite("btrfs")),
    (0x2fc1_2fc1, FileSystemKind::CopyOnWrite("zfs")),
    (0xca45_1a4e, FileSystemKind::CopyOnWrite("bcachefs")),
    (0x3434, FileSystemKind::CopyOnWrite("nilfs2")),
    (0x0102_1994, FileSystemKind::Volatile("tmpfs")),
    (0x8584_58f6, FileSystemKind::Volatile("ramfs")),
];

/// Kind of the file system that holds `file`.
pub(super) fn file_system_kind(file: impl AsFd) -> io::Result<FileSystemKind> {
    // Magic numbers are 32 bits wide; the field is signed or wider on some machines.
    let magic = rustix::fs::fstatfs(file)?.f_type as u64 & 0xffff_ffff;
    let known = FILE_SYSTEM_KINDS.iter().find(|(number, _)| *number == magic);
    Ok(known.map_or(FileSystemKind::Plain, |(_, kind)| *kind))
}

/// Whether `bytes` more do not fit, as far as the file system reports. Called before `fallocate`, which fills
/// the disk to the last block before it fails, and so disturbs every other user of the disk.
pub(super) fn is_too_full(file: impl AsFd, bytes: u64) -> bool {
    rustix::fs::fstatvfs(file).is_ok_and(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) < bytes)
}
