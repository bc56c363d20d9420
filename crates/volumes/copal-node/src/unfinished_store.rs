//! A store under construction: it has another name until it is complete.
//!
//! Invariants
//! - A process that is killed while it makes a store leaves nothing that looks like a store, and no obstacle
//!   for the next attempt.
//! - One process at a time makes a store in a directory, and none replaces an existing store.
//!
//! Not here: contents of the store (`stack`).

use crate::{
    device_signature,
    error::NodeError,
    location::{Access, OpenedStore, STORE_FILE, STORE_FILES, StoreLocation, StoreOptions},
    location::{is_block_device, refuse_read_only_device, refuse_taken},
    patience::Patience,
};
use copal_device::{Device, FileOptions, probe::DeviceProfile};
use copal_object::{BackendKind, MkfsOptions, Store, StoreOpenError};
use rustix::{
    fs::{CWD, RenameFlags},
    io::Errno,
};
use std::{
    fs::{DirBuilder, File, TryLockError},
    io::ErrorKind,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

/// Suffix of the store's name until it is finished.
const UNFINISHED: &str = ".unfinished";
/// Lock file in the directory while a store is made there.
const LOCK_FILE: &str = "init.lock";

/// Options of a new store.
#[derive(Clone, Debug, Default)]
pub struct NewStore {
    /// Its backend. `Cow` and `Log` take one preallocated file or a block device, `Hostfs` a directory.
    pub backend: BackendKind,
    /// Bytes to preallocate for a file; the store grows when they are used up. Default: the least size.
    pub size_bytes: Option<u64>,
    /// Overwrite a block device that holds data.
    pub overwrite: bool,
    /// Figures of the disk, which the store keeps.
    pub profile: Option<DeviceProfile>,
}

impl NewStore {
    /// Least size of a store with `backend` in bytes.
    #[must_use]
    pub fn least_bytes(backend: BackendKind) -> u64 {
        match backend {
            // Superblock copies, journal and work.
            BackendKind::Cow | BackendKind::Hostfs => 64 << 20,
            BackendKind::Log => 256 << 20,
        }
    }

    /// Refuses a size that is too small for the backend.
    fn check_size(&self, bytes: u64) -> Result<(), NodeError> {
        let least = NewStore::least_bytes(self.backend);
        match bytes < least {
            true => Err(NodeError::TooSmall { bytes, least, backend: self.backend }),
            false => Ok(()),
        }
    }

    fn of_objects(&self) -> MkfsOptions {
        MkfsOptions { backend: self.backend, profile: self.profile.clone(), ..MkfsOptions::default() }
    }
}

/// A store under construction; dropped before [`UnfinishedStore::finish`], it is removed.
pub struct UnfinishedStore {
    unfinished: StoreLocation,
    /// File or device of the store, locked before the first byte is written. A second opening could find that
    /// another process has taken the lock meanwhile. None for a store of files.
    device: Option<Arc<dyn Device>>,
    /// Final path of the store.
    store: PathBuf,
    finished: bool,
    /// Released last. None for a block device.
    _directory: Option<StoreDirectory>,
}

impl UnfinishedStore {
    /// Makes an empty store on a block device or in a directory; creates the directory if missing. Blocks on
    /// the device.
    /// # Errors
    /// `TooSmall`, `Taken`, `Occupied`, `InTheMaking`, `NotEmpty`, `BlockDevice`, `ReadOnlyDevice`, `System`, `Objects`.
    pub fn start(named: &Path, options: &StoreOptions, new: &NewStore) -> Result<UnfinishedStore, NodeError> {
        if is_block_device(named) {
            return start_on_device(named, options, new);
        }
        let size = new.size_bytes.unwrap_or(NewStore::least_bytes(new.backend));
        if new.backend != BackendKind::Hostfs {
            new.check_size(size)?;
        }
        refuse_taken(named)?;
        let directory = StoreDirectory::take(named)?;
        // The previous holder of the directory may have made a store since the first check.
        refuse_taken(named)?;
        let name = match new.backend {
            BackendKind::Cow | BackendKind::Log => STORE_FILE,
            BackendKind::Hostfs => STORE_FILES,
        };
        let path = named.join(format!("{name}{UNFINISHED}"));
        let unfinished = match new.backend {
            BackendKind::Cow | BackendKind::Log => StoreLocation::File(path),
            BackendKind::Hostfs => StoreLocation::Files(path),
        };
        let mut making = UnfinishedStore {
            unfinished,
            device: None,
            store: named.join(name),
            finished: false,
            _directory: Some(directory),
        };
        let path = making.unfinished.path();
        remove(&making.unfinished).map_err(cannot_create(path))?;
        let made = match &making.unfinished {
            StoreLocation::Files(dir) => Store::mkfs_dir(dir, &new.of_objects()),
            StoreLocation::File(path) | StoreLocation::Device(path) => {
                let file =
                    FileOptions { create_size: Some(size.next_multiple_of(1 << 20)), ..options.of_file() };
                copal_device::open_file(path, &file).map_err(StoreOpenError::from).and_then(|device| {
                    let device = making.device.insert(device);
                    Store::mkfs(device, &new.of_objects())
                })
            }
        };
        made.map_err(cannot_open(making.path()))?;
        Ok(making)
    }

    /// Opens the store, to be filled.
    /// # Errors
    /// `Objects`.
    pub fn open(&self, options: &StoreOptions, patience: &Patience) -> Result<OpenedStore, NodeError> {
        match &self.device {
            None => self.unfinished.open(Access::Write, options, patience),
            Some(device) => {
                let opened = Store::open(Arc::clone(device), &options.of_objects(Access::Write));
                opened.map_err(cannot_open(self.path()))
            }
        }
    }

    /// Path of the store until it is finished.
    pub fn path(&self) -> &Path {
        self.unfinished.path()
    }

    /// Completes the store: from now on it exists, durably.
    /// # Errors
    /// `Taken`, `System`.
    pub fn finish(mut self) -> Result<(), NodeError> {
        if !matches!(self.unfinished, StoreLocation::Device(_)) {
            rename_new(self.unfinished.path(), &self.store)?;
        }
        self.finished = true;
        Ok(())
    }
}

impl Drop for UnfinishedStore {
    fn drop(&mut self) {
        if !self.finished {
            // A file that cannot be removed keeps the suffix of unfinished stores; a half-made device holds
            // no valid store.
            let _ = remove(&self.unfinished);
        }
    }
}

/// Directory of a store under construction, locked by one process at a time.
struct StoreDirectory {
    path: PathBuf,
    is_new: bool,
    lock: PathBuf,
    file: File,
}

impl StoreDirectory {
    fn take(path: &Path) -> Result<StoreDirectory, NodeError> {
        let is_new = !path.exists();
        let mut directories = DirBuilder::new();
        let made = directories.recursive(true).mode(0o700).create(path);
        made.map_err(cannot_create(path))?;
        let lock = path.join(LOCK_FILE);
        loop {
            let open = File::options()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&lock);
            let file = open.map_err(cannot_create(&lock))?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    return Err(NodeError::InTheMaking { directory: path.to_owned() });
                }
                Err(TryLockError::Error(error)) => return Err(cannot_create(&lock)(error)),
            }
            // The previous holder may have removed the file: a lock on an unlinked file excludes no process.
            if is_same(&file, &lock).map_err(cannot_create(&lock))? {
                return Ok(StoreDirectory { path: path.to_owned(), is_new, lock, file });
            }
        }
    }
}

fn is_same(file: &File, path: &Path) -> std::io::Result<bool> {
    let here = file.metadata()?;
    match path.symlink_metadata() {
        Ok(there) => Ok((here.dev(), here.ino()) == (there.dev(), there.ino())),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

impl Drop for StoreDirectory {
    fn drop(&mut self) {
        // A remaining lock file is unlocked; a directory that is not empty stays.
        let _ = std::fs::remove_file(&self.lock);
        if self.is_new {
            let _ = std::fs::remove_dir(&self.path);
        }
        // A child process has a copy of the file between `fork` and `exec`.
        let _ = self.file.unlock();
    }
}

/// Gives a finished store its final name, durably; does not replace a store that appeared there meanwhile.
fn rename_new(from: &Path, to: &Path) -> Result<(), NodeError> {
    let exists = || NodeError::Taken { directory: to.parent().unwrap_or(to).to_owned() };
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Err(exists()),
        // The file system cannot refuse within the rename: check before it.
        Err(Errno::INVAL | Errno::NOSYS) => {
            if to.symlink_metadata().is_ok() {
                return Err(exists());
            }
            std::fs::rename(from, to).map_err(cannot_create(to))?;
        }
        Err(error) => return Err(cannot_create(to)(error.into())),
    }
    let dir = to.parent().unwrap_or(Path::new("."));
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(cannot_create(to))
}

fn cannot_create(path: &Path) -> impl Fn(std::io::Error) -> NodeError {
    cannot("create", path)
}

fn cannot(action: &'static str, path: &Path) -> impl Fn(std::io::Error) -> NodeError {
    move |source| NodeError::System { path: path.to_owned(), action, source }
}

fn cannot_open(path: &Path) -> impl Fn(StoreOpenError) -> NodeError {
    move |source| NodeError::Objects { path: path.to_owned(), source }
}

fn start_on_device(
    path: &Path,
    options: &StoreOptions,
    new: &NewStore,
) -> Result<UnfinishedStore, NodeError> {
    if new.backend == BackendKind::Hostfs {
        return Err(NodeError::BlockDevice { path: path.to_owned() });
    }
    refuse_read_only_device(path)?;
    let device = copal_device::open_file(path, &options.of_file())
        .map_err(StoreOpenError::from)
        .map_err(cannot_open(path))?;
    new.check_size(device.geometry().size)?;
    if !new.overwrite
        && let Some(found) = device_signature::find(path).map_err(cannot("read", path))?
    {
        return Err(NodeError::NotEmpty { path: path.to_owned(), found });
    }
    Store::mkfs(&device, &new.of_objects()).map_err(cannot_open(path))?;
    Ok(UnfinishedStore {
        unfinished: StoreLocation::Device(path.to_owned()),
        device: Some(device),
        store: path.to_owned(),
        finished: false,
        _directory: None,
    })
}

fn remove(place: &StoreLocation) -> std::io::Result<()> {
    let removed = match place {
        StoreLocation::File(path) => std::fs::remove_file(path),
        StoreLocation::Files(path) => std::fs::remove_dir_all(path),
        StoreLocation::Device(_) => Ok(()),
    };
    match removed {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Starts one store, then a second in its place, then finishes the first.
    fn two_at_once(named: &Path) {
        let options = StoreOptions {
            force_pread: true,
            allow_cow: true,
            allow_volatile: true,
            ..StoreOptions::default()
        };
        let new = NewStore { overwrite: true, ..NewStore::default() };
        let first = UnfinishedStore::start(named, &options, &new).unwrap();
        let second = UnfinishedStore::start(named, &options, &new).err().expect("one at a time");
        let is_refused = match &second {
            NodeError::InTheMaking { .. } => true,
            NodeError::Objects { source, .. } => {
                matches!(source, StoreOpenError::Open(copal_device::DeviceOpenError::Locked { .. }))
            }
            _ => false,
        };
        assert!(is_refused, "{second:?}");
        let (store, _) = first.open(&options, &Patience::none()).unwrap();
        first.finish().unwrap();
        store.close().unwrap();
    }

    #[test]
    fn of_two_in_a_directory_one_is_refused() {
        let scratch = tempfile::tempdir().unwrap();
        two_at_once(&scratch.path().join("store"));
    }

    /// Symptom: two processes that made a store on one block device at once overwrote each other's.
    /// Cause: the device was locked while the empty store was written and again when it was opened, but not
    /// in between.
    /// Fix: the device is opened once, and the lock taken before the first byte stays.
    #[test]
    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    fn of_two_on_a_block_device_one_is_refused() {
        use std::process::Command;
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("disk");
        File::create(&file).unwrap().set_len(NewStore::least_bytes(BackendKind::Cow)).unwrap();
        let made = Command::new("losetup").args(["--find", "--show"]).arg(&file).output();
        let Ok(made) = made.map(|made| String::from_utf8(made.stdout).unwrap()) else {
            eprintln!("skipped: no losetup here");
            return;
        };
        if made.trim().is_empty() {
            let required = std::env::var_os("COPAL_TEST_REQUIRE_LOOP").is_some();
            assert!(!required, "no loop device to be had");
            eprintln!("skipped: no loop device to be had here (root and losetup make one)");
            return;
        }
        let device = Path::new(made.trim());
        let outcome = std::panic::catch_unwind(|| two_at_once(device));
        let detached = Command::new("losetup").arg("--detach").arg(device).status();
        assert!(detached.unwrap().success());
        outcome.unwrap();
    }
}
