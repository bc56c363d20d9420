//! Where a repository lies: a preallocated file in a directory, a directory of files in it, or a block device.
//!
//! `DIR/store.copal` is the file; `DIR/store.files` holds one file per object; a block device named by `--repo` is the
//! store itself.
//!
//! Not here: how one comes into being (`making`), what is in the store (`repository`).

use crate::{
    arguments::Common,
    failure::{Failure, Outcome, exit},
    human,
    waiting::Waiting,
};
use copal_device::{DeviceError, FileOptions};
use copal_object::{OpenOptions, RecoveryReport, Store};
use std::{
    io::ErrorKind,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

/// What a command wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Look only.
    Read,
    /// Add or remove.
    Write,
}

/// Name of the store file in the repository's directory.
pub(crate) const STORE_FILE: &str = "store.copal";
/// Name of the directory of objects.
pub(crate) const STORE_FILES: &str = "store.files";

/// Unit in which a file system counts what a file takes.
const BLOCK_BYTES: u64 = 512;

/// One of the three.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A preallocated file.
    File(PathBuf),
    /// A directory of files.
    Files(PathBuf),
    /// A block device.
    Device(PathBuf),
}

/// A store, and what its recovery found.
pub(crate) type Opened = (Store, RecoveryReport);

/// The repository that was named.
pub(crate) fn directory(common: &Common) -> Outcome<&Path> {
    common
        .repo
        .as_deref()
        .ok_or_else(|| Failure::usage("which repository? give --repo DIR or set COPAL_REPOSITORY"))
}

pub(crate) fn is_block_device(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|meta| meta.file_type().is_block_device())
}

/// A directory holds one repository. What is on a block device is looked at when it is made.
pub(crate) fn refuse_taken(common: &Common) -> Outcome<()> {
    let named = directory(common)?;
    let mut names = [STORE_FILE, STORE_FILES].iter();
    if names.any(|name| named.join(name).symlink_metadata().is_ok()) {
        return Err(copal_backup::Error::RepositoryExists.into());
    }
    Ok(())
}

impl Place {
    /// Where the named repository lies.
    pub(crate) fn find(common: &Common) -> Outcome<Place> {
        let named = directory(common)?;
        if is_block_device(named) {
            return Ok(Place::Device(named.to_owned()));
        }
        let (file, files) = (named.join(STORE_FILE), named.join(STORE_FILES));
        if files.is_dir() {
            return Ok(Place::Files(files));
        }
        refuse_missing(named, &file)?;
        Ok(Place::File(file))
    }

    /// What it is called in sentences.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Place::File(path) | Place::Files(path) | Place::Device(path) => path,
        }
    }

    /// Whether a file or device is part of the store, or shares bytes with it. One that is not there yet lies where its
    /// directory does.
    pub(crate) fn holds(&self, path: &Path) -> bool {
        if copal_device::share_bytes(self.path(), path) {
            return true;
        }
        let Place::Files(files) = self else { return false };
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let path = path
            .canonicalize()
            .or_else(|_| directory.unwrap_or(Path::new(".")).canonicalize());
        match (files.canonicalize(), path) {
            (Ok(files), Ok(path)) => path.starts_with(files),
            _ => false,
        }
    }

    /// Bytes it takes on its file system; `None` where it has no file system, or that does not say.
    pub(crate) fn allocated_bytes(&self) -> Option<u64> {
        match self {
            Place::File(path) => Some(path.metadata().ok()?.blocks() * BLOCK_BYTES),
            Place::Files(directory) => allocated_below(directory).ok(),
            Place::Device(_) => None,
        }
    }

    /// Opens the store, when nobody else has it.
    pub(crate) fn open(&self, common: &Common, access: Access, waiting: &Waiting) -> Outcome<Opened> {
        if access == Access::Write {
            refuse_read_only(self.path())?;
        }
        self.open_as(common, access, &open_options(common, access), waiting)
    }

    /// Opens whatever of the store can be understood, to read what is readable.
    pub(crate) fn open_to_save(&self, common: &Common, waiting: &Waiting) -> Outcome<Opened> {
        let options = OpenOptions {
            salvage: true,
            ..open_options(common, Access::Read)
        };
        self.open_as(common, Access::Read, &options, waiting)
    }

    fn open_as(
        &self,
        common: &Common,
        access: Access,
        options: &OpenOptions,
        waiting: &Waiting,
    ) -> Outcome<Opened> {
        let path = self.path();
        let opened = match self {
            Place::Files(dir) => waiting.open(path, || Store::open_dir(dir, options)),
            Place::File(path) | Place::Device(path) => {
                let file = FileOptions {
                    read_only: access == Access::Read,
                    ..file_options(common)
                };
                waiting.open(path, || {
                    Store::open(copal_device::open_file(path, &file)?, options)
                })
            }
        };
        let (store, recovery) = opened.map_err(|error| open_failure(path, error))?;
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
        if recovery.cut_bytes > 0 && !options.salvage {
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

/// What a directory and everything in it takes. Objects come and go meanwhile.
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

pub(crate) fn open_options(common: &Common, access: Access) -> OpenOptions {
    OpenOptions {
        read_only: access == Access::Read,
        max_size_bytes: common.store_limit,
        accept_tail_loss: common.accept_tail_loss,
        salvage: false,
    }
}

pub(crate) fn file_options(common: &Common) -> FileOptions {
    FileOptions {
        force_pread: common.no_io_uring,
        allow_cow: common.allow_cow,
        unsafe_volatile: common.allow_volatile,
        // What prune gives back goes to the file system.
        punch_holes: true,
        ..FileOptions::default()
    }
}

fn refuse_missing(dir: &Path, path: &Path) -> Outcome<()> {
    let none = |sentence| Err(Failure::new(exit::NO_REPOSITORY, "no_repository", sentence));
    match path.metadata() {
        Ok(meta) if meta.is_dir() => none(format!("{} is not a Copal store but a directory", path.display())),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => none(format!(
            "there is no repository at {}; check the path, or make one with `copal init --repo {}`",
            dir.display(),
            dir.display()
        )),
        Err(error) if error.kind() == ErrorKind::NotADirectory => none(format!(
            "{} is not a repository; a repository is a directory that `copal init` made",
            dir.display()
        )),
        Err(error) => Err(system_failure(dir, "look at", &error)),
    }
}

/// A file without any write permission is meant to be left alone, by root too.
fn refuse_read_only(path: &Path) -> Outcome<()> {
    if path.metadata().is_ok_and(|meta| meta.permissions().readonly()) {
        return Err(Failure::read_only(format!(
            "the store {} is read-only; give it write permission (chmod u+w), nothing was changed",
            path.display()
        )));
    }
    Ok(())
}

/// What a file or device that does not open means for the command.
pub(crate) fn device_failure(path: &Path, error: copal_device::OpenError) -> Failure {
    use copal_device::OpenError;
    let name = path.display();
    match error {
        OpenError::Locked { .. } => Failure::busy(path),
        OpenError::Permission { access, .. } => Failure::read_only(format!(
            "{name} may not be {access} by this user; change its permissions or run as its owner, nothing was changed"
        )),
        OpenError::ReadOnlyStorage { .. } => read_only_storage(path),
        OpenError::NoSpace { bytes, .. } => no_space(path, bytes),
        OpenError::CopyOnWrite { file_system, .. } => Failure::plain(
            "copy_on_write",
            format!(
                "{name} is on {file_system}, which writes elsewhere each time, so that preallocation promises nothing; \
                 use `copal init --backend hostfs`, or --allow-cow to accept it"
            ),
        ),
        OpenError::Volatile { file_system, .. } => Failure::plain(
            "volatile",
            format!(
                "{name} is on {file_system}, which loses everything at a reboot; use a disk, or --allow-volatile to \
                 accept it"
            ),
        ),
        other => Failure::plain("open", format!("cannot open the store: {other}")),
    }
}

/// What a system error means, which names no case of its own.
pub(crate) fn system_failure(path: &Path, action: &str, error: &std::io::Error) -> Failure {
    let name = path.display();
    match error.kind() {
        ErrorKind::ReadOnlyFilesystem => read_only_storage(path),
        ErrorKind::PermissionDenied => Failure::read_only(format!(
            "{name} may not be read or written by this user; change its permissions or run as its owner, nothing was changed"
        )),
        ErrorKind::InvalidFilename => name_too_long(path),
        _ => Failure::plain("open", format!("cannot {action} {name}: {error}")),
    }
}

fn name_too_long(path: &Path) -> Failure {
    Failure::plain(
        "name",
        format!(
            "the name {} is longer than its file system takes, mostly 255 bytes between two slashes and 4095 in all; \
             choose a shorter one, nothing was changed",
            path.display()
        ),
    )
}

fn read_only_storage(path: &Path) -> Failure {
    Failure::read_only(format!(
        "{} is on read-only storage; remount it writable and try again, nothing was changed",
        path.display()
    ))
}

fn no_space(path: &Path, bytes: u64) -> Failure {
    Failure::new(
        exit::FULL,
        "no_space",
        format!(
            "there is no room for {} at {}; free some or give a smaller --size",
            human::bytes(bytes),
            path.display()
        ),
    )
}

/// What a store that does not open means for the command.
pub(crate) fn open_failure(path: &Path, error: copal_object::OpenError) -> Failure {
    use copal_object::OpenError;
    let name = path.display();
    match error {
        OpenError::NotAStore => Failure::new(
            exit::NO_REPOSITORY,
            "not_a_store",
            format!("{name} is not a Copal store; check the path, nothing was changed"),
        ),
        OpenError::Open(copal_device::OpenError::NotFound { .. }) if path.is_dir() => Failure::new(
            exit::NO_REPOSITORY,
            "not_a_store",
            format!(
                "{name} is a directory, but not a Copal store of files, or parts of one are missing; check the path, \
                 nothing was changed"
            ),
        ),
        OpenError::Open(error) => device_failure(path, error),
        OpenError::Device(DeviceError::Io { source, .. })
            if matches!(
                source.kind(),
                ErrorKind::ReadOnlyFilesystem | ErrorKind::PermissionDenied
            ) =>
        {
            system_failure(path, "open", &source)
        }
        OpenError::Version { .. } => Failure::plain("version", format!("{name}: {error}; use a newer copal")),
        OpenError::TailLoss { what } => Failure::new(
            exit::DAMAGED,
            "tail_loss",
            format!(
                "{name}: the last acknowledged writes are damaged ({what}); put back a good copy of the file, or drop \
                 them with --accept-tail-loss"
            ),
        ),
        OpenError::Truncated {
            store_bytes,
            device_bytes,
        } => Failure::new(
            exit::DAMAGED,
            "damaged",
            format!(
                "{name} is cut off: it should have {} and has {}; nothing was changed, put back a whole copy of the \
                 store, or save what is whole with `copal repair store`",
                human::bytes(store_bytes),
                human::bytes(device_bytes)
            ),
        ),
        OpenError::Damaged { .. } => Failure::new(
            exit::DAMAGED,
            "damaged",
            format!(
                "{name}: {error}; nothing was changed, put back a good copy of the store, or save what is whole with `copal repair store`"
            ),
        ),
        other => Failure::plain("open", format!("{name}: {other}")),
    }
}
