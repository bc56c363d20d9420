//! Giving finished ingests their place in the tree.
//!
//! Order: an ingest is newer than everything committed before it. Readers search memtables first, so what is
//! in memory goes to tables before; commits wait meanwhile. Each table then goes as deep as its keys allow:
//! to the bottom when no run has keys in its range, else in front of the newest run that has. Invariants
//! - The worker is between two steps when the tree changes: a merge must not meet keys it has not seen.
//! - The log that goes on is empty, so its first group may begin behind the sequence of the ingest.

use super::owned::Ingests;
use crate::{
    Error, Keyspace,
    broken::Flaw,
    compact::{
        install::Change,
        output::Written,
        picker::{TIERS, bottom_target},
    },
    engine::Engine,
    table::{entry::LAST_SEQ, key::KeyRange},
    tree::{
        manifest::format::{Level, Record, ValueMeta},
        version::Version,
    },
    write::commit::writer::Writer,
};
use copal_object::{Ack, Txn};
use std::sync::atomic::Ordering;

/// While it lives, merges end their table soon.
struct Waiting<'a>(&'a Ingests);

impl<'a> Waiting<'a> {
    fn new(ingests: &'a Ingests) -> Waiting<'a> {
        ingests.waiting.fetch_add(1, Ordering::Relaxed);
        Waiting(ingests)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Engine {
    /// Shows the tables and values of an ingest, durably and all at once.
    pub(super) fn install_ingest(
        &self,
        keyspace: &Keyspace,
        tables: Vec<Written>,
        values: Vec<ValueMeta>,
    ) -> Result<(), Error> {
        // The keyspace must not be dropped between the look at it and the transaction.
        let _keyspaces = keyspace.store.inner.keyspaces.lock();
        keyspace.handle.check()?;
        // Most of what is in memory goes to tables while others still write.
        self.flush_now()?;
        let mut writer = self.writes.writer.lock();
        writer.check_open()?;
        self.writes.queue.drain()?;
        self.empty_memory(&mut writer)?;
        let waiting = Waiting::new(&self.compactor.ingests);
        let still = self.compactor.stand_still();
        drop(waiting);
        let seq = self.snapshots.visible() + 1;
        if seq > LAST_SEQ {
            return Err(Error::NumbersUsedUp);
        }
        let version = self.super_version().version.clone();
        let run = self.new_run();
        let mut change = Change::default();
        let settled = |meta: ValueMeta| Record::Value(ValueMeta { max_seq: seq, ..meta });
        change.records.extend(values.into_iter().map(settled));
        for mut written in tables {
            (written.meta.ingested_at, written.meta.max_seq) = (Some(seq), seq);
            let level = level_for(&version, &written.range);
            let bottom = bottom_target();
            let run = if level == bottom.level { bottom.run } else { run };
            change.add_table(written, level, run);
            if self.broken(Flaw::IngestInParts) {
                change.records.push(Record::Flushed { generation: writer.log.generation - 1, last_seq: seq });
                self.install(std::mem::take(&mut change))?;
                self.too_early(Vec::new())?;
            }
        }
        change.records.push(Record::Flushed { generation: writer.log.generation - 1, last_seq: seq });
        drop(version);
        // Rows from before must be gone when the sequence becomes visible.
        let KeyRange { start, end } = keyspace.handle.id.range();
        self.caches.rows.wrote_range(&start, &end, seq);
        self.install(change)?;
        let durable = self.objects.commit(Txn::default(), Ack::Durable).wait();
        durable.map_err(|error| self.poison.failed_write(error))?;
        self.snapshots.advance(seq);
        drop(still);
        drop(writer);
        self.signal.kick();
        Ok(())
    }

    /// Brings everything committed into tables; the log is a new and empty one.
    fn empty_memory(&self, writer: &mut Writer) -> Result<(), Error> {
        loop {
            self.log_deferred_now(writer);
            self.wait_flushed(|engine| engine.super_version().frozen.is_empty())?;
            if self.super_version().active.is_empty() && writer.log.is_empty() {
                return Ok(());
            }
            self.in_reserve(|| self.next_log(writer))?;
        }
    }
}

/// The deepest level where a table of `range` hides nothing newer and is hidden by nothing older.
fn level_for(version: &Version, range: &KeyRange) -> Level {
    let overlaps = version.runs.iter().find(|run| run.overlapping(range).next().is_some());
    match overlaps.map(|run| run.level) {
        None => Level::BOTTOM,
        Some(Level::BOTTOM) => Level(TIERS - 1),
        Some(level) => level,
    }
}
