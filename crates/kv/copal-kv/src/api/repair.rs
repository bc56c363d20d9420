//! Replaces the contents of a key range in atomic batches, to refill a damaged range.
//!
//! Invariants
//! - Each batch atomically deletes a stretch of the range and puts the stretch's entries. A reader finds a
//!   key damaged or with its given value, never absent because a repair was half done.
//! - A failed repair leaves the committed stretches repaired and the others unchanged.
//!
//! Not here: dropping the quarantined parts, which a purge does as well (`quarantine`).

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
use arc_swap::Guard;
use bytes::Bytes;
use std::{ops::Bound, sync::Arc};

/// Bytes of an entry in an unfinished batch, besides its key and value: half of the list's capacity may be
/// unused.
const ENTRY_BYTES: usize = 2 * size_of::<WriteOp>();

/// Result of a repair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RepairReport {
    /// Number of entries stored.
    pub entries: u64,
    /// Bytes of their keys and values.
    pub bytes: u64,
}

impl Keyspace {
    /// Durably replaces everything in the range by `entries`, usually from another replica, to refill a range
    /// of [`crate::Store::damaged_ranges`]. Blocks until the damaged parts are dropped, unless a snapshot or
    /// an iterator still holds them.
    ///
    /// `entries` must ascend strictly and lie in the range. A key of the range that is not among them is
    /// deleted, even if it was written after the damage. They may come from an [`Iter`](crate::Iter) of
    /// another store. Memory: one entry, and a quarter of the budget's log share, at most 1 MiB.
    /// # Errors
    /// `NotInRange`: an entry does not ascend or lies outside. An error of the iterator ends the repair and
    /// is returned. After these and after `NoSpace` the stretches replaced so far stay replaced.
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
            // Charged before it is kept, since a small value is copied.
            stretch.charge.set(stretch.charge.bytes() + (bytes + ENTRY_BYTES) as u64);
            stretch.puts.push(self.handle.put(&user_key, value)?);
        }
        stretch.commit(range.end.clone())?;
        worker::compact_now(engine, range)?;
        Ok(report)
    }
}

impl Keyspace {
    /// Drops the damaged parts of the range and keeps every row that a look-up can still read. Skips damaged
    /// parts of tables block by block. Blocks. The caller must prevent other writes to the range meanwhile.
    /// Memory: as [`Keyspace::repair`], and that of an iterator.
    /// # Errors
    /// As [`Keyspace::repair`].
    ///
    /// A read that fails for another reason than damage, such as a device error, ends the call with that
    /// error. All data is read once before the first change, so such an error normally changes nothing. If a
    /// device fails only at the second reading, the part before that place is salvaged and the rest is
    /// unchanged. No readable row is lost in either case.
    pub fn salvage(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> Result<RepairReport, Error> {
        self.handle.check()?;
        for entry in self.answering(range) {
            entry?;
        }
        self.repair(range, self.answering(range))
    }

    fn answering(&self, range: (Bound<&[u8]>, Bound<&[u8]>)) -> ReadableIter<'_> {
        let (view, seq) = self.engine().super_version_now();
        let view = Guard::into_inner(view);
        ReadableIter { keyspace: self, view, seq, range: self.handle.id.between(range), cursor: None }
    }
}

/// Iterator over the rows of a range that a look-up can read, ascending.
struct ReadableIter<'a> {
    keyspace: &'a Keyspace,
    view: Arc<SuperVersion>,
    seq: u64,
    /// The part of the range that lies ahead.
    range: KeyRange,
    /// Over every key that is readable in some source.
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
            // An older version of a key that was already returned.
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
    /// Memory charged for the puts.
    charge: MemoryCharge,
}

impl RepairStretch<'_> {
    /// Commits the gathered entries as the contents of everything before `end`; the next stretch begins
    /// there.
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
