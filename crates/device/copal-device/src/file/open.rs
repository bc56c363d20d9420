//! Opening a target: existence, kind, lock, file system, direct I/O, and the flush that C5 requires.
//!
//! Invariants
//! - The lock of a block device lies on its node. An opening for writing also checks the nodes of all devices
//!   that share bytes with it, and a file the loop devices over it.
//! - The lock is taken before the file is read or changed, and lives as long as the descriptor.
//! - A file that this call created is removed again when a later step fails.

use super::FileOptions;
use super::filesystem::{FileSystemKind, file_system_kind, is_too_full};
use super::geometry::{DirectAlignment, alignment, geometry};
use super::overlap::{OverlapUse, find_overlap, kernel_use};
use super::target::{FileTarget, TargetKind};
use crate::error::DeviceOpenError;
use crate::{BUFFER_ALIGNMENT, Geometry, ZonedModel};
use rustix::fd::OwnedFd;
use rustix::fs::{FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::path::Path;

/// Smallest alignment used without direct I/O.
const BUFFERED: DirectAlignment = DirectAlignment { memory: 1, offset: 4096 };

/// Opens or creates the target at `path` and locks it.
pub(super) fn open(path: &Path, options: &FileOptions) -> Result<FileTarget, DeviceOpenError> {
    match options.create_size {
        None => {
            let (fd, kind) = open_existing(path, options)?;
            prepare(path, options, fd, kind)
        }
        Some(size) => {
            let fd = create(path)?;
            let kind = TargetKind::File { punch_holes: options.punch_holes };
            if options.unnamed {
                rustix::fs::unlink(path).map_err(|error| DeviceOpenError::from_errno(path, false, error))?;
            }
            let made = allocate(path, &fd, size).and_then(|()| prepare(path, options, fd, kind));
            if made.is_err() && !options.unnamed {
                // The first error is the one to report; a file that remains is empty or unused.
                let _ = std::fs::remove_file(path);
            }
            made
        }
    }
}

fn open_existing(path: &Path, options: &FileOptions) -> Result<(OwnedFd, TargetKind), DeviceOpenError> {
    let failed = |error| DeviceOpenError::from_errno(path, options.read_only, error);
    let before = kind_of(path, options, rustix::fs::stat(path).map_err(failed)?.st_mode)?;
    let mut flags = OFlags::CLOEXEC | OFlags::NONBLOCK;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if before == TargetKind::Block && !options.read_only {
        flags |= OFlags::EXCL;
    }
    let fd = match rustix::fs::open(path, flags, Mode::empty()) {
        Err(Errno::BUSY) => return Err(claimed(path, path)),
        opened => opened.map_err(failed)?,
    };
    let kind = kind_of(path, options, rustix::fs::fstat(&fd).map_err(failed)?.st_mode)?;
    lock(path, &fd, options.read_only)?;
    // After taking our own lock: of two concurrent openings each sees the other's lock.
    let overlap = if options.read_only { None } else { find_overlap(path) };
    match overlap {
        None => Ok((fd, kind)),
        Some(OverlapUse::Locked(_)) => Err(DeviceOpenError::Locked { path: path.display().to_string() }),
        Some(OverlapUse::Claimed(other)) => Err(claimed(path, &other)),
    }
}

/// `path` shares bytes with `other`, which is claimed, or is `other`.
fn claimed(path: &Path, other: &Path) -> DeviceOpenError {
    let name = path.display().to_string();
    match kernel_use(other) {
        Some(by) if path == other => DeviceOpenError::Claimed { path: name, by },
        Some(by) => {
            let by = format!("shares its bytes with {}, which {by}", other.display());
            DeviceOpenError::Claimed { path: name, by }
        }
        None => DeviceOpenError::Locked { path: name },
    }
}

fn kind_of(
    path: &Path,
    options: &FileOptions,
    mode: rustix::fs::RawMode,
) -> Result<TargetKind, DeviceOpenError> {
    let found = match FileType::from_raw_mode(mode) {
        FileType::RegularFile => {
            return Ok(TargetKind::File { punch_holes: options.punch_holes });
        }
        FileType::BlockDevice => return Ok(TargetKind::Block),
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "something else",
    };
    Err(DeviceOpenError::WrongKind { path: path.display().to_string(), found })
}

fn create(path: &Path) -> Result<OwnedFd, DeviceOpenError> {
    let flags = OFlags::CLOEXEC | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let mode = Mode::RUSR | Mode::WUSR;
    let fd = rustix::fs::open(path, flags, mode)
        .map_err(|error| DeviceOpenError::from_errno(path, false, error))?;
    lock(path, &fd, false)?;
    Ok(fd)
}

/// Reserves the space now, so that a full disk is detected here.
fn allocate(path: &Path, fd: &OwnedFd, size: u64) -> Result<(), DeviceOpenError> {
    let bytes = size.next_multiple_of(4096);
    let no_space = || DeviceOpenError::NoSpace { path: path.display().to_string(), bytes };
    let failed = |error| match error {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => no_space(),
        other => DeviceOpenError::from_errno(path, false, other),
    };
    if is_too_full(fd, bytes) {
        return Err(no_space());
    }
    match rustix::fs::fallocate(fd, FallocateFlags::empty(), 0, bytes) {
        Err(Errno::OPNOTSUPP) => rustix::fs::ftruncate(fd, bytes).map_err(failed),
        other => other.map_err(failed),
    }
}

fn lock(path: &Path, fd: &OwnedFd, shared: bool) -> Result<(), DeviceOpenError> {
    let how =
        if shared { FlockOperation::NonBlockingLockShared } else { FlockOperation::NonBlockingLockExclusive };
    rustix::fs::flock(fd, how).map_err(|error| DeviceOpenError::from_errno(path, shared, error))
}

fn prepare(
    path: &Path,
    options: &FileOptions,
    fd: OwnedFd,
    kind: TargetKind,
) -> Result<FileTarget, DeviceOpenError> {
    let name = || path.display().to_string();
    let failed = |source| DeviceOpenError::Io { path: name(), source };
    let mut volatile = false;
    if matches!(kind, TargetKind::File { .. }) {
        match file_system_kind(&fd).map_err(failed)? {
            FileSystemKind::CopyOnWrite(file_system) if !options.allow_cow => {
                return Err(DeviceOpenError::CopyOnWrite { path: name(), file_system });
            }
            FileSystemKind::Volatile(file_system) if !options.unsafe_volatile => {
                return Err(DeviceOpenError::Volatile { path: name(), file_system });
            }
            kind => volatile = matches!(kind, FileSystemKind::Volatile(_)),
        }
    }
    let direct = if volatile { None } else { make_direct(path, &fd, kind)? };
    let geometry = geometry(&fd, kind, direct.unwrap_or(BUFFERED)).map_err(failed)?;
    let geometry = usable(path, geometry, options.read_only)?;
    make_durable(path, options, &fd, kind)?;
    let cached = open_cached(path, options, &fd);
    let target = FileTarget::new(fd, kind, geometry, options.read_only);
    Ok(target.with_cached(cached))
}

/// Opens the file of `fd` a second time, through the page cache; `None` if that fails. The lock stays with
/// `fd`.
fn open_cached(path: &Path, options: &FileOptions, fd: &OwnedFd) -> Option<File> {
    let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let opened = rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty());
    let same = |cached: &OwnedFd| -> rustix::io::Result<bool> {
        let (ours, theirs) = (rustix::fs::fstat(fd)?, rustix::fs::fstat(cached)?);
        // The path may refer to another file by now.
        Ok((ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino))
    };
    match opened.and_then(|cached| Ok(same(&cached)?.then_some(cached))) {
        Ok(cached) => cached.map(File::from),
        Err(error) => {
            tracing::info!(%error, path = %path.display(), "no access through the page cache");
            None
        }
    }
}

/// Turns the page cache off if possible. `None`: I/O is buffered, and only flushes make it durable.
fn make_direct(
    path: &Path,
    fd: &OwnedFd,
    kind: TargetKind,
) -> Result<Option<DirectAlignment>, DeviceOpenError> {
    let failed = |source| DeviceOpenError::Io { path: path.display().to_string(), source };
    let found = alignment(fd, kind).map_err(failed)?;
    let flags = rustix::fs::fcntl_getfl(fd).map_err(|error| failed(error.into()))?;
    let fits = |found: &DirectAlignment| found.memory <= BUFFER_ALIGNMENT as u32 && found.offset <= 4096;
    let wanted = found.filter(fits);
    let set = wanted.map(|_| rustix::fs::fcntl_setfl(fd, (flags | OFlags::DIRECT) - OFlags::NONBLOCK));
    if let Some(Ok(())) = set {
        return Ok(wanted);
    }
    tracing::warn!(path = %path.display(), "no direct I/O on this file; the page cache duplicates all data");
    rustix::fs::fcntl_setfl(fd, flags - OFlags::NONBLOCK).map_err(|error| failed(error.into()))?;
    Ok(None)
}

/// Refuses a device on which a store cannot work.
fn usable(path: &Path, geometry: Geometry, read_only: bool) -> Result<Geometry, DeviceOpenError> {
    if geometry.zoned == ZonedModel::HostManaged && !read_only {
        return Err(DeviceOpenError::HostManaged { path: path.display().to_string() });
    }
    if geometry.logical_block.is_power_of_two() {
        return Ok(geometry);
    }
    let source =
        std::io::Error::other(format!("its block of {} bytes is not usable", geometry.logical_block));
    Err(DeviceOpenError::Io { path: path.display().to_string(), source })
}

/// Makes writes of a killed predecessor durable before they are read (C5), and the directory entry too.
fn make_durable(
    path: &Path,
    options: &FileOptions,
    fd: &OwnedFd,
    kind: TargetKind,
) -> Result<(), DeviceOpenError> {
    let failed = |source| DeviceOpenError::Io { path: path.display().to_string(), source };
    match rustix::fs::fsync(fd) {
        // Without write permission nothing of ours needs to become durable.
        Err(_) if options.read_only => return Ok(()),
        other => other.map_err(|error| failed(error.into()))?,
    }
    if kind == TargetKind::Block || options.read_only {
        return Ok(());
    }
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory =
        match rustix::fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()) {
            Ok(directory) => directory,
            // A directory without read permission cannot be flushed; only the creator of the file has to
            // flush it.
            Err(Errno::ACCESS) if options.create_size.is_none() => return Ok(()),
            Err(error) => return Err(failed(error.into())),
        };
    rustix::fs::fsync(&directory).map_err(|error| failed(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::memory_geometry;

    #[test]
    fn a_host_managed_device_is_refused_before_the_first_write() {
        let path = Path::new("/dev/sdz");
        let of = |zoned| Geometry { zoned, zone_bytes: 256 << 20, ..memory_geometry(1 << 40) };
        let refused = usable(path, of(ZonedModel::HostManaged), false).unwrap_err();
        assert!(matches!(refused, DeviceOpenError::HostManaged { .. }) && !refused.is_retryable());
        let sentence = refused.to_string();
        assert!(sentence.starts_with("/dev/sdz is a host-managed") && sentence.contains("XFS"), "{sentence}");
        assert!(usable(path, of(ZonedModel::HostManaged), true).is_ok(), "to look at it is harmless");
        assert!(usable(path, of(ZonedModel::HostAware), false).is_ok());
    }
}
