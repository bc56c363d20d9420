//! Scrub: reads everything in the background at a given pace, so that damage is found while a good copy still
//! exists.
//!
//! The object store reads all of its data in the order of addresses, logs and its own structures included, and goes on
//! where the last scrub was interrupted. Only tables with damage, and tables that point into damaged value objects,
//! are then read by their own checksums. That finds the keys that are lost.
//!
//! Invariants
//! - One partition at a time is held. Tables that merges replace meanwhile are read no further.
//! - Flush, merges and readers never wait for a scrub; its reads are of the background class.
//! - It writes nothing but the place it has reached. It quarantines damage (`quarantine`) and reports it.
//!
//! Not here: names and accounts ([`Store::verify`](crate::Store::verify)), the order of the reads
//! (`copal_object::StoreScrub`).

use crate::{
    Error,
    care::verify::{self, concerns},
    engine::Engine,
    format::entry::EntryKind,
    table::{DamagedKeys, TableVerifier},
    tree::{
        value::pointer::ValuePointer,
        version::{SuperVersion, TableSlice},
    },
};
use bytes::Bytes;
use copal_device::IoClass;
use copal_object::{ObjectId, ScrubPace, StoreDamage, StoreScrub};
use parking_lot::{Condvar, Mutex};
use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Progress of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Bytes of all objects, as far as known.
    pub total_bytes: u64,
    /// Bytes of those that were read, by earlier sessions too, or deleted before they were read.
    pub done_bytes: u64,
    /// Partitions of tables that were read again, because the table or its values are damaged.
    pub partitions: u64,
    /// Separated values that were read again.
    pub values: u64,
    /// One sentence per damaged part; see also [`Store::damaged_ranges`](crate::Store::damaged_ranges).
    pub damaged: Vec<String>,
    /// Everything was read; `false` while it runs and after a cancel.
    pub finished: bool,
}

/// A running scrub; ends when it is done, cancelled or dropped, or the store is closed.
pub struct Scrub {
    shared: Arc<ScrubState>,
    thread: Option<JoinHandle<Result<(), Error>>>,
    /// Result of a scrub without a thread.
    ended: Option<Result<(), Error>>,
}

#[derive(Default)]
struct ScrubState {
    progress: Mutex<ScrubProgress>,
    cancelled: Mutex<bool>,
    wake: Condvar,
}

/// As [`crate::Store::scrub`].
pub(crate) fn start(engine: Arc<Engine>, bytes_per_second: u64) -> Result<Scrub, Error> {
    if engine.signal.stopping() {
        return Err(Error::Closed);
    }
    let shared = Arc::new(ScrubState::default());
    // Without a thread the caller reads, so nothing else waits.
    let pace = if engine.options.threads { bytes_per_second.max(1) } else { u64::MAX };
    let worker = ScrubWorker {
        engine,
        shared: shared.clone(),
        pace: ScrubPace::new(pace),
        began: Instant::now(),
        seen: HashSet::new(),
    };
    if !worker.engine.options.threads {
        let ended = Some(worker.run());
        return Ok(Scrub { shared, thread: None, ended });
    }
    let thread = std::thread::Builder::new().name("copal-kv-scrub".to_owned());
    let thread = thread
        .spawn(move || worker.run())
        .map_err(|error| Error::poisoned(format!("the scrub thread could not be started: {error}")))?;
    Ok(Scrub { shared, thread: Some(thread), ended: None })
}

impl Scrub {
    /// Bytes read and damage found so far.
    #[must_use]
    pub fn progress(&self) -> ScrubProgress {
        self.shared.progress.lock().clone()
    }

    /// Whether the scrub has ended, for any reason.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the scrub after its current part; does not wait.
    pub fn cancel(&self) {
        *self.shared.cancelled.lock() = true;
        self.shared.wake.notify_all();
    }

    /// Waits for the end. Damage is in the progress, not an error.
    /// # Errors
    /// The device failed.
    pub fn wait(mut self) -> Result<ScrubProgress, Error> {
        self.join()?;
        Ok(self.progress())
    }

    fn join(&mut self) -> Result<(), Error> {
        match self.thread.take().map(JoinHandle::join) {
            None => self.ended.take().unwrap_or(Ok(())),
            Some(Ok(ended)) => ended,
            Some(Err(_)) => Err(Error::poisoned("the scrub thread panicked")),
        }
    }
}

impl Drop for Scrub {
    fn drop(&mut self) {
        self.cancel();
        if let Err(error) = self.join() {
            tracing::warn!(%error, "a scrub failed, and no caller waited for it");
        }
    }
}

struct ScrubWorker {
    engine: Arc<Engine>,
    shared: Arc<ScrubState>,
    pace: ScrubPace,
    began: Instant,
    /// Damaged objects whose keys were looked for.
    seen: HashSet<ObjectId>,
}

impl ScrubWorker {
    fn run(mut self) -> Result<(), Error> {
        let mut scrub = self.engine.objects.scrub();
        let read = self.read_all(&mut scrub);
        if !scrub.progress().finished {
            scrub.keep_place();
        }
        read
    }

    fn read_all(&mut self, scrub: &mut StoreScrub) -> Result<(), Error> {
        loop {
            let mut damages = Vec::new();
            let step = scrub.step(&mut |damage| damages.push(damage.clone()))?;
            let progress = scrub.progress();
            {
                let mut shared = self.shared.progress.lock();
                (shared.total_bytes, shared.done_bytes) = (progress.total_bytes, progress.done_bytes);
                shared.finished = step.is_none();
            }
            for damage in &damages {
                if !self.find_keys(damage)? {
                    return Ok(());
                }
            }
            match step {
                Some(bytes) if self.pause(bytes) => {}
                _ => return Ok(()),
            }
        }
    }

    /// Reads the tables that a damage concerns by their own checksums; `false`: the scrub should stop.
    fn find_keys(&mut self, damage: &StoreDamage) -> Result<bool, Error> {
        let known = self.shared.progress.lock().damaged.len();
        if let StoreDamage::Object { id, .. } = damage {
            if !self.seen.insert(*id) {
                return Ok(true);
            }
            for table in self.tables_of(*id) {
                if !self.table(table, *id)? {
                    return Ok(false);
                }
            }
        }
        let mut progress = self.shared.progress.lock();
        if progress.damaged.len() == known {
            // No key is lost, or none is known: a log, the manifest, a structure of the object store.
            progress.damaged.push(damage.to_string());
        }
        Ok(true)
    }

    /// The table that is this object, or the tables with values in it. Only the names: a version held for long would
    /// keep dropped tables from being freed.
    fn tables_of(&self, object: ObjectId) -> BTreeSet<ObjectId> {
        let view = self.engine.super_version();
        let slices = view.version.runs.iter().flat_map(|run| &run.slices);
        let metas = slices.map(|slice| &slice.table.meta);
        let concerned =
            metas.filter(|meta| meta.object == object || meta.values.iter().any(|(of, _)| *of == object));
        concerned.map(|meta| meta.object).collect()
    }

    /// Reads one table if a run still contains it, and its values in `damaged`; `false`: the scrub should stop.
    fn table(&mut self, object: ObjectId, damaged: ObjectId) -> Result<bool, Error> {
        let mut partition = 0;
        loop {
            let view = self.engine.super_version();
            let Some(slice) = find(&view, object) else {
                return Ok(true);
            };
            let (bytes, more) = self.partition(&view, slice, partition, damaged)?;
            drop(view);
            if !self.pause(bytes) {
                return Ok(false);
            }
            if !more {
                return Ok(true);
            }
            partition += 1;
        }
    }

    /// Reads one partition, and those of its values that lie in `object`; returns the bytes read, and whether another
    /// partition follows.
    fn partition(
        &self,
        view: &SuperVersion,
        slice: &TableSlice,
        partition: u32,
        object: ObjectId,
    ) -> Result<(u64, bool), Error> {
        let table = &slice.table.table;
        let mut pointers: Vec<(Bytes, u64, Bytes)> = Vec::new();
        let found =
            TableVerifier::new(table).verify_partition(partition, IoClass::Background, &mut |entry| {
                let is_there =
                    ValuePointer::decode(entry.value).is_ok_and(|pointer| pointer.object == object);
                if entry.kind == EntryKind::Pointer && is_there && slice.range.contains(entry.key) {
                    let (key, pointer) =
                        (Bytes::copy_from_slice(entry.key), Bytes::copy_from_slice(entry.value));
                    pointers.push((key, entry.seq, pointer));
                }
            })?;
        let mut bytes = found.bytes;
        let counts = |damaged: &&DamagedKeys| concerns(slice, damaged);
        let mut damaged: Vec<String> = found.damaged.iter().filter(counts).map(ToString::to_string).collect();
        let mut values = 0;
        for (key, seq, pointer) in pointers {
            match verify::check_value(&self.engine, view, &key, seq, &pointer)? {
                None => {
                    values += 1;
                    bytes += ValuePointer::decode(&pointer).map_or(0, |pointer| u64::from(pointer.len));
                }
                Some(what) => damaged.push(what),
            }
        }
        let mut progress = self.shared.progress.lock();
        progress.partitions += u64::from(found.partitions);
        progress.values += values;
        progress.damaged.extend(damaged);
        Ok((bytes, found.more))
    }

    /// Waits until the next read is due; `false`: the scrub should stop.
    fn pause(&mut self, bytes: u64) -> bool {
        let due = self.began.checked_add(self.pace.read(bytes));
        let mut cancelled = self.shared.cancelled.lock();
        loop {
            if *cancelled || self.engine.signal.stopping() {
                return false;
            }
            // In short steps, as the end of the store does not wake this thread.
            let tick = Instant::now() + Duration::from_millis(50);
            match due {
                Some(due) if due <= Instant::now() => return true,
                due => drop(self.shared.wake.wait_until(&mut cancelled, due.unwrap_or(tick).min(tick))),
            }
        }
    }
}

fn find(view: &SuperVersion, object: ObjectId) -> Option<&TableSlice> {
    let mut slices = view.version.runs.iter().flat_map(|run| &run.slices);
    slices.find(|slice| slice.table.meta.object == object)
}
