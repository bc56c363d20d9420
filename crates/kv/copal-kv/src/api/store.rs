//! Public handle of an open engine.

use crate::{
    Batch, Durability, Error, Filters, Keyspace, KeyspaceOptions, LevelStats, MemoryBudget, Options,
    Snapshot, Stats,
    api::{keyspace::KeyspaceHandle, shape},
    compact::{flusher, worker},
    engine::Engine,
    format::entry::{KeyRange, KeyspaceId},
    open as recovery,
    open::close,
    tree::{
        filter_report,
        manifest::{
            format::{MAX_NAME, ManifestRecord},
            state::KeyspaceState,
        },
    },
    write::{
        admission,
        commit::{WriteOp, WriteRequest, leader},
    },
};
use copal_object::Ack;
use parking_lot::Mutex;
use std::{
    collections::HashMap,
    io,
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
};

/// Open engine; cheap to clone, safe to share between threads.
///
/// Dropping the last handle (keyspaces, batches and snapshots included) logs deferred writes and ends the
/// engine's threads. Only [`Store::close`] reports whether that worked.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<StoreInner>,
}

pub(crate) struct StoreInner {
    pub(crate) engine: Arc<Engine>,
    /// Threads of flusher and worker.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Open keyspaces by name; this lock also guards their creation and removal.
    pub(crate) keyspaces: Mutex<HashMap<String, Arc<KeyspaceHandle>>>,
}

impl Store {
    /// Opens the engine in `objects`: reads the manifest and replays the log. Creates the engine when there
    /// is none. Blocks. If a session with more memory left logs that exceed the budget, it flushes these to
    /// tables first.
    ///
    /// The engine keeps its root in object 1 and allocates further ids upwards; other users of `objects` may
    /// take ids well above.
    /// # Errors
    /// - `Corrupt`: manifest, log or the description of a table is damaged.
    /// - `OverBudget`: manifest and tables alone exceed the budget, or in a read-only store together with the
    ///   logs.
    /// - `NoSpace`: logs must become tables, and there is no space for the tables nor memory for the logs.
    /// - `Object`: the object layer failed.
    /// - `AlreadyOpen`: this process has another engine open on these objects.
    /// - `Options`: an option has an impossible value.
    pub fn open(objects: copal_object::Store, options: Options) -> Result<Store, Error> {
        Store::run(recovery::open(objects, options, None)?)
    }

    /// Like [`Store::open`], with a memory budget that other stores may share. The budget's total counts
    /// instead of [`Options::memory_bytes`]; of the filter options only the kind counts. Blocks.
    /// # Errors
    /// As [`Store::open`].
    pub fn open_within(
        objects: copal_object::Store,
        options: Options,
        budget: &MemoryBudget,
    ) -> Result<Store, Error> {
        Store::run(recovery::open(objects, options, Some(budget))?)
    }

    /// Starts the threads of an engine.
    fn run(engine: Arc<Engine>) -> Result<Store, Error> {
        let threads = if engine.options.read_only {
            Vec::new()
        } else if engine.options.threads {
            spawn_all(&engine)?
        } else {
            engine.attendant.begin(worker::attending(&engine));
            engine.run_inline();
            Vec::new()
        };
        let keyspaces = {
            let tree = engine.stored.tree.lock();
            let handle = |(id, space): (&KeyspaceId, &KeyspaceState)| {
                let handle = KeyspaceHandle::new(&engine, *id, &space.name, space.options.clone());
                (space.name.clone(), Arc::new(handle))
            };
            tree.manifest.state.keyspaces.iter().map(handle).collect()
        };
        let (threads, keyspaces) = (Mutex::new(threads), Mutex::new(keyspaces));
        Ok(Store { inner: Arc::new(StoreInner { engine, threads, keyspaces }) })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.inner.engine
    }

    /// Log ranges that an opening with [`Options::salvage`](crate::Options::salvage) could not read, one
    /// sentence each. Acknowledged writes in them are lost, deletions included.
    #[must_use]
    pub fn lost_of_logs(&self) -> &[String] {
        &self.engine().lost_of_logs
    }

    /// Opens the keyspace, and creates it durably when it does not exist. An existing keyspace keeps the
    /// options of its creation. Blocks.
    /// # Errors
    /// `NoSpace`, `Poisoned`, `ReadOnly` when it has to be created.
    pub fn keyspace(&self, name: &str, options: KeyspaceOptions) -> Result<Keyspace, Error> {
        let mut keyspaces = self.inner.keyspaces.lock();
        if let Some(handle) = keyspaces.get(name) {
            return Ok(Keyspace::new(self, handle));
        }
        let engine = self.engine();
        if engine.options.read_only {
            return Err(Error::ReadOnly);
        }
        if name.len() > MAX_NAME {
            return Err(Error::KeyTooLong(name.len()));
        }
        let id = KeyspaceId(engine.stored.tree.lock().manifest.state.next_keyspace);
        let record = ManifestRecord::Keyspace { id, name: name.to_owned(), options: options.clone() };
        engine.edit(Vec::new(), &[record], Ack::Durable)?;
        let handle = Arc::new(KeyspaceHandle::new(engine, id, name, options));
        keyspaces.insert(name.to_owned(), handle.clone());
        Ok(Keyspace::new(self, &handle))
    }

    /// The keyspace of that name, if it exists.
    /// # Errors
    /// None today.
    pub fn open_keyspace(&self, name: &str) -> Result<Option<Keyspace>, Error> {
        let keyspaces = self.inner.keyspaces.lock();
        Ok(keyspaces.get(name).map(|handle| Keyspace::new(self, handle)))
    }

    /// Durably drops a keyspace and its contents; the space is freed in the background.
    /// # Errors
    /// `NoKeyspace`, or a failed write.
    pub fn drop_keyspace(&self, name: &str) -> Result<(), Error> {
        let mut keyspaces = self.inner.keyspaces.lock();
        let handle = keyspaces.get(name).ok_or_else(|| Error::NoKeyspace(name.to_owned()))?.clone();
        let KeyRange { start, end } = handle.id.range();
        let engine = self.engine();
        // The keys first: a crash in between leaves an empty keyspace instead of keys without one.
        leader::commit(
            engine,
            WriteRequest::new(vec![WriteOp::DeleteRange { start, end }], Durability::Device),
        )?;
        let record = ManifestRecord::DropKeyspace { id: handle.id };
        admission::in_whole_reserve(engine, || {
            engine.edit(Vec::new(), std::slice::from_ref(&record), Ack::Durable)
        })?;
        handle.dropped.store(true, Ordering::Release);
        keyspaces.remove(name);
        engine.signal.request_rotation();
        Ok(())
    }

    /// Limit of [`Batch::memory_bytes`] for one batch: about a third of the memory budget, divided by the
    /// stores that share it, and at most 64 MiB.
    #[must_use]
    pub fn batch_bytes(&self) -> u64 {
        self.engine().budget.batch_bytes()
    }

    /// An empty batch.
    #[must_use]
    pub fn batch(&self) -> Batch {
        Batch::new(self)
    }

    /// A repeatable view of all keyspaces as of now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self)
    }

    /// Flushes the memtables to tables. Blocks.
    /// # Errors
    /// `NoSpace`: logged writes stay logged, and the tables are written once there is space.
    pub fn flush(&self) -> Result<(), Error> {
        let engine = self.engine();
        if engine.options.read_only {
            return Ok(());
        }
        flusher::flush_now(engine)
    }

    /// Makes everything logged so far survive power loss. Blocks.
    /// # Errors
    /// `Poisoned` after a failed write.
    pub fn sync(&self) -> Result<(), Error> {
        admission::sync(self.engine())
    }

    /// Whether puts are refused for lack of space, or were until recently. Deletes still work, and the space
    /// that they free comes back without further calls. The state ends once there is clearly enough space
    /// again.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.engine().writes.pressure.is_full()
    }

    /// Approximate bytes that writes may still take, including growth up to the limit of the object store.
    /// `None`: the store has no limit of its own, so only the host's space limits it.
    #[must_use]
    pub fn room_bytes(&self) -> Option<u64> {
        let engine = self.engine();
        engine.writes.reserve.room_beside(&engine.objects)
    }

    /// Frees everything that can be freed, at any cost, as if a put had found no space. For callers that stop
    /// writing before the store is full.
    pub fn make_room(&self) {
        let engine = self.engine();
        engine.writes.pressure.begin();
        engine.signal.wake_workers();
        engine.run_inline_if_asked();
    }

    /// The object store below.
    #[must_use]
    pub fn objects(&self) -> &copal_object::Store {
        &self.engine().objects
    }

    /// Counters since the store was opened.
    #[must_use]
    pub fn stats(&self) -> Stats {
        shape::stats(self.engine())
    }

    /// Starts to record: every later look-up through any handle writes a line to `to`, until
    /// [`Store::stop_recording_gets`]. `copal-sim rules --trace` plays the trace.
    ///
    /// - A key is recorded as tables store it, behind the four bytes of its keyspace.
    /// - Look-ups that memtables and cached rows answer are recorded too.
    /// - The head states the number of entries in tables, so flush before the call.
    /// - Look-ups wait for one another while they are written.
    /// - A recording in progress ends without a report of whether it is complete.
    /// # Errors
    /// Errors of `to` at the first lines.
    pub fn record_gets(&self, to: Box<dyn io::Write + Send>) -> io::Result<()> {
        let levels = self.stats().levels;
        let live = |level: &LevelStats| level.entries.saturating_sub(level.droppable);
        let keys = levels.iter().map(live).sum::<u64>();
        self.engine().recorder.start(to, keys.max(1))
    }

    /// Ends the recording; returns the number of recorded look-ups, 0 without a recording.
    /// # Errors
    /// The first failed write: the trace lacks everything after it.
    pub fn stop_recording_gets(&self) -> io::Result<u64> {
        self.engine().recorder.stop()
    }

    /// Filter units in memory and the heat of their partitions: by run, by class, over the key space.
    #[must_use]
    pub fn filters(&self) -> Filters {
        let engine = self.engine();
        let page_reads = engine.caches.cache.counts().filter_page_reads;
        filter_report::report(engine.caches.cache.elastic(), &engine.super_version().version, page_reads)
    }

    /// Moves filter units, on the calling thread, to the partitions where the Gets so far need them. The
    /// background thread, if any, does the same on its own. Blocks on reads.
    pub fn adjust_filters(&self) {
        self.engine().caches.cache.adjust_filters();
    }

    /// Makes everything durable and ends the threads; later calls answer `Closed`. The object store stays
    /// open. Blocks.
    /// # Errors
    /// `Poisoned` when the log could not be written.
    pub fn close(&self) -> Result<(), Error> {
        if self.engine().closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        close::leave_short_log(self.engine());
        let synced = admission::end_writes(self.engine());
        self.inner.join();
        let ended = synced.and_then(|()| close::end_session(self.engine()));
        close::let_go(self.engine());
        ended
    }
}

impl StoreInner {
    fn join(&self) {
        self.engine.signal.stop();
        self.engine.attendant.end();
        for thread in self.threads.lock().drain(..) {
            if thread.join().is_err() {
                self.engine.poison.set("a thread of the engine panicked");
            }
        }
    }
}

impl Drop for StoreInner {
    fn drop(&mut self) {
        if self.engine.closed.load(Ordering::Acquire) {
            // Another engine may own the objects by now.
            return;
        }
        if let Err(error) = admission::sync(&self.engine) {
            tracing::warn!(%error, "deferred writes may be lost: the store was dropped and could not be synced");
        }
        self.join();
        if let Err(error) = close::end_session(&self.engine) {
            tracing::warn!(%error, "the store was dropped and could not record a clean end");
        }
        close::let_go(&self.engine);
    }
}

/// Starts flusher and worker, or neither on failure.
fn spawn_all(engine: &Arc<Engine>) -> Result<Vec<JoinHandle<()>>, Error> {
    let flusher = spawn(engine, "copal-kv-flusher", |engine| flusher::run(&engine))?;
    match spawn(engine, "copal-kv-worker", worker::run) {
        Ok(worker) => Ok(vec![flusher, worker]),
        Err(error) => {
            engine.signal.stop();
            let _ = flusher.join();
            Err(error)
        }
    }
}

fn spawn(
    engine: &Arc<Engine>,
    name: &str,
    run: impl FnOnce(Arc<Engine>) + Send + 'static,
) -> Result<JoinHandle<()>, Error> {
    let engine = engine.clone();
    let thread = std::thread::Builder::new().name(name.to_owned());
    thread
        .spawn(move || {
            let _guard = PanicGuard(engine.clone());
            run(engine);
        })
        .map_err(|error| Error::poisoned(format!("a thread of the engine could not be started: {error}")))
}

/// Guard that keeps other threads from waiting for a thread that panicked.
struct PanicGuard(Arc<Engine>);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.poison.set("a thread of the engine panicked");
            self.0.signal.stop();
        }
    }
}

#[cfg(test)]
mod tests;
