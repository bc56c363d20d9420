//! Replacing the content of a key range in one stroke per batch: how a damaged range is refilled.
//!
//! Invariants
//! - Each batch deletes a stretch of the range and puts that stretch's entries, atomically: a reader finds a
//!   key damaged or as it was given, never absent because the repair was half done.
//! - A repair that fails leaves the stretches it committed repaired and the others as they were.
//!
//! Not here: giving free what was set apart, which a purge does as well (`quarantine`).

use crate::{
    Durability, Error, Keyspace,
    compact::worker,
    format::{
        entry::{KeyRange, MAX_SEQ, successor, user_key},
        entry_cursor::Cursor,
        merge::MergingCursor,
    },
    memory::budget::{MemoryCharge, MemoryClass as Memory},
    read::get::{self, CachePolicy, WantedPart},
    table::Scan,
    tree::version::SuperVersion,
    write::commit::{WriteOp, WriteRequest, leader},
};
use bytes::Bytes;
use std::{ops::Bound, sync::Arc};

/// Bytes of an entry in a batch that is being gathered, beside its key and value: the list may be half empty.
const ENTRY_BYTES: usize = 2 * size_of::<WriteOp>();

/// What a repair wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Entries stored.
    pub entries: u64,
    /// Their keys and values, bytes.
    pub bytes: u64,
}

impl Keyspace {
    /// Replaces everything in the range by `entries`, durably: refills what [`crate::Store::damaged_ranges`]
    /// names from another replica. Blocks until the damaged parts are dropped, unless a snapshot or an
    /// iterator still holds them.
    ///
    /// `entries` ascend strictly and lie in the range; what the range holds and they do not is gone, also
    /// what was written since the damage. They may be an [`Iter`](crate::Iter) of another store. Memory: a
    /// quarter of what the budget keeps for the log, so at most 1 MiB of them, and one entry.
    /// # Errors
    /// `NotInRange`: an entry does not ascend or lies outside. An error among the entries ends the repair
    /// with it. In both cases, and with `NoSpace`, what was replaced so far stays replaced.
    pub fn repair<I>(&self, range: (Bound<&[u8]>, Bound<&[u8]>), entries: I) -> Result<RepairReport, Error>
    where
        I: IntoIterator<Item = Result<(Bytes, Bytes), Error>>,
    {
        let engine = self.store.engine();
        if engine.options.read_only {
            return Err(Error::ReadOnly);
        }
        let id = self.handle.id;
        let range = id.between(range);
        if range.is_empty() {
            return Ok(RepairReport::default());
        }
        let mut report = RepairReport::default();
        let mut stretch = RepairStretch {
            keyspace: self,
            start: range.start.clone(),
            puts: Vec::new(),
            charge: engine.budget.charge(Memory::Log, 0),
        };
        let mut next = range.start.clone();
        for entry in entries {
            let (user_key, value) = entry?;
            let key = id.checked_key(&user_key)?;
            if key < next || key >= range.end {
                return Err(Error::NotInRange { key: user_key.escape_ascii().to_string() });
            }
            if stretch.charge.bytes() > engine.budget.waiting_bytes() {
                stretch.commit(key.clone())?;
            }
            next = successor(&key);
            report.entries += 1;
            let bytes = user_key.len() + value.len();
            report.bytes += bytes as u64;
            // Before it is kept: a small value is copied.
            stretch.charge.set(stretch.charge.bytes() + (bytes + ENTRY_BYTES) as u64);
            stretch.puts.push(self.handle.put(&user_key, value)?);
        }
        stretch.commit(range.end.clone())?;
        worker::compact_now(engine, range)?;
        Ok(report)
    }
}

impl Keyspace {
    /// Gives up what is damaged in the range and keeps every row that a look-up answers, wherever it stands:
    /// damaged parts of tables are passed over, block by block. Blocks. Nobody else should write to the range
    /// meanwhile. Memory as [`Keyspace::repair`], and that of a walk.
    /// # Errors
    /// As [`Keyspace::repair`]. What cannot be read for another reason than damage, so a device that errs,
    /// ends it with that error before anything was changed: everything is read once before the first change.
    /// Where a device errs for the first time at the second reading, what stands before that place is
    /// salvaged already, and the rest is as it was: no row that answers is lost in either case.
    pub fn salvage(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<RepairReport, Error> {
        self.handle.check()?;
        for entry in self.answering(range) {
            entry?;
        }
        self.repair(range, self.answering(range))
    }

    fn answering(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> ReadableIter<'_> {
        let (view, seq) = self.engine().super_version_now();
        ReadableIter { keyspace: self, view, seq, range: self.handle.id.between(range), cursor: None }
    }
}

/// Rows of a range that a look-up answers, ascending.
struct ReadableIter<'a> {
    keyspace: &'a Keyspace,
    view: Arc<SuperVersion>,
    seq: u64,
    /// What was not passed yet.
    range: KeyRange,
    /// Over every key that can be read somewhere.
    cursor: Option<MergingCursor<Box<dyn Cursor + Send>>>,
}

impl ReadableIter<'_> {
    fn walk(&self) -> MergingCursor<Box<dyn Cursor + Send>> {
        let scan = Scan { whole: true, past_damage: true, ..Scan::default() };
        let mut children: Vec<Box<dyn Cursor + Send>> = Vec::new();
        for memtable in self.view.memtables() {
            children.push(Box::new(memtable.cursor()));
        }
        for run in &self.view.version.runs {
            children.push(Box::new(run.cursor(&self.range, scan)));
        }
        MergingCursor::new(children)
    }

    fn step(&mut self) -> Result<Option<(Bytes, Bytes)>, Error> {
        let engine = self.keyspace.engine();
        let mut cursor = match self.cursor.take() {
            Some(cursor) => cursor,
            None => {
                let mut cursor = self.walk();
                cursor.seek(&self.range.start, MAX_SEQ)?;
                cursor
            }
        };
        while let Some(entry) = cursor.entry().filter(|entry| *entry.key < self.range.end[..]) {
            // Another version of a key that was asked for.
            if *entry.key < self.range.start[..] {
                cursor.next()?;
                continue;
            }
            let key = Bytes::copy_from_slice(entry.key);
            self.range.start = successor(&key);
            match get::get(engine, &self.view, self.seq, &key, &WantedPart::all(), CachePolicy::Nothing) {
                Ok(Some(value)) => {
                    self.cursor = Some(cursor);
                    return Ok(Some((user_key(&key), value)));
                }
                Ok(None) => {}
                Err(error) if error.is_corruption() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl Iterator for ReadableIter<'_> {
    type Item = Result<(Bytes, Bytes), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.range.is_empty() {
            return None;
        }
        let step = self.step();
        if !matches!(step, Ok(Some(_))) {
            self.range.start = self.range.end.clone();
        }
        step.transpose()
    }
}

/// The part of the range that the next batch replaces.
struct RepairStretch<'a> {
    keyspace: &'a Keyspace,
    start: Bytes,
    puts: Vec<WriteOp>,
    /// Memory of the puts.
    charge: MemoryCharge,
}

impl RepairStretch<'_> {
    /// Commits what there is as the content of everything before `end`; the next stretch begins there.
    fn commit(&mut self, end: Bytes) -> Result<(), Error> {
        let start = std::mem::replace(&mut self.start, end.clone());
        // The delete takes the first sequence of the batch, so it covers none of the puts.
        let delete = self.keyspace.handle.delete_range(KeyRange { start, end })?;
        let ops: Vec<WriteOp> = delete.into_iter().chain(self.puts.drain(..)).collect();
        let engine = self.keyspace.store.engine();
        leader::commit_with_room(engine, WriteRequest::new(ops, Durability::Device))?;
        self.charge.set(0);
        Ok(())
    }
}
