//! Sorted ingest: ascending keys straight into tables and value objects, installed at one sequence.
//!
//! Design: docs/design/kv.md#ranges KV-7
//! ```text
//! put .. put ── tables (staged) ──┐
//!          └─── value objects ────┴── finish: one object transaction, one sequence
//! ```
//! Invariants
//! - Until it is finished nothing of an ingest can be seen, and nothing of it stays when the writer is
//!   dropped or the process is killed: tables are staged, value objects have no name in the manifest and are
//!   swept.
//! - A finished ingest is newer than every write whose commit returned before `finish` was called, and older
//!   than every write that begins after it returned.
//! - Entries stand in the tables with sequence 0; the manifest says which sequence the table has.
//!
//! Not here: where the tables go in the tree (`install`).

mod install;
mod owned;

use crate::{
    Error, Keyspace,
    api::stats::Counters,
    compact::{
        merge::group_of,
        output::Output,
        value_separation::{Separation, WorkerValues},
        version_gc::Survivors,
    },
    engine::Engine,
    table::{
        entry::{Entry, EntryKind},
        key::border_between,
    },
    tree::{snapshots::Stripes, value::pointer::MAX_VALUE},
    write::commit::values::GroupKey,
};
use bytes::Bytes;
use copal_object::ObjectId;
pub(crate) use owned::Ingests;
use std::sync::Arc;

/// Takes ascending keys of one keyspace and makes them appear at once.
///
/// Costs one write of the data and no log. Dropped without [`IngestWriter::finish`], it leaves nothing
/// behind.
pub struct IngestWriter<'a> {
    keyspace: &'a Keyspace,
    engine: &'a Engine,
    output: Output<'a>,
    /// `None` once installed.
    separation: Option<Separation<'a>>,
    owned: Vec<ObjectId>,
    /// Nothing is dropped: there are no tombstones among ingested keys.
    survivors: Survivors,
    last_key: Option<Bytes>,
    keys: u64,
    user_bytes: u64,
    failed: Option<Error>,
}

impl Keyspace {
    /// Takes ascending keys past log and memtable, straight into tables, and shows them all at once when
    /// finished: for bulk loads and for copies of a range from elsewhere.
    /// # Errors
    /// `ReadOnly`, `Closed`, `Poisoned`, `NoKeyspace`.
    pub fn ingest_writer(&self) -> Result<IngestWriter<'_>, Error> {
        IngestWriter::new(self)
    }
}

impl<'a> IngestWriter<'a> {
    fn new(keyspace: &'a Keyspace) -> Result<IngestWriter<'a>, Error> {
        let engine = keyspace.engine();
        engine.check_writable()?;
        keyspace.handle.check()?;
        Ok(IngestWriter {
            keyspace,
            engine,
            // Ingests go where few keys are: their filters begin without heat of others.
            output: Output::new(engine, Bytes::new(), true, (Arc::default(), u8::MAX)),
            separation: Some(Separation::new(&engine.objects, &engine.budget, &WorkerValues::default())),
            owned: Vec::new(),
            survivors: Survivors::new(&[], Stripes::default(), true),
            last_key: None,
            keys: 0,
            user_bytes: 0,
            failed: None,
        })
    }

    /// Adds a key behind all keys added before. Blocks while earlier bytes are on their way to the device.
    /// # Errors
    /// `NotAscending`, `KeyTooLong`, `ValueTooLong`: the pair was not taken, the ingest goes on. `NoSpace` or
    /// a failed write: the ingest is lost and every later call answers the same.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.failed.clone().map_or(Ok(()), Err)?;
        self.engine.check_writable()?;
        let key = self.keyspace.handle.id.checked_key(key)?;
        if value.len() > MAX_VALUE {
            return Err(Error::ValueTooLong(value.len()));
        }
        if self.last_key.as_ref().is_some_and(|last| *last >= key) {
            return Err(Error::NotAscending);
        }
        let added = self.add(&key, value);
        if let Err(error) = &added {
            self.failed = Some(error.clone());
        }
        self.keys += 1;
        self.user_bytes += (key.len() + value.len()) as u64;
        self.last_key = Some(key);
        added
    }

    fn add(&mut self, key: &Bytes, value: &[u8]) -> Result<(), Error> {
        if self.output.is_full_before(key) {
            let last = self.last_key.as_ref();
            let border = last.map_or_else(|| key.clone(), |last| border_between(last, key));
            self.output.cut(&self.survivors, border)?;
        }
        let inline = Entry { key, seq: 0, kind: EntryKind::Put, value };
        let options = self.keyspace.options();
        let long = value.len() >= options.separate_from_bytes as usize;
        match group_of(options, key).filter(|_| long) {
            None => self.output.add(inline, false),
            Some(group) => {
                let pointer = self.separate(&group, value)?;
                let entry = Entry { kind: EntryKind::Pointer, value: &pointer, ..inline };
                self.output.add(entry, false)
            }
        }
    }

    fn separate(&mut self, group: &GroupKey, value: &[u8]) -> Result<Vec<u8>, Error> {
        let (engine, owned) = (self.engine, &mut self.owned);
        let new_object = || {
            let object = engine.compactor.ingests.own(engine.new_object());
            owned.push(object);
            object
        };
        let separation = self.separation.as_mut().ok_or(Error::Closed)?;
        let pointer = separation
            .place(group, value, self.keyspace.options().head_of(value), 0, new_object)
            .map_err(|error| engine.poison.failed_write(error))?;
        Ok(pointer.to_vec())
    }

    /// Makes all keys visible at once, durably; returns how many. Blocks; other writers wait while what was
    /// committed before goes to tables.
    /// # Errors
    /// As [`IngestWriter::put`], and `NoKeyspace` when the keyspace was dropped meanwhile. Nothing of the
    /// ingest is there then.
    pub fn finish(mut self) -> Result<u64, Error> {
        self.failed.clone().map_or(Ok(()), Err)?;
        self.engine.check_writable()?;
        if self.last_key.is_none() {
            return Ok(0);
        }
        let end = self.keyspace.handle.id.range().end;
        self.output.cut(&self.survivors, end)?;
        let separation = self.separation.as_mut().ok_or(Error::Closed)?;
        let values = separation.finish().map_err(|error| self.engine.poison.failed_write(error))?;
        let separated = separation.written;
        let written = std::mem::take(&mut self.output.written);
        let table_bytes: u64 = written.iter().map(|written| written.meta.bytes).sum();
        self.engine.install_ingest(self.keyspace, written, values)?;
        self.separation = None;
        let counters = &self.engine.counters;
        Counters::add(&counters.user_bytes, self.user_bytes);
        Counters::add(&counters.write_bytes, table_bytes + separated);
        Ok(self.keys)
    }
}

impl Drop for IngestWriter<'_> {
    fn drop(&mut self) {
        // Held, so that the store is not closed meanwhile. Once it is, the next opening frees what was
        // written: it was told that this was not finished.
        let writer = self.separation.is_some().then(|| self.engine.writes.writer.lock());
        if writer.as_ref().is_some_and(|writer| writer.check_open().is_err()) {
            return;
        }
        // After a failed write nobody knows what the manifest will say; the next opening does.
        let healthy = self.engine.poison.check().is_ok();
        if let Some(separation) = self.separation.take().filter(|_| healthy)
            && let Err(error) = separation.abandon(&mut WorkerValues::default())
        {
            self.engine.poison.set_by(&Error::Poisoned {
                reason: format!("could not take back the values of an ingest: {error}"),
                host_full: error.is_host_full(),
            });
        }
        self.engine.compactor.ingests.forget(&self.owned);
    }
}

impl std::fmt::Debug for IngestWriter<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IngestWriter")
            .field("keys", &self.keys)
            .field("user_bytes", &self.user_bytes)
            .finish_non_exhaustive()
    }
}
