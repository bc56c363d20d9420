//! Access to the host's file system: files by number, their bytes and names, and the syncs of each.
//!
//! A trait, so that a simulation can lose everything that no sync covers (`sim_directory`); the other
//! implementation is a real directory.
//! - File 0 is `store` in the directory itself, the others are `objects/<number>`.
//! - `reserve` is a file without content. It holds blocks, and releases them when the file system has no
//!   others.
//! - An open store holds the lock on `lock`; no other process may open the store then.
//!
//! Invariants
//! - Syncing a file makes its bytes and length durable, not its name; syncing names makes names durable, not
//!   bytes.
//! - An entry of the directory whose name the store would not have written is left alone.
//!
//! Not here: which syncs a flush performs (`files`).

use copal_device::DeviceOpenError;
use rustix::{
    fs::{AtFlags, Dir, FallocateFlags, FileType, Mode, OFlags},
    io::Errno,
};
use std::{
    fs::{DirBuilder, File, TryLockError},
    io,
    os::unix::fs::{DirBuilderExt, FileExt},
    path::Path,
    sync::Arc,
};

const STORE_FILE: &str = "store";
const OBJECTS_DIR: &str = "objects";
const LOCK_FILE: &str = "lock";
const RESERVE_FILE: &str = "reserve";

/// Largest number of files.
pub(crate) const FILES_MAX: u32 = 1 << 24;

/// Directory of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NameSet {
    /// The directory of file 0.
    Store,
    /// The directory of all other files.
    Objects,
}

impl NameSet {
    /// The set that contains the name of a file.
    #[cfg(test)]
    pub(crate) fn of(number: u32) -> NameSet {
        if number == 0 { NameSet::Store } else { NameSet::Objects }
    }
}

/// Files of a directory, by number.
pub(crate) trait StoreDirectory: Send + Sync {
    /// Opens the file; `None` if it does not exist and is not to be made. `true`: its name is new.
    fn open(&self, number: u32, make: bool) -> io::Result<Option<(Arc<dyn HostFile>, bool)>>;
    /// Removes the name; `false` if there is none.
    fn remove(&self, number: u32) -> io::Result<bool>;
    /// Makes created and removed names durable.
    fn sync_names(&self, names: NameSet) -> io::Result<()>;
    /// All numbered names, except file 0.
    fn numbers(&self) -> io::Result<NumberedNames>;
    /// Free bytes of the file system for this user.
    fn free_bytes(&self) -> u64;
    /// Bytes of the reserve.
    fn reserve_bytes(&self) -> u64;
    /// Resizes the reserve to `bytes`.
    fn keep_reserve(&self, bytes: u64) -> io::Result<()>;
    /// Whether the file system's disk turns.
    fn is_rotational(&self) -> bool {
        false
    }
}

/// Names that are numbers, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NumberedNames {
    /// Files.
    pub(crate) files: Vec<u32>,
    /// Other entries: no files of a store, and their numbers cannot be used.
    pub(crate) others: Vec<u32>,
}

/// An open file.
pub(crate) trait HostFile: Send + Sync {
    /// Fills `buf` up to the end of the file; the rest of `buf` keeps its content.
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize>;
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    fn sync_data(&self) -> io::Result<()>;
    /// A hint: the range is no longer needed.
    fn punch(&self, at: u64, len: u64);
}

impl HostFile for File {
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            match FileExt::read_at(self, &mut buf[filled..], at + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.write_all_at(bytes, at)
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn sync_data(&self) -> io::Result<()> {
        File::sync_data(self)
    }

    fn punch(&self, at: u64, len: u64) {
        // A file system without holes keeps the blocks until the file is removed.
        let _ = rustix::fs::fallocate(self, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, at, len);
    }
}

/// A directory of the host, locked. It may be renamed while it is open.
pub(crate) struct RealDirectory {
    root: File,
    objects: File,
    read_only: bool,
    lock: File,
}

impl RealDirectory {
    /// Creates the directories; an existing store is refused.
    pub(crate) fn create(dir: &Path) -> Result<RealDirectory, DeviceOpenError> {
        let failed = |error| open_error(dir, false, error);
        let mut directories = DirBuilder::new();
        directories.recursive(true).mode(0o700);
        directories.create(dir.join(OBJECTS_DIR)).map_err(failed)?;
        if dir.join(STORE_FILE).exists() {
            return Err(DeviceOpenError::Exists { path: dir.display().to_string() });
        }
        make_lock(dir).map_err(failed)?;
        let directory = RealDirectory::open(dir, false)?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        Ok(directory)
    }

    /// Opens the directory of a store and locks it: exclusively, or shared with other readers.
    pub(crate) fn open(dir: &Path, read_only: bool) -> Result<RealDirectory, DeviceOpenError> {
        let failed = |error| open_error(dir, read_only, error);
        let root = File::open(dir).map_err(failed)?;
        let objects = File::open(dir.join(OBJECTS_DIR)).map_err(failed)?;
        let lock = open_lock(dir, &root).map_err(failed)?;
        let locked = if read_only { lock.try_lock_shared() } else { lock.try_lock() };
        match locked {
            Ok(()) => Ok(RealDirectory { root, objects, read_only, lock }),
            Err(TryLockError::WouldBlock) => Err(DeviceOpenError::Locked { path: dir.display().to_string() }),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }

    /// Directory and name of a file.
    fn name(&self, number: u32) -> (&File, String) {
        if number == 0 {
            (&self.root, STORE_FILE.to_owned())
        } else {
            (&self.objects, format!("{number:06x}"))
        }
    }
}

impl Drop for RealDirectory {
    /// A child process has a copy of the file between `fork` and `exec`: closing it would not release the lock.
    fn drop(&mut self) {
        let _ = self.lock.unlock();
    }
}

impl StoreDirectory for RealDirectory {
    fn open(&self, number: u32, make: bool) -> io::Result<Option<(Arc<dyn HostFile>, bool)>> {
        let (dir, name) = self.name(number);
        let access = if self.read_only { OFlags::RDONLY } else { OFlags::RDWR };
        let flags = access | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let make_flags = flags | OFlags::CREATE | OFlags::EXCL;
        match rustix::fs::openat(dir, name.as_str(), flags, Mode::empty()) {
            Err(Errno::NOENT) if make => {
                let file = rustix::fs::openat(dir, name.as_str(), make_flags, Mode::RUSR | Mode::WUSR)?;
                Ok(Some((Arc::new(File::from(file)), true)))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
            Ok(file) => Ok(Some((Arc::new(File::from(file)), false))),
        }
    }

    fn remove(&self, number: u32) -> io::Result<bool> {
        let (dir, name) = self.name(number);
        match rustix::fs::unlinkat(dir, name.as_str(), AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn sync_names(&self, names: NameSet) -> io::Result<()> {
        match names {
            NameSet::Store => self.root.sync_all(),
            NameSet::Objects => self.objects.sync_all(),
        }
    }

    fn numbers(&self) -> io::Result<NumberedNames> {
        let mut numbered = NumberedNames::default();
        for entry in Dir::read_from(&self.objects)? {
            let entry = entry?;
            let Some(number) = number_of(entry.file_name().to_bytes()) else {
                continue;
            };
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let stat =
                        rustix::fs::statat(&self.objects, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW)?;
                    FileType::from_raw_mode(stat.st_mode)
                }
                known => known,
            };
            if kind == FileType::RegularFile {
                numbered.files.push(number);
            } else {
                numbered.others.push(number);
            }
        }
        numbered.files.sort_unstable();
        numbered.others.sort_unstable();
        Ok(numbered)
    }

    fn is_rotational(&self) -> bool {
        copal_device::is_on_rotational_disk(&self.objects)
    }

    fn free_bytes(&self) -> u64 {
        rustix::fs::fstatvfs(&self.objects).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    fn reserve_bytes(&self) -> u64 {
        let stat = rustix::fs::statat(&self.root, RESERVE_FILE, AtFlags::SYMLINK_NOFOLLOW);
        stat.map_or(0, |stat| u64::try_from(stat.st_size).unwrap_or(0))
    }

    fn keep_reserve(&self, bytes: u64) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let mode = Mode::RUSR | Mode::WUSR;
        let file = File::from(rustix::fs::openat(&self.root, RESERVE_FILE, flags, mode)?);
        let have = file.metadata()?.len();
        if bytes <= have {
            return file.set_len(bytes);
        }
        match rustix::fs::fallocate(&file, FallocateFlags::empty(), have, bytes - have) {
            Ok(()) => Ok(()),
            Err(Errno::OPNOTSUPP) => write_zeros(&file, have, bytes),
            Err(error) => Err(error.into()),
        }
        .inspect_err(|_| {
            // The length of the reserve states how much it holds.
            let _ = file.set_len(have);
        })
    }
}

fn write_zeros(file: &File, from: u64, to: u64) -> io::Result<()> {
    let zeros = vec![0; 1 << 20];
    let mut at = from;
    while at < to {
        let take = (to - at).min(zeros.len() as u64);
        file.write_all_at(&zeros[..take as usize], at)?;
        at += take;
    }
    Ok(())
}

/// Number of a store's file: six lower-case hexadecimal digits. `None` for any other name.
fn number_of(name: &[u8]) -> Option<u32> {
    let digits = name.len() == 6 && name.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if !digits {
        return None;
    }
    let number = u32::from_str_radix(std::str::from_utf8(name).ok()?, 16).ok()?;
    (1..FILES_MAX).contains(&number).then_some(number)
}

/// Only the owner may open the lock file: a user able to open it could lock it and so block the owner.
const LOCK_MODE: u32 = 0o600;

fn make_lock(dir: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    rustix::fs::open(dir.join(LOCK_FILE), flags, Mode::from_raw_mode(LOCK_MODE))?;
    Ok(())
}

/// Opens the lock file, which belongs to the owner of the directory. A lock file of an older version loses
/// the permissions of others.
fn open_lock(dir: &Path, root: &File) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let lock = File::from(rustix::fs::open(dir.join(LOCK_FILE), flags, Mode::empty())?);
    let stat = rustix::fs::fstat(&lock)?;
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user && stat.st_uid != rustix::fs::fstat(root)?.st_uid {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "its file `lock` belongs to another user; remove that file and create an empty one of your own",
        ));
    }
    if stat.st_uid == user && stat.st_mode & 0o777 != LOCK_MODE {
        // On a file system that is read-only now the mode stays.
        let _ = rustix::fs::fchmod(&lock, Mode::from_raw_mode(LOCK_MODE));
    }
    Ok(lock)
}

fn open_error(dir: &Path, read_only: bool, error: io::Error) -> DeviceOpenError {
    let path = dir.display().to_string();
    match error.kind() {
        io::ErrorKind::NotFound => DeviceOpenError::NotFound { path },
        io::ErrorKind::PermissionDenied => {
            DeviceOpenError::Permission { path, access: if read_only { "read" } else { "read and written" } }
        }
        io::ErrorKind::ReadOnlyFilesystem => DeviceOpenError::ReadOnlyStorage { path },
        io::ErrorKind::StorageFull => DeviceOpenError::NoSpace { path, bytes: 0 },
        _ => DeviceOpenError::Io { path, source: error },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Symptom: a store that was just closed was reported as open, in a process that also starts programs.
    // Cause: a child has copies of all files, with their locks, between its fork and its exec.
    // Fix: the holder unlocks the file before it closes it.
    #[test]
    fn a_copy_of_the_lock_file_does_not_keep_a_closed_directory_locked() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = RealDirectory::create(scratch.path()).unwrap();
        let copy = directory.lock.try_clone().unwrap();
        assert!(matches!(RealDirectory::open(scratch.path(), false), Err(DeviceOpenError::Locked { .. })));
        drop(directory);
        RealDirectory::open(scratch.path(), false).unwrap();
        drop(copy);
    }
}
