//! A repository on the stack of layers below it: the stack is opened first and closed last.
//!
//! Commands that only read open the file without the right to write: many may run at once, also on
//! a read-only medium.

use crate::{
    arguments::{Common, Init},
    failure::{Failure, Outcome},
    password,
};
use copal_backup::{IndexHome, InitOptions, Repository, Unlock};
use copal_data::LocalStore;
use copal_node::{Access, MemoryShares, Patience, Stack, StoreLocation, UnfinishedStore, refuse_taken};
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
    stack: Stack,
    trace: Option<GetTrace>,
}

/// Look-ups of the engine that are being written down.
struct GetTrace {
    kv: copal_kv::Store,
    file: PathBuf,
}

impl GetTrace {
    fn start(kv: &copal_kv::Store, file: &Path) -> Outcome<GetTrace> {
        let begun = create_private(file).and_then(|to| kv.record_gets(Box::new(to)));
        begun.map_err(|error| GetTrace::failure(file, &error))?;
        Ok(GetTrace {
            kv: kv.clone(),
            file: file.to_owned(),
        })
    }

    fn finish(self) -> Outcome<()> {
        let ended = self.kv.stop_recording_gets();
        ended
            .map(drop)
            .map_err(|error| GetTrace::failure(&self.file, &error))
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

impl Opened {
    fn of(stack: Stack, repository: Repository, common: &Common) -> Outcome<Opened> {
        let trace = common.record_gets.as_ref();
        let trace = trace.map(|file| GetTrace::start(stack.kv(), file)).transpose()?;
        Ok(Opened {
            repository: Some(repository),
            stack,
            trace,
        })
    }

    /// The repository.
    pub(crate) fn repository(&self) -> &Repository {
        // Taken away by `close` only, which consumes self.
        self.repository.as_ref().expect("present until closed")
    }

    /// The volumes below the repository.
    pub(crate) fn volumes(&self) -> &LocalStore {
        self.stack.volumes()
    }

    /// What the store found out about itself when it was opened.
    pub(crate) fn recovery(&self) -> &copal_object::RecoveryReport {
        self.stack.recovery()
    }

    /// The objects below the volumes.
    pub(crate) fn objects(&self) -> &copal_object::Store {
        self.stack.objects()
    }

    /// Where the bytes of the store file are.
    pub(crate) fn space(&self) -> copal_object::Space {
        self.stack.objects().space()
    }

    /// Closes everything from the top down, durably. A store that a prune has made small stays so: what this command had
    /// to have and no longer needs goes back, too.
    pub(crate) fn close(self) -> Outcome<()> {
        if self.stack.was_shrunk() {
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
        self.repository = None;
        let recorded = self.trace.take().map_or(Ok(()), GetTrace::finish);
        let value = self.stack.close(last)?;
        recorded.map(|()| value)
    }
}

/// Makes a repository. Nothing is left behind on failure.
pub(crate) fn init(
    common: &Common,
    init: &Init,
    chunking: copal_backup::Profile,
    patience: &Patience,
) -> Outcome<Opened> {
    let named = common.repository()?;
    refuse_taken(named)?;
    let unlock = password::for_init(common)?;
    let options = common.store_options();
    let unfinished = UnfinishedStore::start(named, &options, &init.new_store())?;
    let stack = Stack::open(
        unfinished.path(),
        unfinished.open(&options, patience)?,
        Access::Write,
        MemoryShares::of(common.memory)?.engine,
    )?;
    let shared: Arc<dyn VolumeStore> = stack.volumes().clone();
    let options = InitOptions {
        profile: chunking,
        ..InitOptions::new(unlock)
    };
    let repository = Repository::init(shared, IndexHome::Kv(stack.kv().clone()), &options)?;
    unfinished.finish()?;
    Opened::of(stack, repository, common)
}

/// Opens a repository for what the command wants to do.
pub(crate) fn open(common: &Common, access: Access, patience: &Patience) -> Outcome<Opened> {
    let location = StoreLocation::find(common.repository()?)?;
    let opened = location.open(access, &common.store_options(), patience)?;
    let engine_bytes = MemoryShares::of(common.memory)?.engine;
    let stack = Stack::open(location.path(), opened, access, engine_bytes)?;
    let encrypted = Repository::probe(&**stack.volumes())?.ok_or(copal_backup::Error::NoRepository)?;
    let unlock = password::for_open(common, encrypted)?;
    if matches!(unlock, Unlock::Insecure) && encrypted {
        return Err(copal_backup::Error::PasswordNeeded.into());
    }
    let shared: Arc<dyn VolumeStore> = stack.volumes().clone();
    let repository = Repository::open(shared, IndexHome::Kv(stack.kv().clone()), &unlock)?;
    Opened::of(stack, repository, common)
}
