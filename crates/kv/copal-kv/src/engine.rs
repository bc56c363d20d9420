//! Shared state of an open store: the parts that commits, readers and the background threads share.
//!
//! Four fields own the rest:
//! - [`WritePath`]: state that only writes touch;
//! - [`StoredState`]: the tree, and objects that wait to be freed;
//! - [`CompactorState`]: state of flushes and merges;
//! - [`StoreCaches`]: parts of tables that are kept in memory.
//!
//! Invariants
//! - Lock order: writer, step, worker's values, direct values, tree, view.
//! - The holder of the writer lock may wait for a flush. So the flusher (while it holds the worker's values)
//!   and the worker (while it holds the step) never wait for the writer lock.
//! - A reader takes its sequence while its view is the current one, so its memtables hold everything up to that
//!   sequence.

use crate::{
    Error, KeyspaceOptions, Options,
    broken::Flaw,
    compact::compactor::CompactorState,
    format::{entry::KeyspaceId, range_tombstones::RangeTombstones},
    memory::{
        budget::{MemoryAccounts, MemoryClass, StoreCount},
        cache::TableCache,
        caches::StoreCaches,
    },
    session::{
        counters::EngineCounters, get_recorder::GetRecorder, inline_work::InlineWorker, poison::PoisonFlag,
        signal::WakeSignal,
    },
    table::{Damage, DamageAt, ReadOptions, Table, TableError},
    tree::{
        current_view::CurrentView,
        manifest::format::{ManifestRecord, TableMeta},
        memtable::Memtable,
        snapshots::SnapshotList,
        stored::StoredState,
        version::{SuperVersion, TableHandle, TreeVersion},
    },
    write::path::WritePath,
};
use arc_swap::Guard;
use copal_object::{Ack, ObjectId, Op, Store as Objects, StoreError, StoreOwnership, Txn};
use parking_lot::Mutex;
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

/// State of one open store; see the module.
pub(crate) struct Engine {
    pub(crate) objects: Objects,
    pub(crate) options: Options,
    pub(crate) seed: u64,
    /// Log ranges that an opening with [`Options::salvage`] could not read, one sentence each.
    pub(crate) lost_of_logs: Vec<String>,
    pub(crate) budget: MemoryAccounts,
    pub(crate) caches: StoreCaches,
    pub(crate) writes: WritePath,
    pub(crate) stored: StoredState,
    pub(crate) compactor: CompactorState,
    pub(crate) attendant: InlineWorker,
    pub(crate) _store_count: StoreCount,
    /// Ownership of the objects; `None` after the end of the session.
    pub(crate) ownership: Mutex<Option<StoreOwnership>>,
    pub(crate) view: CurrentView,
    pub(crate) snapshots: Arc<SnapshotList>,
    pub(crate) signal: Arc<WakeSignal>,
    pub(crate) poison: Arc<PoisonFlag>,
    pub(crate) counters: EngineCounters,
    pub(crate) recorder: GetRecorder,
    pub(crate) next_object: AtomicU64,
    pub(crate) closed: AtomicBool,
}

impl Engine {
    pub(crate) fn super_version(&self) -> Guard<Arc<SuperVersion>> {
        self.view.get()
    }

    /// The current view, and the newest sequence at which it may be read.
    pub(crate) fn super_version_now(&self) -> (Guard<Arc<SuperVersion>>, u64) {
        self.view.now(|| self.snapshots.visible())
    }

    /// Replaces the view by one derived from it.
    pub(crate) fn change_super_version(&self, change: impl FnOnce(&SuperVersion) -> SuperVersion) {
        self.view.change(change);
    }

    /// Whether a test disabled this ordering.
    #[cfg(test)]
    pub(crate) fn broken(&self, flaw: Flaw) -> bool {
        self.options.broken == Some(flaw)
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "asked like the one above")]
    pub(crate) fn broken(&self, _flaw: Flaw) -> bool {
        false
    }

    /// Commits `ops` at once, for a test that disabled the ordering.
    pub(crate) fn too_early(&self, ops: Vec<Op>) -> Result<(), Error> {
        let txn = Txn::new().ops(ops);
        let done = self.objects.commit(txn, Ack::Durable).wait();
        done.map(drop).map_err(|error| self.poison.failed_write(error))
    }

    /// Allocates a run number, greater than all earlier ones.
    pub(crate) fn new_run(&self) -> u64 {
        let mut tree = self.stored.tree.lock();
        let run = tree.next_run.max(tree.manifest.state.next_run);
        tree.next_run = run + 1;
        run
    }

    pub(crate) fn new_object(&self) -> ObjectId {
        ObjectId(self.next_object.fetch_add(1, Ordering::Relaxed))
    }

    /// Size at which a table ends, bytes: the option, limited so that two tables fit into the reserve of a
    /// small store.
    pub(crate) fn table_bytes(&self) -> u64 {
        const SHARE: u64 = 64;
        self.options.table_bytes.min((self.objects.space().size_bytes / SHARE).max(1 << 20))
    }

    /// # Errors
    /// `ReadOnly`, `Closed`, or `Poisoned` after a failed write.
    pub(crate) fn check_writable(&self) -> Result<(), Error> {
        if self.options.read_only {
            return Err(Error::ReadOnly);
        }
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::Closed);
        }
        self.poison.check()
    }

    /// Like [`Engine::run_inline`], but only if a wake-up is pending.
    pub(crate) fn run_inline_if_asked(&self) {
        if !self.options.threads && self.signal.take_wakes() {
            self.run_inline();
        }
    }

    /// In a store without threads, runs pending flushes and merges on the calling thread; otherwise does
    /// nothing.
    pub(crate) fn run_inline(&self) {
        if !self.options.threads {
            self.attendant.run();
        }
    }

    /// Opens a table that the manifest names.
    pub(crate) fn open_table(&self, meta: &TableMeta) -> Result<Arc<TableHandle>, Error> {
        open_table(&self.objects, &self.caches.cache, self.read_options(), meta)
    }

    fn read_options(&self) -> ReadOptions {
        ReadOptions { store_seed: self.seed }
    }

    /// Options of a keyspace; the defaults for a dropped one.
    pub(crate) fn keyspace_options(&self, id: KeyspaceId) -> KeyspaceOptions {
        let tree = self.stored.tree.lock();
        tree.manifest.state.keyspaces.get(&id).map(|space| space.options.clone()).unwrap_or_default()
    }

    /// Commits a manifest edit that changes no table.
    pub(crate) fn edit(&self, ops: Vec<Op>, records: &[ManifestRecord], ack: Ack) -> Result<(), Error> {
        let mut tree = self.stored.tree.lock();
        // Checked under the lock, since the end of a session takes this lock last.
        self.check_writable()?;
        tree.manifest.commit(&self.objects, &self.poison, ops, records, ack)?;
        tree.count_state();
        Ok(())
    }
}

/// Opens a table and cuts its range tombstones into fragments. Does not yet register its filters for
/// adjustment.
pub(crate) fn open_table(
    objects: &Objects,
    cache: &Arc<TableCache>,
    options: ReadOptions,
    meta: &TableMeta,
) -> Result<Arc<TableHandle>, Error> {
    let table = Table::open_object(objects, meta.object, cache.clone(), options)?;
    Ok(handle(table, meta, cache))
}

/// Like [`open_table`], but quarantines an unreadable table: its range answers `Corrupt`, and the rest of the
/// store stays readable.
pub(crate) fn open_or_set_apart(
    objects: &Objects,
    cache: &Arc<TableCache>,
    options: ReadOptions,
    meta: &TableMeta,
) -> Result<Arc<TableHandle>, Error> {
    let id = meta.object;
    let opened = Table::open_object(objects, id, cache.clone(), options).map_err(|error| match error {
        TableError::Object(StoreError::NotFound(_)) => Damage::Missing.at(id, DamageAt::Object),
        error => error,
    });
    let table = match opened {
        Err(error) if error.is_corruption() => {
            tracing::error!(table = id.0, %error, "a table cannot be read; its key range is quarantined");
            Table::broken(objects, id, cache.clone(), options, error)
        }
        opened => opened?,
    };
    Ok(handle(table, meta, cache))
}

fn handle(table: Arc<Table>, meta: &TableMeta, cache: &TableCache) -> Arc<TableHandle> {
    if let Some(seq) = meta.ingested_at {
        table.set_sequence(seq);
    }
    let tombstones = RangeTombstones::new(table.range_tombstones());
    let bytes = size_of::<TableHandle>() + tombstones.heap_bytes() + meta.values.len() * 16;
    let charge = cache.budget().charge(MemoryClass::RangeTombstones, bytes as u64);
    Arc::new(TableHandle { _charge: charge, meta: meta.clone(), table, tombstones })
}

/// The first view of a newly opened store.
pub(crate) fn first_super_version(
    active: Arc<Memtable>,
    frozen: Vec<Arc<Memtable>>,
    version: TreeVersion,
) -> SuperVersion {
    SuperVersion { active, frozen, version: Arc::new(version) }
}
