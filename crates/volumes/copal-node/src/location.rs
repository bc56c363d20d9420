//! Location of a store: a preallocated file in a directory, a directory of files in it, or a block device.
//!
//! `DIR/store.copal` is the file; `DIR/store.files` holds one file per object; a named block device is the
//! store itself.
//!
//! Not here: creation (`unfinished_store`), contents (`stack`).

pub(crate) mod probe_place;

use crate::{
    error::{MissingStore, NodeError},
    patience::Patience,
};
use copal_device::FileOptions;
use copal_object::{DiscardMode, OpenOptions, RecoveryReport, Store, StoreDump};
use std::{
    fs::FileType,
    io::ErrorKind,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

/// Kind of access of a process to a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Read,
    /// Read and write.
    Write,
}

/// Name of the store file in the named directory.
pub(crate) const STORE_FILE: &str = "store.copal";
/// Name of the directory of objects.
pub(crate) const STORE_FILES: &str = "store.files";

/// Unit in which a file system counts allocated space.
const BLOCK_BYTES: u64 = 512;

/// Options of opening or making a store; the defaults are safe everywhere.
#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    /// Greatest size of the store; `None`: no limit but the file system's.
    pub limit_bytes: Option<u64>,
    /// Open a store with damaged last acknowledged writes, without these writes.
    pub accept_tail_loss: bool,
    /// Use pread and pwrite even if the kernel offers io_uring.
    pub force_pread: bool,
    /// Accept a copy-on-write file system, where preallocation guarantees nothing.
    pub allow_cow: bool,
    /// Accept a file system in memory.
    pub allow_volatile: bool,
    /// Largest distance in bytes at which two reads of objects become one; `None`: by kind of device.
    pub gap_bytes: Option<u64>,
    /// Discards of free space.
    pub discard: DiscardMode,
}

impl StoreOptions {
    pub(crate) fn of_objects(&self, access: Access) -> OpenOptions {
        OpenOptions {
            read_only: access == Access::Read,
            max_size_bytes: self.limit_bytes,
            accept_tail_loss: self.accept_tail_loss,
            salvage: false,
            gap_bytes: self.gap_bytes,
            discard: self.discard,
            inline_data: None,
        }
    }

    pub(crate) fn of_file(&self) -> FileOptions {
        FileOptions {
            force_pread: self.force_pread,
            allow_cow: self.allow_cow,
            unsafe_volatile: self.allow_volatile,
            // Freed space is returned to the file system.
            punch_holes: true,
            ..FileOptions::default()
        }
    }
}

/// File, directory of files or block device of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreLocation {
    /// A preallocated file.
    File(PathBuf),
    /// A directory of files.
    Files(PathBuf),
    /// A block device.
    Device(PathBuf),
}

/// A store, and the report of its recovery.
pub type OpenedStore = (Store, RecoveryReport);

pub(crate) fn is_block_device(path: &Path) -> bool {
    path.metadata().is_ok_and(|meta| meta.file_type().is_block_device())
}

/// Refuses a directory that already holds a store, and a place that is neither a directory nor a block device. Data on
/// a block device is detected when a store is made on it.
/// # Errors
/// `Taken`, `Occupied`.
pub fn refuse_taken(directory: &Path) -> Result<(), NodeError> {
    let mut names = [STORE_FILE, STORE_FILES].iter();
    if names.any(|name| directory.join(name).symlink_metadata().is_ok()) {
        return Err(NodeError::Taken { directory: directory.to_owned() });
    }
    refuse_occupied(directory)
}

/// Refuses a place where no directory can be made, since it or a part of its path is something else.
fn refuse_occupied(named: &Path) -> Result<(), NodeError> {
    let occupied =
        |at: &Path, found| Err(NodeError::Occupied { path: named.to_owned(), at: at.to_owned(), found });
    for at in named.ancestors() {
        match at.metadata() {
            Ok(meta) if meta.is_dir() || (at == named && meta.file_type().is_block_device()) => return Ok(()),
            Ok(meta) => return occupied(at, kind_of(meta.file_type())),
            Err(error) if leads_nowhere(at, &error) => return occupied(at, "a link that leads nowhere"),
            // Missing, or below something that is no directory.
            Err(_) => {}
        }
    }
    Ok(())
}

/// Whether an error of a look at `path` is that of a link without a target, or of links in a circle.
fn leads_nowhere(path: &Path, error: &std::io::Error) -> bool {
    let is_broken = error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ELOOP);
    is_broken && path.symlink_metadata().is_ok_and(|meta| meta.is_symlink())
}

fn kind_of(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_file() => "a regular file",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_char_device() => "a character device",
        kind if kind.is_block_device() => "a block device",
        _ => "no directory",
    }
}

/// Refuses to write a block device that takes no writes. The system opens one for writing all the same, and then refuses
/// each write for lack of a permission.
/// # Errors
/// `ReadOnlyDevice`.
pub(crate) fn refuse_read_only_device(path: &Path) -> Result<(), NodeError> {
    if !is_block_device(path) {
        return Ok(());
    }
    let Ok(stat) = rustix::fs::stat(path) else { return Ok(()) };
    let (major, minor) = (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev));
    let text = std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"));
    match text.is_ok_and(|text| text.trim() == "1") {
        true => Err(NodeError::ReadOnlyDevice { path: path.to_owned() }),
        false => Ok(()),
    }
}

impl StoreLocation {
    /// Finds the store in a directory, or on a block device.
    /// # Errors
    /// `NotFound`, `System`.
    pub fn find(named: &Path) -> Result<StoreLocation, NodeError> {
        if is_block_device(named) {
            return Ok(StoreLocation::Device(named.to_owned()));
        }
        let (file, files) = (named.join(STORE_FILE), named.join(STORE_FILES));
        if is_directory(&files)? {
            return Ok(StoreLocation::Files(files));
        }
        refuse_missing(named, &file)?;
        Ok(StoreLocation::File(file))
    }

    /// Path of the store, for messages.
    pub fn path(&self) -> &Path {
        match self {
            StoreLocation::File(path) | StoreLocation::Files(path) | StoreLocation::Device(path) => path,
        }
    }

    /// Whether a file or device is part of the store, or shares bytes with it. The path of a missing file
    /// counts by its directory.
    pub fn holds(&self, path: &Path) -> bool {
        if copal_device::share_bytes(self.path(), path) {
            return true;
        }
        let StoreLocation::Files(files) = self else {
            return false;
        };
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let path = path.canonicalize().or_else(|_| directory.unwrap_or(Path::new(".")).canonicalize());
        match (files.canonicalize(), path) {
            (Ok(files), Ok(path)) => path.starts_with(files),
            _ => false,
        }
    }

    /// Bytes that the store occupies on its file system; `None` without a file system, or if that has no
    /// answer.
    pub fn allocated_bytes(&self) -> Option<u64> {
        match self {
            StoreLocation::File(path) => Some(path.metadata().ok()?.blocks() * BLOCK_BYTES),
            StoreLocation::Files(directory) => allocated_below(directory).ok(),
            StoreLocation::Device(_) => None,
        }
    }

    /// Opens the store, if no other process has it. Blocks on the device.
    /// # Errors
    /// `ReadOnly`, `Objects`.
    pub fn open(
        &self,
        access: Access,
        options: &StoreOptions,
        patience: &Patience,
    ) -> Result<OpenedStore, NodeError> {
        if access == Access::Write {
            self.refuse_read_only()?;
        }
        self.open_as(access, options, &options.of_objects(access), patience)
    }

    /// Opens the readable parts of a damaged store, for reading.
    /// # Errors
    /// `Objects`.
    pub fn open_to_save(
        &self,
        options: &StoreOptions,
        patience: &Patience,
    ) -> Result<OpenedStore, NodeError> {
        let of_objects = OpenOptions { salvage: true, ..options.of_objects(Access::Read) };
        self.open_as(Access::Read, options, &of_objects, patience)
    }

    /// The store's structures, to be shown without opening it, if no other process has it.
    /// # Errors
    /// `Objects`.
    pub fn dump(&self, options: &StoreOptions, patience: &Patience) -> Result<StoreDump, NodeError> {
        let path = self.path();
        let opened = match self {
            StoreLocation::Files(dir) => patience.open(path, || StoreDump::in_dir(dir)),
            StoreLocation::File(path) | StoreLocation::Device(path) => {
                let file = FileOptions { read_only: true, ..options.of_file() };
                patience.open(path, || Ok(StoreDump::on(copal_device::open_file(path, &file)?)))
            }
        };
        opened.map_err(|source| NodeError::Objects { path: path.to_owned(), source })
    }

    /// Refuses to write a file without any write permission, also for root, and a block device that takes no writes.
    fn refuse_read_only(&self) -> Result<(), NodeError> {
        let path = self.path();
        let has_no_permission = path.metadata().is_ok_and(|meta| meta.permissions().readonly());
        if has_no_permission || refuse_read_only_device(path).is_err() {
            return Err(NodeError::ReadOnly { path: path.to_owned() });
        }
        Ok(())
    }

    fn open_as(
        &self,
        access: Access,
        options: &StoreOptions,
        of_objects: &OpenOptions,
        patience: &Patience,
    ) -> Result<OpenedStore, NodeError> {
        let path = self.path();
        let opened = match self {
            StoreLocation::Files(dir) => patience.open(path, || Store::open_dir(dir, of_objects)),
            StoreLocation::File(path) | StoreLocation::Device(path) => {
                let file = FileOptions { read_only: access == Access::Read, ..options.of_file() };
                patience.open(path, || Store::open(copal_device::open_file(path, &file)?, of_objects))
            }
        };
        let (store, recovery) =
            opened.map_err(|source| NodeError::Objects { path: path.to_owned(), source })?;
        if let Some(reason) = &recovery.tail_dropped {
            tracing::info!(reason, "unacknowledged records of an earlier run were dropped");
        }
        let path = path.display();
        if let Some(reason) = &recovery.tail_lost {
            tracing::warn!("the last acknowledged writes of {path} are lost: {reason}");
        }
        if let Some(older) = &recovery.older_state {
            let (generation, newest) = (older.generation, older.newest);
            tracing::warn!(
                "the newest tables of {path} cannot be read: this is its state {generation}, the newest is {newest}"
            );
        }
        if recovery.cut_bytes > 0 && !of_objects.salvage {
            let bytes = recovery.cut_bytes;
            tracing::warn!(
                "{path} has lost its last {bytes} bytes, where nothing lay: something cuts files short here"
            );
        }
        if recovery.checkpoint_pages_repaired > 0 {
            tracing::warn!(
                "a copy of the tables of {path} was damaged and is written anew: run `copal check --read-data`"
            );
        }
        Ok((store, recovery))
    }
}

/// Bytes that a directory and its contents occupy. Objects may appear and disappear meanwhile.
fn allocated_below(directory: &Path) -> std::io::Result<u64> {
    let mut bytes = directory.metadata()?.blocks() * BLOCK_BYTES;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        bytes += match entry.metadata() {
            Ok(meta) if meta.is_dir() => allocated_below(&entry.path())?,
            Ok(meta) => meta.blocks() * BLOCK_BYTES,
            Err(error) if error.kind() == ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
    }
    Ok(bytes)
}

/// Whether a directory exists. An error other than absence is returned, not taken for absence.
fn is_directory(path: &Path) -> Result<bool, NodeError> {
    match path.metadata() {
        Ok(meta) => Ok(meta.is_dir()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(false),
        Err(source) => Err(NodeError::System { path: path.to_owned(), action: "look at", source }),
    }
}

fn refuse_missing(directory: &Path, path: &Path) -> Result<(), NodeError> {
    let none = |found| Err(NodeError::NotFound { directory: directory.to_owned(), found });
    match path.metadata() {
        Ok(meta) if meta.is_dir() => none(MissingStore::Directory),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => none(MissingStore::Nothing),
        Err(error) if error.kind() == ErrorKind::NotADirectory => none(MissingStore::NotADirectory),
        Err(source) => Err(NodeError::System { path: directory.to_owned(), action: "look at", source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode};

    #[test]
    fn contents_of_the_place_are_distinguished() {
        let scratch = tempfile::tempdir().unwrap();
        let found = |named: &Path| match StoreLocation::find(named) {
            Err(NodeError::NotFound { found, .. }) => found,
            other => panic!("{other:?}"),
        };
        assert_eq!(found(scratch.path()), MissingStore::Nothing);
        let file = scratch.path().join("file");
        std::fs::write(&file, b"no directory").unwrap();
        assert_eq!(found(&file), MissingStore::NotADirectory);
        let taken = scratch.path().join("taken");
        std::fs::create_dir_all(taken.join(STORE_FILE)).unwrap();
        assert_eq!(found(&taken), MissingStore::Directory);
        assert!(matches!(refuse_taken(&taken), Err(NodeError::Taken { .. })));
        assert!(refuse_taken(scratch.path()).is_ok());
    }

    /// Symptom: a store at the name of a file was refused only when its directory was made, with "File exists".
    /// Cause: only names within the place were looked for. Fix: the place and the path above it are looked at.
    #[test]
    fn a_place_that_can_be_no_directory_is_refused_with_its_kind() {
        let scratch = tempfile::tempdir().unwrap();
        let at = |name: &str| scratch.path().join(name);
        std::fs::write(at("file"), b"data").unwrap();
        rustix::fs::mknodat(CWD, at("pipe"), rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        std::os::unix::fs::symlink(at("none"), at("dangling")).unwrap();
        std::os::unix::fs::symlink(at("circle"), at("circle")).unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        std::os::unix::fs::symlink(scratch.path(), at("directory")).unwrap();
        for (named, part, kind) in [
            (at("file"), at("file"), "a regular file"),
            (at("link"), at("link"), "a regular file"),
            (at("file/x/y"), at("file"), "a regular file"),
            (at("pipe"), at("pipe"), "a pipe"),
            (at("dangling"), at("dangling"), "a link that leads nowhere"),
            (at("dangling/x"), at("dangling"), "a link that leads nowhere"),
            (at("circle"), at("circle"), "a link that leads nowhere"),
            ("/dev/null".into(), "/dev/null".into(), "a character device"),
        ] {
            match refuse_taken(&named) {
                Err(NodeError::Occupied { path, at, found }) => {
                    assert_eq!((path, at, found), (named, part, kind))
                }
                other => panic!("{}: {other:?}", named.display()),
            }
        }
        for named in [at("new"), at("new/below"), at("directory"), at("directory/new"), "new".into()] {
            assert!(refuse_taken(&named).is_ok(), "{}", named.display());
        }
    }
}
