//! The host's file system as the backend sees it: files by number, their bytes, their names, and what syncs which.
//!
//! A seam, so that a twin in memory can lose whatever no sync covers (`twin`); the other implementation is a real
//! directory. File 0 is `store` in the directory itself, the others are `objects/<number>`.
//! Invariants
//! - Syncing a file makes its bytes and length durable, not its name; syncing names makes names durable, not bytes.
//!
//! Not here: which syncs a flush takes (`files`).

use copal_device::OpenError;
use rustix::{
    fs::{AtFlags, Dir, FallocateFlags, Mode, OFlags},
    io::Errno,
};
use std::{
    fs::{File, TryLockError},
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
};

use super::files::FILES_MAX;

const STORE_FILE: &str = "store";
const OBJECTS_DIR: &str = "objects";
const LOCK_FILE: &str = "lock";

/// Which names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// The one of file 0.
    Store,
    /// Those of all others.
    Objects,
}

impl Names {
    /// Those that the name of a file is among.
    #[cfg(test)]
    pub(crate) fn of(number: u32) -> Names {
        if number == 0 { Names::Store } else { Names::Objects }
    }
}

/// Files of a directory, by number.
pub(crate) trait Directory: Send + Sync {
    /// The file; `None` when it is not there and not to be made. `true`: its name is new.
    fn open(&self, number: u32, make: bool) -> io::Result<Option<(Arc<dyn HostFile>, bool)>>;
    /// Takes the name away; `false` when there is none.
    fn remove(&self, number: u32) -> io::Result<bool>;
    /// Makes names that came and went durable.
    fn sync_names(&self, names: Names) -> io::Result<()>;
    /// Numbers of the files but file 0, ascending.
    fn numbers(&self) -> io::Result<Vec<u32>>;
    /// Bytes the file system has left for this user.
    fn free_bytes(&self) -> u64;
}

/// An open file.
pub(crate) trait HostFile: Send + Sync {
    /// Fills `buf` as far as the file goes; what is behind its end stays as it is.
    fn read_at(&self, buf: &mut [u8], at: u64) -> io::Result<usize>;
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<()>;
    fn len(&self) -> io::Result<u64>;
    fn sync_data(&self) -> io::Result<()>;
    /// A hint: the range is not needed any more.
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
        // A file system without holes keeps the blocks until the file goes.
        let _ = rustix::fs::fallocate(
            self,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            at,
            len,
        );
    }
}

/// A directory of the host, locked. It may be renamed while it is open.
pub(crate) struct RealDirectory {
    root: File,
    objects: File,
    read_only: bool,
    _lock: File,
}

impl RealDirectory {
    /// Makes the directories; an existing store is refused.
    pub(crate) fn create(dir: &Path) -> Result<RealDirectory, OpenError> {
        let failed = |error| open_error(dir, false, error);
        std::fs::create_dir_all(dir.join(OBJECTS_DIR)).map_err(failed)?;
        if dir.join(STORE_FILE).exists() {
            return Err(OpenError::Exists {
                path: dir.display().to_string(),
            });
        }
        File::create(dir.join(LOCK_FILE)).map_err(failed)?;
        let directory = RealDirectory::open(dir, false)?;
        File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        Ok(directory)
    }

    /// Opens the directory of a store and locks it: alone, or with other readers.
    pub(crate) fn open(dir: &Path, read_only: bool) -> Result<RealDirectory, OpenError> {
        let failed = |error| open_error(dir, read_only, error);
        let root = File::open(dir).map_err(failed)?;
        let objects = File::open(dir.join(OBJECTS_DIR)).map_err(failed)?;
        let lock = File::open(dir.join(LOCK_FILE)).map_err(failed)?;
        let locked = if read_only {
            lock.try_lock_shared()
        } else {
            lock.try_lock()
        };
        match locked {
            Ok(()) => Ok(RealDirectory {
                root,
                objects,
                read_only,
                _lock: lock,
            }),
            Err(TryLockError::WouldBlock) => Err(OpenError::Locked {
                path: dir.display().to_string(),
            }),
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

impl Directory for RealDirectory {
    fn open(&self, number: u32, make: bool) -> io::Result<Option<(Arc<dyn HostFile>, bool)>> {
        let (dir, name) = self.name(number);
        let access = if self.read_only {
            OFlags::RDONLY
        } else {
            OFlags::RDWR
        };
        let flags = access | OFlags::CLOEXEC;
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

    fn sync_names(&self, names: Names) -> io::Result<()> {
        match names {
            Names::Store => self.root.sync_all(),
            Names::Objects => self.objects.sync_all(),
        }
    }

    fn numbers(&self) -> io::Result<Vec<u32>> {
        let mut numbers = Vec::new();
        for entry in Dir::read_from(&self.objects)? {
            let entry = entry?;
            let name = entry.file_name().to_str().ok();
            let number = name.and_then(|name| u32::from_str_radix(name, 16).ok());
            numbers.extend(number.filter(|number| (1..FILES_MAX).contains(number)));
        }
        numbers.sort_unstable();
        Ok(numbers)
    }

    fn free_bytes(&self) -> u64 {
        rustix::fs::fstatvfs(&self.objects).map_or(0, |stat| stat.f_bavail.saturating_mul(stat.f_frsize))
    }
}

fn open_error(dir: &Path, read_only: bool, error: io::Error) -> OpenError {
    let path = dir.display().to_string();
    match error.kind() {
        io::ErrorKind::NotFound => OpenError::NotFound { path },
        io::ErrorKind::PermissionDenied => OpenError::Permission {
            path,
            access: if read_only { "read" } else { "read and written" },
        },
        io::ErrorKind::ReadOnlyFilesystem => OpenError::ReadOnlyStorage { path },
        io::ErrorKind::StorageFull => OpenError::NoSpace { path, bytes: 0 },
        _ => OpenError::Io { path, source: error },
    }
}
