//! Where a repository lies: a preallocated file in a directory, a directory of files in it, or a block device.
//!
//! `DIR/store.copal` is the file; `DIR/store.files` holds one file per object; a block device named by `--repo` is the
//! store itself. A new one of the first two grows under another name and is renamed when it is whole, so that an `init`
//! that was killed leaves nothing that looks like a repository.
//!
//! Not here: what is in the store (`repository`).

use crate::{
    arguments::{Backend, Common, Init},
    failure::{Failure, Outcome, exit},
    repository::Access,
};
use copal_device::FileOptions;
use copal_object::{MkfsOptions, OpenOptions, RecoveryReport, Store};
use std::{
    fs::File,
    io::Read,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Name of the store file in the repository's directory.
const STORE_FILE: &str = "store.copal";
/// Name of the directory of objects.
const STORE_FILES: &str = "store.files";
/// Behind either name while `init` is at work.
const UNFINISHED: &str = ".unfinished";
/// A block device whose beginning is not all zeros up to here holds something.
const PROBED_BYTES: usize = 1 << 20;

/// How long a lock is waited for before another process is blamed.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_STEP: Duration = Duration::from_millis(10);

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
type Opened = (Store, RecoveryReport);

/// The repository that was named.
pub(crate) fn directory(common: &Common) -> Outcome<&Path> {
    common
        .repo
        .as_deref()
        .ok_or_else(|| Failure::usage("which repository? give --repo DIR or set COPAL_REPOSITORY"))
}

fn is_block_device(path: &Path) -> bool {
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

    /// Opens the store.
    pub(crate) fn open(&self, common: &Common, access: Access) -> Outcome<Opened> {
        let path = self.path();
        if access == Access::Write {
            refuse_read_only(path)?;
        }
        let options = OpenOptions {
            read_only: access == Access::Read,
            max_size_bytes: common.store_limit,
            accept_tail_loss: common.accept_tail_loss,
        };
        let opened = match self {
            Place::Files(dir) => open_when_unlocked(|| Store::open_dir(dir, &options)),
            Place::File(path) | Place::Device(path) => {
                let file = FileOptions {
                    read_only: access == Access::Read,
                    ..file_options(common)
                };
                open_when_unlocked(|| Store::open(copal_device::open_file(path, &file)?, &options))
            }
        };
        let (store, recovery) = opened.map_err(|error| open_failure(path, error))?;
        if let Some(reason) = &recovery.tail_dropped {
            tracing::info!(reason, "unacknowledged records of an earlier run were dropped");
        }
        Ok((store, recovery))
    }
}

/// A store in the making; dropped before [`Making::finish`], nothing of it is left.
pub(crate) struct Making {
    unfinished: Place,
    /// Its name when it is whole.
    store: PathBuf,
    made_dir: Option<PathBuf>,
    finished: bool,
}

impl Making {
    /// Makes an empty store.
    pub(crate) fn start(common: &Common, init: &Init) -> Outcome<Making> {
        let named = directory(common)?;
        if is_block_device(named) {
            return start_on_device(common, init, named);
        }
        let failed = |path: &Path, error: std::io::Error| {
            Failure::plain("create", format!("cannot create {}: {error}", path.display()))
        };
        let made_dir = !named.exists();
        std::fs::create_dir_all(named).map_err(|error| failed(named, error))?;
        let name = match init.backend {
            Backend::Cow => STORE_FILE,
            Backend::Hostfs => STORE_FILES,
        };
        let path = named.join(format!("{name}{UNFINISHED}"));
        let unfinished = match init.backend {
            Backend::Cow => Place::File(path),
            Backend::Hostfs => Place::Files(path),
        };
        let making = Making {
            unfinished,
            store: named.join(name),
            made_dir: made_dir.then(|| named.to_owned()),
            finished: false,
        };
        let path = making.unfinished.path();
        remove(&making.unfinished).map_err(|error| failed(path, error))?;
        let made = match &making.unfinished {
            Place::Files(dir) => Store::mkfs_dir(dir, &MkfsOptions::default()),
            Place::File(path) | Place::Device(path) => {
                let file = FileOptions {
                    create_size: Some(init.size.next_multiple_of(1 << 20)),
                    ..file_options(common)
                };
                let device = copal_device::open_file(path, &file);
                device
                    .map_err(copal_object::OpenError::from)
                    .and_then(|device| Store::mkfs(&device, &MkfsOptions::default()))
            }
        };
        made.map_err(|error| open_failure(path, error))?;
        Ok(making)
    }

    /// The store, to be filled.
    pub(crate) fn open(&self, common: &Common) -> Outcome<Opened> {
        self.unfinished.open(common, Access::Write)
    }

    /// What it is called while it is not whole.
    pub(crate) fn path(&self) -> &Path {
        self.unfinished.path()
    }

    /// From now on it is a repository, durably.
    pub(crate) fn finish(mut self) -> Outcome<()> {
        let failed = |error| {
            Failure::plain(
                "create",
                format!("cannot create {}: {error}", self.store.display()),
            )
        };
        if !matches!(self.unfinished, Place::Device(_)) {
            std::fs::rename(self.unfinished.path(), &self.store).map_err(failed)?;
            let dir = self.store.parent().unwrap_or(Path::new("."));
            File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed)?;
        }
        self.finished = true;
        Ok(())
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // What cannot be removed says by its name what it is; a device that is half made holds no repository.
        let _ = remove(&self.unfinished);
        if let Some(dir) = &self.made_dir {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

fn start_on_device(common: &Common, init: &Init, path: &Path) -> Outcome<Making> {
    if init.backend == Backend::Hostfs {
        return Err(Failure::usage(format!(
            "{} is a block device; --backend hostfs takes a directory",
            path.display()
        )));
    }
    let device =
        copal_device::open_file(path, &file_options(common)).map_err(|error| device_failure(path, error))?;
    let mut beginning = Vec::new();
    let read = File::open(path).and_then(|file| file.take(PROBED_BYTES as u64).read_to_end(&mut beginning));
    read.map_err(|error| Failure::plain("open", format!("cannot read {}: {error}", path.display())))?;
    if beginning.iter().any(|&byte| byte != 0) && !init.force {
        return Err(Failure::new(
            exit::DENIED,
            "not_empty",
            format!(
                "{} is not empty and would be overwritten; give --force if nothing on it is needed",
                path.display()
            ),
        ));
    }
    Store::mkfs(&device, &MkfsOptions::default()).map_err(|error| open_failure(path, error))?;
    Ok(Making {
        unfinished: Place::Device(path.to_owned()),
        store: path.to_owned(),
        made_dir: None,
        finished: false,
    })
}

fn remove(place: &Place) -> std::io::Result<()> {
    let removed = match place {
        Place::File(path) => std::fs::remove_file(path),
        Place::Files(path) => std::fs::remove_dir_all(path),
        Place::Device(_) => Ok(()),
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Opens a store; waits a little for a lock whose owner is gone.
///
/// The kernel takes down an io_uring in the background after its process ended, and the ring's
/// reference to the file keeps the lock until then: some milliseconds, more on a loaded machine.
fn open_when_unlocked(
    open: impl Fn() -> Result<Opened, copal_object::OpenError>,
) -> Result<Opened, copal_object::OpenError> {
    let began = Instant::now();
    loop {
        match open() {
            Err(copal_object::OpenError::Open(copal_device::OpenError::Locked { .. }))
                if began.elapsed() < LOCK_PATIENCE =>
            {
                std::thread::park_timeout(LOCK_STEP);
            }
            result => return result,
        }
    }
}

fn file_options(common: &Common) -> FileOptions {
    FileOptions {
        force_pread: common.no_io_uring,
        allow_cow: common.allow_cow,
        unsafe_volatile: common.allow_volatile,
        ..FileOptions::default()
    }
}

fn refuse_missing(dir: &Path, path: &Path) -> Outcome<()> {
    let none = |sentence| Err(Failure::new(exit::NO_REPOSITORY, "no_repository", sentence));
    match path.metadata() {
        Ok(meta) if meta.is_dir() => none(format!("{} is not a Copal store but a directory", path.display())),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => none(format!(
            "there is no repository at {}; check the path, or make one with `copal init --repo {}`",
            dir.display(),
            dir.display()
        )),
        Err(error) if error.kind() == std::io::ErrorKind::NotADirectory => none(format!(
            "{} is not a repository; a repository is a directory that `copal init` made",
            dir.display()
        )),
        Err(error) => Err(Failure::plain(
            "open",
            format!("cannot look at {}: {error}", path.display()),
        )),
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

fn device_failure(path: &Path, error: copal_device::OpenError) -> Failure {
    use std::io::ErrorKind;
    match error {
        copal_device::OpenError::Locked { .. } => Failure::new(
            exit::BUSY,
            "busy",
            format!(
                "another process is using {}; wait for it to end and try again",
                path.display()
            ),
        ),
        copal_device::OpenError::Io { source, .. }
            if matches!(
                source.kind(),
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            Failure::read_only(format!(
                "the store {} may not be opened: {source}; check its permissions and mount options",
                path.display()
            ))
        }
        copal_device::OpenError::Io { source, .. } if source.kind() == ErrorKind::StorageFull => {
            Failure::plain(
                "no_space",
                format!(
                    "no space for {}; free some or give a smaller --size",
                    path.display()
                ),
            )
        }
        other => Failure::plain("open", format!("cannot open the store: {other}")),
    }
}

fn open_failure(path: &Path, error: copal_object::OpenError) -> Failure {
    use copal_object::OpenError;
    let name = path.display();
    match error {
        OpenError::NotAStore => Failure::new(
            exit::NO_REPOSITORY,
            "not_a_store",
            format!("{name} is not a Copal store; check the path, nothing was changed"),
        ),
        OpenError::Open(error) => device_failure(path, error),
        OpenError::Version { .. } => Failure::plain("version", format!("{name}: {error}; use a newer copal")),
        OpenError::TailLoss { what } => Failure::new(
            exit::DAMAGED,
            "tail_loss",
            format!(
                "{name}: the last acknowledged writes are damaged ({what}); put back a good copy of the file, or drop \
                 them with --accept-tail-loss"
            ),
        ),
        OpenError::Damaged { .. } | OpenError::Truncated { .. } => Failure::new(
            exit::DAMAGED,
            "damaged",
            format!("{name}: {error}; nothing was changed"),
        ),
        other => Failure::plain("open", format!("{name}: {other}")),
    }
}
