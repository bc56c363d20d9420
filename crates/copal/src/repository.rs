//! The stack under a command: store file -> device -> objects -> keys and values -> volumes ->
//! repository, opened bottom to top and closed top to bottom.
//!
//! A repository is a directory with one preallocated file, `store.copal`. A new one grows under
//! another name and is renamed when it is whole, so that an `init` that was killed leaves nothing
//! that looks like a repository.
//! Commands that only read open the file without the right to write: many may run at once, also on
//! a read-only medium.

use crate::{
    arguments::Common,
    failure::{Failure, Outcome, exit},
    password,
    sealer::Sealer,
};
use copal_backup::{IndexHome, InitOptions, Repository, Unlock};
use copal_data::LocalStore;
use copal_device::FileOptions;
use copal_volume::VolumeStore;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Name of the store file in the repository's directory.
const STORE_FILE: &str = "store.copal";
/// Its name while `init` is at work.
const UNFINISHED_FILE: &str = "store.copal.unfinished";

/// How long a lock is waited for before another process is blamed.
const LOCK_PATIENCE: Duration = Duration::from_secs(2);
const LOCK_STEP: Duration = Duration::from_millis(10);

/// What a command wants to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// Look only.
    Read,
    /// Add or remove.
    Write,
}

/// An open repository with everything below it.
pub(crate) struct Opened {
    /// The repository; taken away before the layers below are closed.
    repository: Option<Repository>,
    volumes: Arc<LocalStore>,
    objects: copal_object::Store,
    recovery: copal_object::RecoveryReport,
    access: Access,
    sealer: Option<Sealer>,
}

/// How the memory of the process is shared out, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// For the engine: memtables, filters, indexes, caches.
    pub(crate) engine: u64,
    /// For the pipeline of the operation.
    pub(crate) pipeline: u64,
}

impl Memory {
    /// Code, stacks, the object store's tables and what the allocator does not give back.
    const REST: u64 = 24_000_000;
    /// Hashing the password takes 67 MB before anything else is there, and gives them back.
    const LEAST: u64 = 80_000_000;

    /// Shares out what the user allows.
    pub(crate) fn share(total: u64) -> Outcome<Memory> {
        if total < Memory::LEAST {
            return Err(Failure::usage(format!(
                "--memory {total} is too little: {} is the least that works",
                crate::human::bytes(Memory::LEAST)
            )));
        }
        let rest = total - Memory::REST;
        let engine = (rest / 3).min(1 << 30);
        Ok(Memory {
            engine,
            pipeline: rest - engine,
        })
    }
}

impl Opened {
    /// The repository.
    pub(crate) fn repository(&self) -> &Repository {
        // Taken away by `close` only, which consumes self.
        self.repository.as_ref().expect("present until closed")
    }

    /// The volumes below the repository.
    pub(crate) fn volumes(&self) -> &LocalStore {
        &self.volumes
    }

    /// What the store found out about itself when it was opened.
    pub(crate) fn recovery(&self) -> &copal_object::RecoveryReport {
        &self.recovery
    }

    /// The objects below the volumes.
    pub(crate) fn objects(&self) -> &copal_object::Store {
        &self.objects
    }

    /// Where the bytes of the store file are.
    pub(crate) fn space(&self) -> copal_object::Space {
        self.objects.space()
    }

    /// Closes everything from the top down, durably.
    pub(crate) fn close(mut self) -> Outcome<()> {
        self.repository = None;
        self.sealer = None;
        if self.access == Access::Write {
            self.volumes.close()?;
            // A closed store ends with a checkpoint: damage of what it covers is told from a crash.
            self.objects
                .close()
                .map_err(|error| Failure::plain("close", format!("closing the store: {error}")))?;
        }
        Ok(())
    }
}

fn directory(common: &Common) -> Outcome<&Path> {
    common
        .repo
        .as_deref()
        .ok_or_else(|| Failure::usage("which repository? give --repo DIR or set COPAL_REPOSITORY"))
}

/// Makes a repository. Nothing is left behind on failure.
pub(crate) fn init(common: &Common, size_bytes: u64, chunking: copal_backup::Profile) -> Outcome<Opened> {
    let dir = directory(common)?;
    let (store, unfinished) = (dir.join(STORE_FILE), dir.join(UNFINISHED_FILE));
    if store.symlink_metadata().is_ok() {
        return Err(copal_backup::Error::RepositoryExists.into());
    }
    let unlock = password::for_init(common)?;
    let made_dir = !dir.exists();
    let failed = |path: &Path, error: std::io::Error| {
        Failure::plain("create", format!("cannot create {}: {error}", path.display()))
    };
    std::fs::create_dir_all(dir).map_err(|error| failed(dir, error))?;
    match std::fs::remove_file(&unfinished) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(&unfinished, error)),
        _ => {}
    }
    let made = build(
        common,
        &unfinished,
        size_bytes,
        InitOptions {
            profile: chunking,
            ..InitOptions::new(unlock)
        },
    )
    .and_then(|opened| {
        std::fs::rename(&unfinished, &store).map_err(|error| failed(&store, error))?;
        let synced = std::fs::File::open(dir).and_then(|dir| dir.sync_all());
        synced.map_err(|error| failed(dir, error))?;
        Ok(opened)
    });
    if made.is_err() {
        // What cannot be removed says by its name what it is.
        let _ = std::fs::remove_file(&unfinished);
        if made_dir {
            let _ = std::fs::remove_dir(dir);
        }
    }
    made
}

fn build(common: &Common, path: &Path, size_bytes: u64, options: InitOptions) -> Outcome<Opened> {
    let device = FileOptions {
        create_size: Some(size_bytes.next_multiple_of(1 << 20)),
        ..file_options(common)
    };
    let device = copal_device::open_file(path, &device).map_err(|error| device_failure(path, error))?;
    copal_object::Store::mkfs(&device, &copal_object::MkfsOptions::default())
        .map_err(|error| open_failure(path, error))?;
    let Stack {
        objects,
        recovery,
        kv,
        volumes,
    } = stack(common, path, device, Access::Write)?;
    let shared: Arc<dyn VolumeStore> = volumes.clone();
    let repository = Repository::init(shared, IndexHome::Kv(kv), &options)?;
    Ok(Opened {
        repository: Some(repository),
        volumes,
        sealer: Some(Sealer::start(objects.clone())),
        objects,
        recovery,
        access: Access::Write,
    })
}

/// Opens a repository for what the command wants to do.
pub(crate) fn open(common: &Common, access: Access) -> Outcome<Opened> {
    let dir = directory(common)?;
    let path = dir.join(STORE_FILE);
    refuse_missing(dir, &path)?;
    if access == Access::Write {
        refuse_read_only(&path)?;
    }
    let options = FileOptions {
        read_only: access == Access::Read,
        ..file_options(common)
    };
    let device = open_device(&path, &options)?;
    let Stack {
        objects,
        recovery,
        kv,
        volumes,
    } = stack(common, &path, device, access)?;
    let encrypted = Repository::probe(&*volumes)?.ok_or(copal_backup::Error::NoRepository)?;
    let unlock = password::for_open(common, encrypted)?;
    if matches!(unlock, Unlock::Insecure) && encrypted {
        return Err(copal_backup::Error::PasswordNeeded.into());
    }
    let shared: Arc<dyn VolumeStore> = volumes.clone();
    let repository = Repository::open(shared, IndexHome::Kv(kv), &unlock)?;
    Ok(Opened {
        repository: Some(repository),
        volumes,
        sealer: (access == Access::Write).then(|| Sealer::start(objects.clone())),
        objects,
        recovery,
        access,
    })
}

/// Opens the store file; waits a little for a lock whose owner is gone.
///
/// The kernel takes down an io_uring in the background after its process ended, and the ring's
/// reference to the file keeps the lock until then: some milliseconds, more on a loaded machine.
fn open_device(path: &Path, options: &FileOptions) -> Outcome<Arc<dyn copal_device::Device>> {
    let began = Instant::now();
    loop {
        match copal_device::open_file(path, options) {
            Err(copal_device::OpenError::Locked { .. }) if began.elapsed() < LOCK_PATIENCE => {
                std::thread::park_timeout(LOCK_STEP);
            }
            result => return result.map_err(|error| device_failure(path, error)),
        }
    }
}

/// The layers below a repository.
struct Stack {
    objects: copal_object::Store,
    recovery: copal_object::RecoveryReport,
    kv: copal_kv::Store,
    volumes: Arc<LocalStore>,
}

fn stack(
    common: &Common,
    path: &Path,
    device: Arc<dyn copal_device::Device>,
    access: Access,
) -> Outcome<Stack> {
    let read_only = access == Access::Read;
    let options = copal_object::OpenOptions {
        read_only,
        max_size_bytes: common.store_limit,
        accept_tail_loss: common.accept_tail_loss,
    };
    let (objects, recovery) =
        copal_object::Store::open(device, &options).map_err(|error| open_failure(path, error))?;
    if let Some(reason) = &recovery.tail_dropped {
        tracing::info!(reason, "unacknowledged records of an earlier run were dropped");
    }
    let memory_bytes = Memory::share(common.memory)?.engine;
    let kv = copal_kv::Options {
        memory_bytes,
        read_only,
        ..copal_kv::Options::default()
    };
    let kv = copal_kv::Store::open(objects.clone(), kv).map_err(|error| engine_failure(path, &error))?;
    let volumes = Arc::new(LocalStore::open(kv.clone())?);
    Ok(Stack {
        objects,
        recovery,
        kv,
        volumes,
    })
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

fn engine_failure(path: &Path, error: &copal_kv::Error) -> Failure {
    let name = path.display();
    if error.is_corruption() {
        return Failure::new(
            exit::DAMAGED,
            "damaged",
            format!("{name}: {error}; nothing was changed"),
        );
    }
    if error.is_no_space() {
        return Failure::from(copal_backup::Error::NoSpace);
    }
    Failure::plain("open", format!("{name}: {error}"))
}
