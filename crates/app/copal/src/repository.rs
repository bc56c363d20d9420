//! Opens and closes a repository with the layers below it: the layers open first and close last.
//!
//! Commands that only read open the file without write access: many can run at once, also on a read-only
//! medium.

use crate::{
    arguments::{BackendArgs, BackendWord, CommonArgs, InitArgs},
    cache::{self, place::CachePlace},
    cluster,
    failure::{Failure, Outcome, exit},
    password,
    place::{ClusterPlace, RepositoryPlace, remote},
};
use copal_backup::{FoundRepository, IndexHome, InitOptions, KeptKey, Layout, Repository, Unlock};
use copal_client::{ClusterStore, LeaseError};
use copal_node::{
    Access, MemoryShares, NewStore, NodeError, OpenedStore, Patience, Stack, StoreLocation, UnfinishedStore,
    refuse_taken,
};
use copal_object::{ObjectId, ShrinkReport, StoreError};
use copal_remote::RemoteUrl;
use copal_volume::{VolumeError, VolumeStore};
use std::{
    fs::File,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

/// An open repository and the layers below it.
pub(crate) struct OpenRepository {
    /// The repository; dropped before the layers below are closed.
    repository: Option<Arc<Repository>>,
    ground: RepositoryStore,
    /// Index store of a repository in a cluster, if the index is not in memory.
    cache: Option<Box<Stack>>,
    trace: Option<GetTrace>,
}

/// Store below a repository.
enum RepositoryStore {
    /// A store of this machine.
    Store(Box<Stack>),
    /// A cluster, with the writer lease if the command writes.
    Cluster(ClusterStore),
    /// An object store, which has nothing to close.
    Remote,
}

/// State of a repository in an object store that a command sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemoteView {
    /// That of the moment it asks. For daemons, and for commands that wait.
    Current,
    /// That of its start, until it first writes: fewer requests.
    AtStart,
    /// As `AtStart`, with the chunk index of this machine for a command that only reads.
    Indexed,
    /// The stored bytes themselves, and no copies on this machine.
    Stored,
}

/// Recording of look-ups in the engine.
struct GetTrace {
    kv: copal_kv::Store,
    file: PathBuf,
}

impl GetTrace {
    fn start(kv: &copal_kv::Store, file: &Path) -> Outcome<GetTrace> {
        let begun = create_private(file).and_then(|to| kv.record_gets(Box::new(to)));
        begun.map_err(|error| GetTrace::failure(file, &error))?;
        Ok(GetTrace { kv: kv.clone(), file: file.to_owned() })
    }

    fn finish(self) -> Outcome<()> {
        let ended = self.kv.stop_recording_gets();
        ended.map(drop).map_err(|error| GetTrace::failure(&self.file, &error))
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

/// Creates a new file that only this user can read: chunk ids tell an owner of a disk whether the repository
/// holds it. An existing file or link under the name is left alone.
pub(crate) fn create_private(path: &Path) -> std::io::Result<File> {
    let mut options = File::options();
    options.write(true).create_new(true).mode(0o600).open(path)
}

impl OpenRepository {
    fn of(stack: Stack, repository: Repository, common: &CommonArgs) -> Outcome<OpenRepository> {
        let trace = common.record_gets.as_ref().map(|file| GetTrace::start(stack.kv(), file)).transpose()?;
        Ok(OpenRepository {
            repository: Some(Arc::new(repository)),
            ground: RepositoryStore::Store(Box::new(stack)),
            cache: None,
            trace,
        })
    }

    fn in_cluster(store: ClusterStore, repository: Repository) -> OpenRepository {
        OpenRepository {
            repository: Some(Arc::new(repository)),
            ground: RepositoryStore::Cluster(store),
            cache: None,
            trace: None,
        }
    }

    fn in_object_store(repository: Repository, cache: Option<Box<Stack>>) -> OpenRepository {
        OpenRepository {
            repository: Some(Arc::new(repository)),
            ground: RepositoryStore::Remote,
            cache,
            trace: None,
        }
    }

    /// The store below the repository; `None` for a repository that is not on this machine.
    pub(crate) fn store(&self) -> Option<&Stack> {
        match &self.ground {
            RepositoryStore::Store(stack) => Some(stack),
            RepositoryStore::Cluster(_) | RepositoryStore::Remote => None,
        }
    }

    /// The repository.
    pub(crate) fn repository(&self) -> &Repository {
        self.shared()
    }

    /// The repository, for threads that end before it is closed.
    pub(crate) fn shared(&self) -> &Arc<Repository> {
        // Only `close` takes it, and `close` consumes self.
        self.repository.as_ref().expect("present until closed")
    }

    /// Closes all layers from the top down, durably. If a prune has shrunk the store, the extra space of this
    /// command is returned too.
    pub(crate) fn close(self) -> Outcome<()> {
        if self.store().is_some_and(Stack::was_shrunk) {
            return self.close_and_shrink().map(drop);
        }
        self.close_after(|_| ()).map(drop)
    }

    /// Like [`OpenRepository::close`], and returns the free space of the store to the file system.
    pub(crate) fn close_and_shrink(self) -> Outcome<ShrinkReport> {
        self.close_after(|objects| {
            // The next prune retries a failure here; the close of the store reports it if it matters.
            objects.shrink().unwrap_or_else(|error| {
                // A store in segments never shrinks.
                if !matches!(error, StoreError::Fenced | StoreError::Unsupported { .. }) {
                    tracing::warn!("the store's file stays as large as it is: {error}");
                }
                ShrinkReport::default()
            })
        })
    }

    fn close_after<T: Default>(mut self, last: impl FnOnce(&copal_object::Store) -> T) -> Outcome<T> {
        self.repository = None;
        let recorded = self.trace.take().map_or(Ok(()), GetTrace::finish);
        let cached = self.cache.take().map_or(Ok(()), |cache| cache.close(|_| ()));
        let value = match self.ground {
            RepositoryStore::Store(stack) => stack.close(last)?,
            RepositoryStore::Cluster(mut store) => {
                store.release_lease();
                T::default()
            }
            RepositoryStore::Remote => T::default(),
        };
        cached?;
        recorded.map(|()| value)
    }
}

/// Creates a repository in the store that `plan` decides on. On failure nothing is left behind.
pub(crate) fn init(
    common: &CommonArgs,
    init: &InitArgs,
    chunking: copal_backup::ChunkProfile,
    plan: &dyn Fn(&Path) -> Outcome<NewStore>,
    patience: &Patience,
) -> Outcome<OpenRepository> {
    let named = common.repository()?;
    let place = RepositoryPlace::shared(named)?;
    let layout = init.layout(place.is_some())?;
    match &place {
        Some(RepositoryPlace::Cluster(place)) => {
            return init_in_cluster(common, init, (chunking, layout), place, patience);
        }
        Some(RepositoryPlace::Remote(url)) => {
            return init_in_object_store(common, init, (chunking, layout), url);
        }
        Some(RepositoryPlace::Store(_)) | None => {}
    }
    refuse_taken(named)?;
    refuse_size(named, init)?;
    let unlock = password::for_init(common)?;
    let options = common.store_options();
    let unfinished = UnfinishedStore::start(named, &options, &plan(named)?)?;
    let stack = Stack::open(
        unfinished.path(),
        unfinished.open(&options, patience)?,
        Access::Write,
        MemoryShares::of(common.memory_bytes())?.engine,
    )?;
    let shared: Arc<dyn VolumeStore> = stack.volumes().clone();
    let options = InitOptions { layout, profile: chunking, ..InitOptions::new(unlock) };
    let repository = Repository::init(shared, IndexHome::Kv(stack.kv().clone()), &options)?;
    let repository = common.with_threads(repository);
    unfinished.finish()?;
    OpenRepository::of(stack, repository, common)
}

/// Refuses a size that would be ignored: only a store file has a size to begin with.
fn refuse_size(named: &Path, init: &InitArgs) -> Outcome<()> {
    if init.size.is_none() {
        return Ok(());
    }
    if matches!(StoreLocation::find(named), Ok(StoreLocation::Device(_))) {
        return Err(Failure::usage(format!(
            "--size is for a store in a file, and a store takes all of the block device {}; leave --size out, nothing was \
             written",
            named.display()
        )));
    }
    if init.backend.backend == Some(BackendWord::Hostfs) {
        return Err(Failure::usage(
            "--size preallocates a file, and --backend hostfs preallocates none; leave it out, or limit the store with \
             --store-limit",
        ));
    }
    Ok(())
}

fn init_in_object_store(
    common: &CommonArgs,
    init: &InitArgs,
    (chunking, layout): (copal_backup::ChunkProfile, Layout),
    url: &RemoteUrl,
) -> Outcome<OpenRepository> {
    if init.size.is_some() || init.backend.backend.is_some() || init.force {
        return Err(Failure::usage(
            "--size, --backend and --force are for a store of this machine; leave them out with an object store",
        ));
    }
    if !layout.is_fleet() {
        return Err(Failure::usage(
            "an object store gives no host a lease, and the layout solo needs one writer at a time; leave --layout out",
        ));
    }
    let store = remote::connect(common, url)?;
    remote::check_properties(common, url)?;
    let unlock = password::for_init(common)?;
    let options = InitOptions { layout, profile: chunking, ..InitOptions::new(unlock) };
    let repository = Repository::init(Arc::new(store), IndexHome::Memory, &options)?;
    if let Some(place) = CachePlace::find(common, repository.info().domain)? {
        place.note_checked(url);
    }
    Ok(OpenRepository::in_object_store(common.with_threads(repository), None))
}

fn init_in_cluster(
    common: &CommonArgs,
    init: &InitArgs,
    (chunking, layout): (copal_backup::ChunkProfile, Layout),
    place: &ClusterPlace,
    patience: &Patience,
) -> Outcome<OpenRepository> {
    if init.size.is_some() || init.backend.backend.is_some() || init.force {
        return Err(Failure::usage(
            "--size, --backend and --force are for a store of this machine; leave them out with copal://",
        ));
    }
    let mut store = place.connect(common)?;
    let unlock = password::for_init(common)?;
    store.make_root().map_err(cluster::of_volume)?;
    take_lease(&mut store, place, patience)?;
    let options = InitOptions { layout, profile: chunking, ..InitOptions::new(unlock) };
    let repository = Repository::init(Arc::new(store.clone()), IndexHome::Memory, &options)?;
    Ok(OpenRepository::in_cluster(store, common.with_threads(repository)))
}

/// Takes the writer lease: one process at a time writes to a repository.
fn take_lease(store: &mut ClusterStore, place: &ClusterPlace, patience: &Patience) -> Outcome<()> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let holder = format!("process {} on {host}", std::process::id());
    let named = format!("copal://{}/{}", place.master, place.path);
    let is_held = |error: &LeaseError| matches!(error, LeaseError::Held { .. });
    let taken = patience.wait(Path::new(&named), is_held, || store.take_lease(&holder));
    taken.map_err(|error| match error {
        LeaseError::Held { .. } => Failure::new(
            exit::BUSY,
            "busy",
            format!("{named}: {error}; wait for it with --wait, or try again"),
        ),
        LeaseError::Call(error) => cluster::of_call(error),
    })
}

/// Opens the repository with the access and the view that the command needs.
pub(crate) fn open(
    common: &CommonArgs,
    access: Access,
    view: RemoteView,
    patience: &Patience,
) -> Outcome<OpenRepository> {
    let location = match RepositoryPlace::find(common)? {
        RepositoryPlace::Store(location) => location,
        RepositoryPlace::Cluster(place) => {
            return open_in_cluster(common, access, &place, IndexHome::Memory, patience);
        }
        RepositoryPlace::Remote(url) => {
            let wants_index = access == Access::Write || view == RemoteView::Indexed;
            return open_in_object_store(common, &url, (access, view), |cache| {
                cache.filter(|_| wants_index).and_then(|cache| cache.index(common))
            });
        }
    };
    let opened = location.open(access, &common.store_options(), patience)?;
    let engine_bytes = MemoryShares::of(common.memory_bytes())?.engine;
    let stack = open_stack(&location, opened, access, engine_bytes)?;
    let shared: Arc<dyn VolumeStore> = stack.volumes().clone();
    let repository = open_on(common, shared, IndexHome::Kv(stack.kv().clone()))?;
    OpenRepository::of(stack, repository, common)
}

/// Opens the layers of a local repository. On a block device, an `init` that was killed leaves a store without some of
/// them: for reading, that is no repository, and no damage.
fn open_stack(
    location: &StoreLocation,
    opened: OpenedStore,
    access: Access,
    engine_bytes: u64,
) -> Outcome<Stack> {
    let (objects, recovery) = &opened;
    // A store that lost a part may have held a repository.
    let is_whole = recovery.older_state.is_none() && recovery.tail_lost.is_none();
    let is_empty = objects.list(ObjectId(0), 1).is_empty();
    let unfinished = || {
        Failure::new(
            exit::NO_REPOSITORY,
            "no_repository",
            format!(
                "{} holds a store without a complete repository, as after a killed `copal init`; if no backup was made there, \
                 run that again, on a block device with --force",
                location.path().display()
            ),
        )
    };
    let stack = Stack::open(location.path(), opened, access, engine_bytes);
    stack.map_err(|error| match error {
        NodeError::Engine { .. } if access == Access::Read && is_whole && is_empty => unfinished(),
        // A complete one is opened without a write.
        NodeError::Volumes(VolumeError::Denied { .. }) if access == Access::Read && is_whole => unfinished(),
        error => error.into(),
    })
}

/// Opens a local repository again for reading, with the keys of an earlier opening.
pub(crate) fn open_kept(common: &CommonArgs, key: &KeptKey, patience: &Patience) -> Outcome<OpenRepository> {
    let RepositoryPlace::Store(location) = RepositoryPlace::find(common)? else {
        return Err(Failure::plain("store", "a repository that is not on this machine stays open"));
    };
    let opened = location.open(Access::Read, &common.store_options(), patience)?;
    let engine_bytes = MemoryShares::of(common.memory_bytes())?.engine;
    let stack = open_stack(&location, opened, Access::Read, engine_bytes)?;
    let shared: Arc<dyn VolumeStore> = stack.volumes().clone();
    let repository = key.open(shared, IndexHome::Kv(stack.kv().clone()))?;
    Ok(OpenRepository {
        repository: Some(Arc::new(repository)),
        ground: RepositoryStore::Store(Box::new(stack)),
        cache: None,
        trace: None,
    })
}

/// Like [`open`] for writing; the index of a repository in a cluster is in a store in `directory` instead of
/// memory. `plan` decides on a new one.
pub(crate) fn open_with_cache(
    common: &CommonArgs,
    directory: &Path,
    backend: BackendArgs,
    plan: &dyn Fn(&Path) -> Outcome<NewStore>,
    patience: &Patience,
) -> Outcome<OpenRepository> {
    let place = RepositoryPlace::find(common)?;
    if !place.is_shared() {
        if backend.backend.is_some() {
            return Err(Failure::usage(
                "--backend is for the cache of a repository on other machines, and this repository needs none; leave it out",
            ));
        }
        return open(common, Access::Write, RemoteView::Current, patience);
    }
    let stack = cache::open(common, directory, plan, patience)?;
    let index = IndexHome::Kv(stack.kv().clone());
    let mut opened = match &place {
        RepositoryPlace::Cluster(place) => open_in_cluster(common, Access::Write, place, index, patience)?,
        RepositoryPlace::Remote(url) => {
            // Objects beside the index, unless another place is named.
            let cache = common.cache.clone().or_else(|| Some(directory.to_owned()));
            let common = CommonArgs { cache, ..common.clone() };
            return open_in_object_store(&common, url, (Access::Write, RemoteView::Current), |_| Some(stack));
        }
        RepositoryPlace::Store(_) => {
            return Err(Failure::plain("store", "the repository is on this machine"));
        }
    };
    opened.cache = Some(Box::new(stack));
    Ok(opened)
}

fn open_in_cluster(
    common: &CommonArgs,
    access: Access,
    place: &ClusterPlace,
    index: IndexHome,
    patience: &Patience,
) -> Outcome<OpenRepository> {
    let mut store = place.connect(common)?;
    let repository = open_on(common, Arc::new(store.clone()), index)?;
    // In a fleet many processes write at once; the log of a VM decides which of them writes that VM.
    if access == Access::Write && !repository.info().layout.is_fleet() {
        take_lease(&mut store, place, patience)?;
    }
    Ok(OpenRepository::in_cluster(store, repository))
}

fn open_in_object_store(
    common: &CommonArgs,
    url: &RemoteUrl,
    (access, view): (Access, RemoteView),
    index: impl FnOnce(Option<&CachePlace>) -> Option<Stack>,
) -> Outcome<OpenRepository> {
    let store = remote::connect(common, url)?;
    let found = Repository::find(Arc::new(store.clone()))?.ok_or(copal_backup::Error::NoRepository)?;
    let place = CachePlace::find(common, found.domain())?;
    check_once(common, url, access, place.as_ref())?;
    let objects = place.as_ref().filter(|_| view != RemoteView::Stored).and_then(CachePlace::objects);
    if let Some(objects) = objects {
        store.use_cache(objects);
    }
    let cache = index(place.as_ref());
    let home = cache.as_ref().map_or(IndexHome::Memory, |stack| IndexHome::Kv(stack.kv().clone()));
    let found = match view {
        RemoteView::AtStart | RemoteView::Indexed => found.with_held_lists(),
        RemoteView::Current | RemoteView::Stored => found,
    };
    let repository = open_found(common, found, home)?;
    if !repository.info().layout.is_fleet() {
        return Err(Failure::new(
            exit::DENIED,
            "denied",
            format!(
                "{url} holds a repository of the layout solo, which needs a lease; an object store gives none"
            ),
        ));
    }
    Ok(OpenRepository::in_object_store(repository, cache.map(Box::new)))
}

/// Checks the properties of the store before this host first writes to it.
fn check_once(
    common: &CommonArgs,
    url: &RemoteUrl,
    access: Access,
    place: Option<&CachePlace>,
) -> Outcome<()> {
    // A reader may read any copy, such as the replica of a bucket that is lost.
    if access == Access::Write && !place.map_or(Ok(false), |place| place.has_checked(url))? {
        remote::check_properties(common, url)?;
        if let Some(place) = place {
            place.note_checked(url);
        }
    }
    Ok(())
}

fn open_on(common: &CommonArgs, volumes: Arc<dyn VolumeStore>, index: IndexHome) -> Outcome<Repository> {
    let found = Repository::find(volumes)?.ok_or(copal_backup::Error::NoRepository)?;
    open_found(common, found, index)
}

fn open_found(common: &CommonArgs, mut found: FoundRepository, index: IndexHome) -> Outcome<Repository> {
    let encrypted = found.needs_password()?;
    let unlock = password::for_open(common, encrypted)?;
    if matches!(unlock, Unlock::Insecure) && encrypted {
        return Err(copal_backup::Error::PasswordNeeded.into());
    }
    Ok(common.with_threads(found.open(index, &unlock)?))
}
