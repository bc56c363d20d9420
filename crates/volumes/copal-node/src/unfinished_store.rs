//! A store in the making: it grows under another name and gets its own when it is whole.
//!
//! Invariants
//! - A process that was killed while it made a store leaves nothing that looks like one, and no obstacle for
//!   the next.
//! - One process at a time makes a store in a directory, and none takes the place of a store that is there.
//!
//! Not here: what is in the store (`stack`).

use crate::{
    device_signature,
    error::NodeError,
    location::{Access, Opened, STORE_FILE, STORE_FILES, StoreLocation, StoreOptions},
    location::{is_block_device, refuse_taken},
    patience::Patience,
};
use copal_device::{Device, FileOptions};
use copal_object::{MkfsOptions, OpenError, Store};
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

/// Behind the name of the store until it is finished.
const UNFINISHED: &str = ".unfinished";
/// Locked in the directory while a store is made there.
const LOCK_FILE: &str = "init.lock";
/// Superblock copies, journal and room to work in take so much.
const LEAST_BYTES: u64 = 64 << 20;

/// What a new store lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// One preallocated file, or a block device.
    File,
    /// A directory with a file for each object.
    Files,
}

/// How a store is made.
#[derive(Clone, Copy, Debug)]
pub struct NewStore {
    /// What it lies in.
    pub backend: Backend,
    /// Bytes to preallocate for a file; the store grows when they are used up.
    pub size_bytes: u64,
    /// Overwrite a block device that holds something.
    pub overwrite: bool,
}

/// A store in the making; where it is dropped before [`UnfinishedStore::finish`], nothing of it is left.
pub struct UnfinishedStore {
    unfinished: StoreLocation,
    /// What the store is in, locked from before its first byte: whoever opened it anew could find somebody
    /// else there. None for a store of files.
    device: Option<Arc<dyn Device>>,
    /// The store's name when it is whole.
    store: PathBuf,
    finished: bool,
    /// Given back last. None for a block device.
    _directory: Option<Directory>,
}

impl UnfinishedStore {
    /// Makes an empty store in a directory, which is made too, or on a block device. Blocks on the device.
    /// # Errors
    /// `TooSmall`, `Taken`, `InTheMaking`, `NotEmpty`, `BlockDevice`, `System`, `Objects`.
    pub fn start(named: &Path, options: &StoreOptions, new: &NewStore) -> Result<UnfinishedStore, NodeError> {
        if is_block_device(named) {
            return start_on_device(named, options, new);
        }
        if new.backend == Backend::File && new.size_bytes < LEAST_BYTES {
            return Err(NodeError::TooSmall { bytes: new.size_bytes, least: LEAST_BYTES });
        }
        let directory = Directory::take(named)?;
        // Whoever had the directory before may have made a store since this process looked.
        refuse_taken(named)?;
        let name = match new.backend {
            Backend::File => STORE_FILE,
            Backend::Files => STORE_FILES,
        };
        let path = named.join(format!("{name}{UNFINISHED}"));
        let unfinished = match new.backend {
            Backend::File => StoreLocation::File(path),
            Backend::Files => StoreLocation::Files(path),
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
            StoreLocation::Files(dir) => Store::mkfs_dir(dir, &MkfsOptions::default()),
            StoreLocation::File(path) | StoreLocation::Device(path) => {
                let file = FileOptions {
                    create_size: Some(new.size_bytes.next_multiple_of(1 << 20)),
                    ..options.of_file()
                };
                copal_device::open_file(path, &file).map_err(OpenError::from).and_then(|device| {
                    let device = making.device.insert(device);
                    Store::mkfs(device, &MkfsOptions::default())
                })
            }
        };
        made.map_err(cannot_open(making.path()))?;
        Ok(making)
    }

    /// Opens the store, to be filled.
    /// # Errors
    /// `Objects`.
    pub fn open(&self, options: &StoreOptions, patience: &Patience) -> Result<Opened, NodeError> {
        match &self.device {
            None => self.unfinished.open(Access::Write, options, patience),
            Some(device) => {
                let opened = Store::open(Arc::clone(device), &options.of_objects(Access::Write));
                opened.map_err(cannot_open(self.path()))
            }
        }
    }

    /// What the store is called while it is not whole.
    pub fn path(&self) -> &Path {
        self.unfinished.path()
    }

    /// From now on the store is there, durably.
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
            // What cannot be removed says by its name what it is; a device that is half made holds no store.
            let _ = remove(&self.unfinished);
        }
    }
}

/// The directory of a store in the making, which one process has at a time.
struct Directory {
    path: PathBuf,
    is_new: bool,
    lock: PathBuf,
    _locked: File,
}

impl Directory {
    fn take(path: &Path) -> Result<Directory, NodeError> {
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
            // Whoever had it before removed it: a lock on a file without a name excludes nobody.
            if is_same(&file, &lock).map_err(cannot_create(&lock))? {
                return Ok(Directory { path: path.to_owned(), is_new, lock, _locked: file });
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

impl Drop for Directory {
    fn drop(&mut self) {
        // A lock file that stays is nobody's; a directory that holds something stays.
        let _ = std::fs::remove_file(&self.lock);
        if self.is_new {
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

/// Gives a finished store its name, durably; a store that appeared there meanwhile is left alone.
fn rename_new(from: &Path, to: &Path) -> Result<(), NodeError> {
    let exists = || NodeError::Taken { directory: to.parent().unwrap_or(to).to_owned() };
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Ok(()) => {}
        Err(Errno::EXIST) => return Err(exists()),
        // A file system that cannot refuse in the rename itself: refuse before it.
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

fn cannot_open(path: &Path) -> impl Fn(OpenError) -> NodeError {
    move |source| NodeError::Objects { path: path.to_owned(), source }
}

fn start_on_device(
    path: &Path,
    options: &StoreOptions,
    new: &NewStore,
) -> Result<UnfinishedStore, NodeError> {
    if new.backend == Backend::Files {
        return Err(NodeError::BlockDevice { path: path.to_owned() });
    }
    let device = copal_device::open_file(path, &options.of_file())
        .map_err(OpenError::from)
        .map_err(cannot_open(path))?;
    if !new.overwrite
        && let Some(found) = device_signature::find(path).map_err(cannot("read", path))?
    {
        return Err(NodeError::NotEmpty { path: path.to_owned(), found });
    }
    Store::mkfs(&device, &MkfsOptions::default()).map_err(cannot_open(path))?;
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

    /// One begins, another begins, the first goes on.
    fn two_at_once(named: &Path) {
        let options = StoreOptions {
            force_pread: true,
            allow_cow: true,
            allow_volatile: true,
            ..StoreOptions::default()
        };
        let new = NewStore { backend: Backend::File, size_bytes: LEAST_BYTES, overwrite: true };
        let first = UnfinishedStore::start(named, &options, &new).unwrap();
        let second = UnfinishedStore::start(named, &options, &new).err().expect("one at a time");
        let is_refused = match &second {
            NodeError::InTheMaking { .. } => true,
            NodeError::Objects { source, .. } => {
                matches!(source, OpenError::Open(copal_device::OpenError::Locked { .. }))
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

    /// Symptom: of two processes that made a store on one block device at once each wrote over what the other
    /// was making.
    /// Cause: the device was locked while the empty store was written and again when it was opened, not in
    /// between.
    /// Fix: it is opened once, and the lock of before the first byte is that of the store.
    #[test]
    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    fn of_two_on_a_block_device_one_is_refused() {
        use std::process::Command;
        let scratch = tempfile::tempdir().unwrap();
        let file = scratch.path().join("disk");
        File::create(&file).unwrap().set_len(LEAST_BYTES).unwrap();
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
