//! Scrub: reads everything in the background at a given pace, so that damage is found while a good copy still
//! exists.
//!
//! Invariants
//! - One partition at a time is held. Tables that merges replace meanwhile are read no further, and their
//!   replacements are left to the next scrub, since they are young.
//! - Flush, merges and readers never wait for a scrub; its reads are of the background class.
//! - It writes nothing. It quarantines damage (`quarantine`) and reports it.
//!
//! Not here: names and accounts ([`Store::verify`](crate::Store::verify)).

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
use copal_object::ObjectId;
use parking_lot::{Condvar, Mutex};
use std::{
    collections::BTreeMap,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// Progress of a scrub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScrubProgress {
    /// Bytes of tables and separated values to read, as estimated at the beginning.
    pub total_bytes: u64,
    /// Bytes read, or deleted before they were read.
    pub done_bytes: u64,
    /// Partitions of tables read.
    pub partitions: u64,
    /// Separated values read.
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
    let pace = if engine.options.threads { bytes_per_second } else { u64::MAX };
    let worker =
        ScrubWorker { engine, shared: shared.clone(), pace: ScrubPace::new(pace), began: Instant::now() };
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

/// Schedule of the reads. Pure.
#[derive(Clone, Copy, Debug)]
struct ScrubPace {
    bytes_per_second: u64,
    bytes: u64,
}

impl ScrubPace {
    fn new(bytes_per_second: u64) -> ScrubPace {
        ScrubPace { bytes_per_second: bytes_per_second.max(1), bytes: 0 }
    }

    /// Counts `bytes` as read; returns the time of the next read, from the beginning.
    fn read(&mut self, bytes: u64) -> Duration {
        self.bytes = self.bytes.saturating_add(bytes);
        let nanos = u128::from(self.bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

struct ScrubWorker {
    engine: Arc<Engine>,
    shared: Arc<ScrubState>,
    pace: ScrubPace,
    began: Instant,
}

impl ScrubWorker {
    fn run(mut self) -> Result<(), Error> {
        // Only the names: a version held for so long would keep dropped tables from being freed.
        let tables: BTreeMap<ObjectId, u64> = {
            let view = self.engine.super_version();
            let slices = view.version.runs.iter().flat_map(|run| &run.slices);
            let weigh = |slice: &TableSlice| {
                let meta = &slice.table.meta;
                let values: u64 = meta.values.iter().map(|(_, bytes)| *bytes).sum();
                (meta.object, meta.bytes + values)
            };
            slices.map(weigh).collect()
        };
        self.shared.progress.lock().total_bytes = tables.values().sum();
        let mut done = 0;
        for (object, bytes) in tables {
            if !self.table(object)? {
                return Ok(());
            }
            done += bytes;
            self.shared.progress.lock().done_bytes = done;
        }
        self.shared.progress.lock().finished = true;
        Ok(())
    }

    /// Reads one table if a run still contains it; `false`: the scrub should stop.
    fn table(&mut self, object: ObjectId) -> Result<bool, Error> {
        let mut partition = 0;
        loop {
            let view = self.engine.super_version();
            let Some(slice) = find(&view, object) else {
                return Ok(true);
            };
            let (bytes, more) = self.partition(&view, slice, partition)?;
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

    /// Reads one partition and the values it points to; returns the bytes read, and whether another follows.
    fn partition(
        &self,
        view: &SuperVersion,
        slice: &TableSlice,
        partition: u32,
    ) -> Result<(u64, bool), Error> {
        let table = &slice.table.table;
        let mut pointers: Vec<(Bytes, u64, Bytes)> = Vec::new();
        let found =
            TableVerifier::new(table).verify_partition(partition, IoClass::Background, &mut |entry| {
                if entry.kind == EntryKind::Pointer && slice.range.contains(entry.key) {
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
        progress.done_bytes = (progress.done_bytes + bytes).min(progress.total_bytes);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_bytes_over_rate_for_any_pieces() {
        let mut pace = ScrubPace::new(1000);
        assert_eq!(pace.read(500), Duration::from_millis(500));
        assert_eq!(pace.read(1500), Duration::from_secs(2));
        assert_eq!(ScrubPace::new(u64::MAX).read(1 << 20), Duration::ZERO);
        assert_eq!(ScrubPace::new(0).read(2), Duration::from_secs(2));
    }
}
