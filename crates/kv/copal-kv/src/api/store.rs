//! The open engine as its users hold it.

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
/// The last handle (keyspaces, batches and snapshots included) that goes logs what was deferred and ends the
/// threads of the engine; only [`Store::close`] tells whether that worked.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<StoreInner>,
}

pub(crate) struct StoreInner {
    pub(crate) engine: Arc<Engine>,
    /// Flusher and worker.
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Open keyspaces by name; also the lock under which they are made and dropped.
    pub(crate) keyspaces: Mutex<HashMap<String, Arc<KeyspaceHandle>>>,
}

impl Store {
    /// Opens the engine in `objects`, making it when there is none: reads the manifest, replays the log.
    /// Blocks. Logs for which the budget has no room, of a session that had more, become tables first.
    ///
    /// The engine keeps its root in object 1 and takes further ids upwards; others may use ids they choose
    /// above.
    /// # Errors
    /// `Corrupt`: manifest, log or a table's own description is damaged. `OverBudget`: manifest and tables
    /// alone are more than the budget, or a read-only store's logs with them. `NoSpace`: logs have to become
    /// tables, and there is neither space for these nor room in memory for the logs. `Object`: the object
    /// layer failed. `AlreadyOpen`: another is open on these objects in this process. `Options`: one of the
    /// choices cannot work.
    pub fn open(objects: copal_object::Store, options: Options) -> Result<Store, Error> {
        Store::run(recovery::open(objects, options, None)?)
    }

    /// As [`Store::open`], within a memory that other stores may share: its total counts, not
    /// [`Options::memory_bytes`], and of the options of filters only their kind. Blocks.
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

    /// What an opening with [`Options::salvage`](crate::Options::salvage) could not read of the logs, a
    /// sentence each: acknowledged writes that are gone, deletions among them.
    #[must_use]
    pub fn lost_of_logs(&self) -> &[String] {
        &self.engine().lost_of_logs
    }

    /// Opens the keyspace, creating it durably when new. Options are kept from creation. Blocks.
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

    /// The keyspace of that name, if there is one.
    /// # Errors
    /// None today.
    pub fn open_keyspace(&self, name: &str) -> Result<Option<Keyspace>, Error> {
        let keyspaces = self.inner.keyspaces.lock();
        Ok(keyspaces.get(name).map(|handle| Keyspace::new(self, handle)))
    }

    /// Drops a keyspace and everything in it, durably; its space returns in the background.
    /// # Errors
    /// `NoKeyspace`, or a failed write.
    pub fn drop_keyspace(&self, name: &str) -> Result<(), Error> {
        let mut keyspaces = self.inner.keyspaces.lock();
        let handle = keyspaces.get(name).ok_or_else(|| Error::NoKeyspace(name.to_owned()))?.clone();
        let KeyRange { start, end } = handle.id.range();
        let engine = self.engine();
        // The keys first: a crash between leaves an empty keyspace, not keys of none.
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

    /// Most bytes of memory ([`Batch::memory_bytes`]) that one batch may take: about a third of the memory
    /// budget, divided by the stores that share it, and at most 64 MiB.
    #[must_use]
    pub fn batch_bytes(&self) -> u64 {
        self.engine().budget.batch_bytes()
    }

    /// An empty batch.
    #[must_use]
    pub fn batch(&self) -> Batch {
        Batch::new(self)
    }

    /// A repeatable view of all keyspaces as they are now.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::new(self)
    }

    /// Writes the memtables to tables. Blocks.
    /// # Errors
    /// `NoSpace`: what is logged stays logged, the tables are written when there is space.
    pub fn flush(&self) -> Result<(), Error> {
        let engine = self.engine();
        if engine.options.read_only {
            return Ok(());
        }
        flusher::flush_now(engine)
    }

    /// Everything logged so far survives power loss when this returns. Blocks.
    /// # Errors
    /// `Poisoned` after a failed write.
    pub fn sync(&self) -> Result<(), Error> {
        admission::sync(self.engine())
    }

    /// Whether writes that only add are refused for lack of space, or were lately: deletes go on, and what
    /// they free comes back by itself. It ends when there is clearly room again.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.engine().writes.pressure.is_full()
    }

    /// Bytes that writes may still take, about, including growth up to the limit of the object store. `None`:
    /// there is no limit, so only the host bounds it.
    #[must_use]
    pub fn room_bytes(&self) -> Option<u64> {
        let engine = self.engine();
        engine.writes.reserve.room_beside(&engine.objects)
    }

    /// Its user takes no more: everything that can be freed is freed now, whatever that costs, as if a put
    /// had found no room.
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

    /// Writes a line to `to` for every key that is looked up from now on, through any handle, until
    /// [`Store::stop_recording_gets`]: a trace that `copal-sim rules --trace` plays. Keys stand in it as
    /// tables have them, behind four bytes for their keyspace, and so do those that memtables and cached rows
    /// answer. Says at the head how many entries the tables hold, so flush before. Look-ups wait for one
    /// another while they are written down. A trace that is being recorded already ends here, and nobody is
    /// told whether it is whole.
    /// # Errors
    /// What `to` answers to the first lines.
    pub fn record_gets(&self, to: Box<dyn io::Write + Send>) -> io::Result<()> {
        let levels = self.stats().levels;
        let live = |level: &LevelStats| level.entries.saturating_sub(level.droppable);
        let keys = levels.iter().map(live).sum::<u64>();
        self.engine().recorder.start(to, keys.max(1))
    }

    /// Ends the recording; returns how many look-ups were written down, 0 when there was no recording.
    /// # Errors
    /// The first failure of a write: the trace lacks everything behind it.
    pub fn stop_recording_gets(&self) -> io::Result<u64> {
        self.engine().recorder.stop()
    }

    /// Where the filter units are and how hot what they stand for is: by run, by class, over the key space.
    #[must_use]
    pub fn filters(&self) -> Filters {
        let engine = self.engine();
        let page_reads = engine.caches.cache.counts().filter_page_reads;
        filter_report::report(engine.caches.cache.elastic(), &engine.super_version().version, page_reads)
    }

    /// Moves filter units to where the Gets so far want them, on the calling thread; the background thread,
    /// if there is one, does the same by itself. Blocks on reads.
    pub fn adjust_filters(&self) {
        self.engine().caches.cache.adjust_filters();
    }

    /// Makes everything durable and ends the threads; later calls answer `Closed`. The object store stays
    /// open.
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
            // The objects may be another engine's by now.
            return;
        }
        if let Err(error) = admission::sync(&self.engine) {
            tracing::warn!(%error, "deferred writes may be lost: the store was dropped and could not be synced");
        }
        self.join();
        if let Err(error) = close::end_session(&self.engine) {
            tracing::warn!(%error, "the store was dropped and could not note that nothing is left over");
        }
        close::let_go(&self.engine);
    }
}

/// Starts flusher and worker; none of them when that fails.
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

/// A thread that panics must not leave others waiting for it.
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
