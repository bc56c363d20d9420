//! The stack under a command: place -> objects -> keys and values -> volumes -> repository, opened
//! bottom to top and closed top to bottom.
//!
//! Commands that only read open the file without the right to write: many may run at once, also on
//! a read-only medium.

use crate::{
    arguments::{Common, Init},
    failure::{Failure, Outcome, exit},
    making::Making,
    password,
    place::Access,
    place::{self, Place},
    sealer::Sealer,
    waiting::Waiting,
};
use copal_backup::{IndexHome, InitOptions, Repository, Unlock};
use copal_data::LocalStore;
use copal_object::{Shrunk, StoreError};
use copal_volume::VolumeStore;
use std::{
    fs::File,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// An open repository with everything below it.
pub(crate) struct Opened {
    /// The repository; taken away before the layers below are closed.
    repository: Option<Repository>,
    volumes: Arc<LocalStore>,
    objects: copal_object::Store,
    recovery: copal_object::RecoveryReport,
    access: Access,
    /// It had given space back to its file system when it was opened.
    was_shrunk: bool,
    sealer: Option<Sealer>,
    recording: Option<Recording>,
}

/// Look-ups of the engine that are being written down.
struct Recording {
    kv: copal_kv::Store,
    file: PathBuf,
}

impl Recording {
    fn start(kv: &copal_kv::Store, file: &Path) -> Outcome<Recording> {
        let begun = create_private(file).and_then(|to| kv.record_gets(Box::new(to)));
        begun.map_err(|error| Recording::failure(file, &error))?;
        Ok(Recording {
            kv: kv.clone(),
            file: file.to_owned(),
        })
    }

    fn finish(self) -> Outcome<()> {
        let ended = self.kv.stop_recording_gets();
        ended
            .map(drop)
            .map_err(|error| Recording::failure(&self.file, &error))
    }

    fn failure(file: &Path, error: &std::io::Error) -> Failure {
        Failure::plain(
            "record",
            format!(
                "cannot record look-ups in {}: {error}; name a new file where there is room",
                file.display()
            ),
        )
    }
}

/// A new file for this user alone: ids of chunks tell who knows a disk what is in the repository. What has the name
/// already, a link too, is left alone.
pub(crate) fn create_private(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600).open(path)
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
                "--memory {} is too little; give at least {}",
                crate::human::bytes(total),
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
    fn of(stack: Stack, repository: Repository, common: &Common, access: Access) -> Outcome<Opened> {
        let recording = common.record_gets.as_ref();
        let recording = recording
            .map(|file| Recording::start(&stack.kv, file))
            .transpose()?;
        Ok(Opened {
            repository: Some(repository),
            volumes: stack.volumes,
            sealer: (access == Access::Write).then(|| Sealer::start(stack.objects.clone())),
            objects: stack.objects,
            recovery: stack.recovery,
            access,
            was_shrunk: stack.was_shrunk,
            recording,
        })
    }

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

    /// Closes everything from the top down, durably. A store that a prune has made small stays so: what this command had
    /// to have and no longer needs goes back, too.
    pub(crate) fn close(self) -> Outcome<()> {
        if self.was_shrunk {
            return self.close_and_shrink().map(drop);
        }
        self.close_after(|_| ()).map(drop)
    }

    /// As [`Opened::close`], and gives the file system what is free in the store by then.
    pub(crate) fn close_and_shrink(self) -> Outcome<Shrunk> {
        self.close_after(|objects| {
            // What fails here is asked for again by the next prune, and told by the store's own close if it matters.
            objects.shrink().unwrap_or_else(|error| {
                if !matches!(error, StoreError::Fenced) {
                    tracing::warn!("the store's file stays as large as it is: {error}");
                }
                Shrunk::default()
            })
        })
    }

    fn close_after<T: Default>(mut self, last: impl FnOnce(&copal_object::Store) -> T) -> Outcome<T> {
        let mut value = T::default();
        self.repository = None;
        self.sealer = None;
        let recorded = self.recording.take().map_or(Ok(()), Recording::finish);
        if self.access == Access::Write {
            self.volumes.close()?;
            value = last(&self.objects);
            // A closed store ends with a checkpoint: damage of what it covers is told from a crash.
            self.objects
                .close()
                .map_err(|error| Failure::plain("close", format!("closing the store: {error}")))?;
        }
        recorded.map(|()| value)
    }
}

/// Makes a repository. Nothing is left behind on failure.
pub(crate) fn init(
    common: &Common,
    init: &Init,
    chunking: copal_backup::Profile,
    waiting: &Waiting,
) -> Outcome<Opened> {
    place::refuse_taken(common)?;
    let unlock = password::for_init(common)?;
    let making = Making::start(common, init)?;
    let stack = stack(
        common,
        making.path(),
        making.open(common, waiting)?,
        Access::Write,
    )?;
    let shared: Arc<dyn VolumeStore> = stack.volumes.clone();
    let options = InitOptions {
        profile: chunking,
        ..InitOptions::new(unlock)
    };
    let repository = Repository::init(shared, IndexHome::Kv(stack.kv.clone()), &options)?;
    making.finish()?;
    Opened::of(stack, repository, common, Access::Write)
}

/// Opens a repository for what the command wants to do.
pub(crate) fn open(common: &Common, access: Access, waiting: &Waiting) -> Outcome<Opened> {
    let place = Place::find(common)?;
    let stack = stack(common, place.path(), place.open(common, access, waiting)?, access)?;
    let encrypted = Repository::probe(&*stack.volumes)?.ok_or(copal_backup::Error::NoRepository)?;
    let unlock = password::for_open(common, encrypted)?;
    if matches!(unlock, Unlock::Insecure) && encrypted {
        return Err(copal_backup::Error::PasswordNeeded.into());
    }
    let shared: Arc<dyn VolumeStore> = stack.volumes.clone();
    let repository = Repository::open(shared, IndexHome::Kv(stack.kv.clone()), &unlock)?;
    Opened::of(stack, repository, common, access)
}

/// The layers below a repository.
struct Stack {
    objects: copal_object::Store,
    was_shrunk: bool,
    recovery: copal_object::RecoveryReport,
    kv: copal_kv::Store,
    volumes: Arc<LocalStore>,
}

fn stack(
    common: &Common,
    path: &Path,
    (objects, recovery): (copal_object::Store, copal_object::RecoveryReport),
    access: Access,
) -> Outcome<Stack> {
    let read_only = access == Access::Read;
    let memory_bytes = Memory::share(common.memory)?.engine;
    // Asked before the engine takes what it keeps for deletes.
    let was_shrunk = objects.space().hollow_bytes > 0;
    let kv = copal_kv::Options {
        memory_bytes,
        read_only,
        ..copal_kv::Options::default()
    };
    let kv = copal_kv::Store::open(objects.clone(), kv).map_err(|error| engine_failure(path, &error))?;
    let volumes = Arc::new(LocalStore::open(kv.clone())?);
    Ok(Stack {
        objects,
        was_shrunk,
        recovery,
        kv,
        volumes,
    })
}

/// What an engine that does not open means for the command.
pub(crate) fn engine_failure(path: &Path, error: &copal_kv::Error) -> Failure {
    let name = path.display();
    if error.is_corruption() {
        return Failure::new(
            exit::DAMAGED,
            "damaged",
            format!(
                "{name} does not open: {error}; no data was changed, put back a good copy of the store, or save \
                 what is whole with `copal repair store` (`copal kv dump` shows what is left)"
            ),
        );
    }
    if error.is_no_space() {
        return Failure::from(copal_backup::Error::NoSpace);
    }
    Failure::plain("open", format!("{name}: {error}"))
}
