//! Iterators over a key range at one sequence, from both ends.
//!
//! Invariants
//! - The view is pinned, so data ahead of an iterator is neither changed nor freed.
//! - If the budget is full, an iterator beyond the iterators' share is refused before it reads.
//! - The two ends never cross: each removes the keys it yields from the range that they share.

use crate::{
    Error,
    engine::Engine,
    format::{
        entry::{Entry, EntryKind, KEYSPACE_LEN, KeyRange, MAX_SEQ, successor, user_key},
        entry_cursor::Cursor,
        merge::MergingCursor,
    },
    memory::budget::{MemoryCharge, MemoryClass as Memory},
    read::{
        get::{self, WantedPart},
        passed_deletions::PassedDeletions,
    },
    session::read_counters::ReadCount,
    table::Scan,
    tree::{
        memtable::Memtable,
        snapshots::HeldSnapshot,
        version::{SortedRun, SuperVersion, TableHandle},
    },
};
use bytes::Bytes;
use std::sync::Arc;

/// Memory of a cursor over a memtable: its batch of entries.
const OF_A_MEMTABLE: usize = 6 << 10;
/// Memory of a cursor over a run, without its slices, its block and long read-ahead. It covers buffers for
/// single blocks, which are allocated after the cursor.
const OF_A_RUN: usize = 9 << 10;
/// Memory of a slice in such a cursor.
const OF_A_SLICE: usize = size_of::<(Arc<TableHandle>, KeyRange)>();

type Merged = MergingCursor<Box<dyn Cursor + Send>>;

/// Iterator over a key range, from both ends: `next()` ascending, `next_back()` descending.
///
/// Sees the store as of its creation. Blocks on reads. Ends after an error. If the budget has no room for one
/// more iterator, its first item is `OverBudget`.
pub struct Iter {
    engine: Arc<Engine>,
    view: Arc<SuperVersion>,
    /// Holds a snapshot's sequence as long as the iterator exists.
    _held: Option<Arc<HeldSnapshot>>,
    seq: u64,
    /// Keys that neither end has yielded or skipped.
    range: KeyRange,
    want: WantedPart,
    /// Part of each value that a scan of heads returns.
    head: WantedPart,
    tombstones: Vec<IterSource>,
    front: Option<Merged>,
    back: Option<Merged>,
    passed: PassedDeletions,
    /// Charge of the cursors of both ends; readers charge their blocks. The field comes after the cursors, so
    /// that it drops last.
    charge: MemoryCharge,
}

/// A visible key and its stored value.
struct FoundEntry {
    /// Key with its keyspace.
    key: Bytes,
    kind: EntryKind,
    /// The value, or an encoded pointer.
    value: Bytes,
}

/// Source of range tombstones.
enum IterSource {
    Memtable(Arc<Memtable>),
    Run(Arc<SortedRun>),
}

impl Iter {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        view: Arc<SuperVersion>,
        held: Option<Arc<HeldSnapshot>>,
        seq: u64,
        range: KeyRange,
        head: WantedPart,
    ) -> Iter {
        let memtables = view
            .memtables()
            .filter(|memtable| memtable.has_range_deletes())
            .cloned()
            .map(IterSource::Memtable);
        let runs = view.version.runs.iter().filter(|run| run.has_tombstones()).cloned().map(IterSource::Run);
        let tombstones = memtables.chain(runs).collect();
        Iter {
            engine: engine.clone(),
            passed: PassedDeletions::new(engine.clone(), view.clone()),
            view,
            _held: held,
            seq,
            range,
            want: WantedPart::all(),
            head,
            tombstones,
            front: None,
            back: None,
            charge: engine.budget.charge(Memory::Scans, 0),
        }
    }

    /// Returns only keys: values are empty, and separated values are not read.
    #[must_use]
    pub fn keys_only(mut self) -> Iter {
        self.want = WantedPart::Presence;
        self
    }

    /// Returns only the heads of values, as many bytes as the keyspace keeps beside pointers
    /// ([`KeyspaceOptions::value_head_bytes`](crate::KeyspaceOptions::value_head_bytes)). Reads no value
    /// object.
    #[must_use]
    pub fn heads(mut self) -> Iter {
        self.want = self.head.clone();
        self
    }

    /// Skips the remaining keys below `key`; the next ascending item is then the first one not below it. Has
    /// no effect if `key` was passed already. The next item's call does the reads.
    pub fn seek(&mut self, key: &[u8]) {
        // An iterator that has ended has no keyspace in its range, and nothing to skip.
        let Some(keyspace) = self.range.start.get(..KEYSPACE_LEN) else {
            return;
        };
        let start = Bytes::from([keyspace, key].concat());
        if start > self.range.start {
            self.range.start = start.min(self.range.end.clone());
            if self.front.take().is_some() && self.back.is_none() {
                self.charge.set(0);
            }
        }
    }

    /// Cursors over all remaining keys, for one end; charged before they are allocated.
    fn merged(&mut self) -> Result<Merged, Error> {
        self.engine.counters.reads.add(ReadCount::Seeks);
        let runs = self.view.version.runs.iter();
        let slices: usize = runs.map(|run| run.overlapping(&self.range).count()).sum();
        let runs = self.view.version.runs.len();
        let memtables = self.view.memtables().count();
        let bytes = memtables * OF_A_MEMTABLE + runs * OF_A_RUN + slices * OF_A_SLICE;
        self.charge.set(self.charge.bytes() + bytes as u64);
        self.engine.budget.check_scans()?;
        let mut children: Vec<Box<dyn Cursor + Send>> = Vec::new();
        for memtable in self.view.memtables() {
            children.push(Box::new(memtable.cursor()));
        }
        for run in &self.view.version.runs {
            children.push(Box::new(run.cursor(&self.range, Scan::default())));
        }
        Ok(MergingCursor::new(children))
    }

    fn covered(&self, key: &[u8], seq: u64) -> bool {
        self.tombstones.iter().any(|source| match source {
            IterSource::Memtable(memtable) => memtable.cover(key, self.seq) > seq,
            IterSource::Run(run) => run.cover(key, self.seq) > seq,
        })
    }

    fn item(&self, found: &FoundEntry) -> Result<(Bytes, Bytes), Error> {
        let value = get::resolve(&self.engine, found.kind, found.value.clone(), &self.want)?;
        Ok((user_key(&found.key), value))
    }

    /// Ends the iterator after an error.
    fn end_or_entry<T>(&mut self, step: Result<Option<T>, Error>) -> Option<Result<T, Error>> {
        match step {
            Ok(item) => item.map(Ok),
            Err(error) => {
                self.end::<()>();
                Some(Err(error))
            }
        }
    }

    fn end<T>(&mut self) -> Option<T> {
        self.range.start = self.range.end.clone();
        (self.front, self.back) = (None, None);
        self.charge.set(0);
        None
    }

    fn step_front(&mut self) -> Result<Option<FoundEntry>, Error> {
        let mut cursor = match self.front.take() {
            Some(cursor) => cursor,
            None => {
                let mut cursor = self.merged()?;
                cursor.seek(&self.range.start, MAX_SEQ)?;
                self.engine.budget.check_scans()?;
                cursor
            }
        };
        // Skipped entries and their bytes, and whether the last handled key was skipped.
        let (mut passed, mut is_passed) = ((0, 0), false);
        loop {
            let Some(entry) = cursor.entry().filter(|entry| *entry.key < self.range.end[..]) else {
                self.passed.add(&self.range.start, passed);
                return Ok(self.end());
            };
            // Before the range: another version of a key that was handled.
            let is_behind = *entry.key < self.range.start[..];
            if is_behind || entry.seq > self.seq {
                if is_behind && is_passed {
                    count(&mut passed, &entry);
                }
                cursor.next()?;
                continue;
            }
            let (seq, kind, len) = (entry.seq, entry.kind, entry.key.len());
            // The key is a prefix of its successor, so one allocation holds both.
            self.range.start = successor(entry.key);
            let key = self.range.start.slice(..len);
            is_passed = kind == EntryKind::Delete || self.covered(&key, seq);
            if is_passed {
                cursor.entry().iter().for_each(|entry| count(&mut passed, entry));
                cursor.next()?;
                continue;
            }
            self.passed.add(&key, passed);
            let value = cursor.value();
            // Moved only when the next item is wanted: damage after this key does not concern it.
            self.front = Some(cursor);
            return Ok(Some(FoundEntry { key, kind, value }));
        }
    }

    fn step_back(&mut self) -> Result<Option<FoundEntry>, Error> {
        let mut cursor = match self.back.take() {
            Some(cursor) => cursor,
            None => {
                let mut cursor = self.merged()?;
                cursor.seek_for_prev(&self.range.end, MAX_SEQ)?;
                self.engine.budget.check_scans()?;
                cursor
            }
        };
        let mut passed = (0, 0);
        loop {
            let Some(entry) = cursor.entry().filter(|entry| *entry.key >= self.range.start[..]) else {
                self.passed.add(&self.range.end, passed);
                return Ok(self.end());
            };
            if *entry.key >= self.range.end[..] {
                cursor.prev()?;
                continue;
            }
            // Backward, a key's versions come oldest first: the last visible one counts.
            let key = Bytes::copy_from_slice(entry.key);
            let (mut newest, mut versions) = (None, (0, 0));
            while let Some(entry) = cursor.entry().filter(|entry| *entry.key == key[..]) {
                count(&mut versions, &entry);
                if entry.seq <= self.seq {
                    newest = Some((entry.seq, entry.kind, cursor.value()));
                }
                cursor.prev()?;
            }
            self.range.end = key.clone();
            let Some((seq, kind, value)) = newest else {
                continue;
            };
            if kind != EntryKind::Delete && !self.covered(&key, seq) {
                self.passed.add(&key, passed);
                self.back = Some(cursor);
                return Ok(Some(FoundEntry { key, kind, value }));
            }
            passed = (passed.0 + versions.0, passed.1 + versions.1);
        }
    }
}

/// Adds an entry and its bytes to the skipped ones.
fn count((entries, bytes): &mut (u64, u64), entry: &Entry<'_>) {
    *entries += 1;
    *bytes += (entry.key.len() + entry.value.len()) as u64;
}

impl Iterator for Iter {
    type Item = Result<(Bytes, Bytes), Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.range.is_empty() {
            return self.end();
        }
        let step = self.step_front();
        let found = self.end_or_entry(step)?;
        let item = found.and_then(|found| self.item(&found).map(Some));
        self.end_or_entry(item)
    }
}

impl DoubleEndedIterator for Iter {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.range.is_empty() {
            return self.end();
        }
        let step = self.step_back();
        let found = self.end_or_entry(step)?;
        let item = found.and_then(|found| self.item(&found).map(Some));
        self.end_or_entry(item)
    }
}
