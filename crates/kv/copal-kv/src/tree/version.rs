//! Versions of the tree: immutable lists of runs, newest first; a run is slices of tables, disjoint and
//! ascending.
//!
//! Invariants
//! - For one key, a run holds newer entries than every run after it (KV-13).
//! - A slice limits a table to a key range: data that a merge has moved lies outside all slices of its
//!   inputs.
//! - A version exists as long as it has a reference; garbage waits for its end (`garbage`).

use crate::{
    Error,
    format::{
        entry::{Entry, KeyRange, MAX_SEQ},
        entry_cursor::Cursor,
        range_tombstones::RangeTombstones,
    },
    memory::budget::{MemoryAccounts, MemoryCharge, MemoryClass},
    table::{Scan, Table, TableCursor},
    tree::{
        garbage::VersionEpochs,
        manifest::{
            format::{TableMeta, TreeLevel},
            state::ManifestState,
        },
        memtable::Memtable,
    },
};
use bytes::Bytes;
use copal_object::ObjectId;
use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

/// An open table and its metadata from the manifest.
pub(crate) struct TableHandle {
    pub(crate) meta: TableMeta,
    pub(crate) table: Arc<Table>,
    pub(crate) tombstones: RangeTombstones,
    pub(crate) _charge: MemoryCharge,
}

/// The part of a table that belongs to a run.
#[derive(Clone)]
pub(crate) struct TableSlice {
    pub(crate) table: Arc<TableHandle>,
    pub(crate) range: KeyRange,
}

impl TableSlice {
    /// Estimated bytes: those of the whole table, as partial slices are few and short-lived.
    pub(crate) fn bytes(&self) -> u64 {
        self.table.meta.bytes
    }

    /// Whether the slice covers the whole table.
    pub(crate) fn is_whole(&self) -> bool {
        self.range.start <= self.table.meta.start && self.table.meta.end <= self.range.end
    }
}

/// Slices that are searched as one.
#[derive(Clone)]
pub(crate) struct SortedRun {
    pub(crate) level: TreeLevel,
    pub(crate) id: u64,
    pub(crate) slices: Vec<TableSlice>,
}

impl SortedRun {
    /// The slice that may hold `key`.
    pub(crate) fn find(&self, key: &[u8]) -> Option<&TableSlice> {
        let after = self.slices.partition_point(|slice| slice.range.start[..] <= *key);
        let slice = self.slices.get(after.checked_sub(1)?)?;
        (*key < slice.range.end[..]).then_some(slice)
    }

    /// The slices that overlap `range`.
    pub(crate) fn overlapping<'a>(&'a self, range: &'a KeyRange) -> impl Iterator<Item = &'a TableSlice> {
        let from = self.slices.partition_point(|slice| slice.range.end <= range.start);
        self.slices[from..].iter().take_while(|slice| slice.range.start < range.end)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.slices.iter().map(TableSlice::bytes).sum()
    }

    /// Sequence of the newest range tombstone over `key` at or below `snapshot`; 0 for none.
    pub(crate) fn cover(&self, key: &[u8], snapshot: u64) -> u64 {
        self.find(key).map_or(0, |slice| slice.table.tombstones.cover(key, snapshot))
    }

    pub(crate) fn has_tombstones(&self) -> bool {
        self.slices.iter().any(|slice| !slice.table.tombstones.is_empty())
    }

    /// Cursor over the run's entries inside `range`.
    pub(crate) fn cursor(&self, range: &KeyRange, scan: Scan) -> RunCursor {
        let parts = self
            .overlapping(range)
            .map(|slice| (slice.table.clone(), slice.range.intersect(range)))
            .collect();
        RunCursor { parts, at: 0, cursor: None, inside: false, scan }
    }
}

/// One version of the tree; see the module.
pub(crate) struct TreeVersion {
    pub(crate) epoch: u64,
    /// Newest first; the bottom run, if there is one, is last.
    pub(crate) runs: Vec<Arc<SortedRun>>,
    epochs: Arc<VersionEpochs>,
    _charge: MemoryCharge,
}

/// Level of a run's tables for the filter rules: derived from the run's number; the bottom has the highest.
pub(crate) fn filter_level(level: TreeLevel, run: u64) -> u8 {
    if level == TreeLevel::BOTTOM { u8::MAX } else { (run % u64::from(u8::MAX)) as u8 }
}

/// Open tables by object.
pub(crate) type Handles = BTreeMap<ObjectId, Arc<TableHandle>>;

impl TreeVersion {
    /// The version that `state` describes; `handles` holds all its tables.
    pub(crate) fn new(
        epoch: u64,
        state: &ManifestState,
        handles: &Handles,
        epochs: &Arc<VersionEpochs>,
        budget: &MemoryAccounts,
    ) -> TreeVersion {
        let slices: usize = state.tables.values().map(|table| table.parts.len()).sum();
        let charge = budget.charge(MemoryClass::Versions, (2 * slices * size_of::<TableSlice>()) as u64);
        let mut runs: BTreeMap<(TreeLevel, Reverse<u64>), Vec<TableSlice>> = BTreeMap::new();
        for (object, table) in &state.tables {
            let Some(handle) = handles.get(object) else {
                continue;
            };
            let slices = runs.entry((table.level, Reverse(table.run))).or_default();
            for part in &table.parts {
                let range = KeyRange { start: part.start.clone(), end: part.end.clone() };
                slices.push(TableSlice { table: handle.clone(), range });
            }
        }
        let run = |((level, Reverse(id)), mut slices): ((TreeLevel, Reverse<u64>), Vec<TableSlice>)| {
            slices.sort_by(|a, b| a.range.start.cmp(&b.range.start));
            let disjoint = slices.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start);
            assert!(disjoint, "slices of a run overlap");
            Arc::new(SortedRun { level, id, slices })
        };
        let runs = runs.into_iter().map(run).collect();
        epochs.enter(epoch);
        TreeVersion { epoch, runs, epochs: epochs.clone(), _charge: charge }
    }

    /// The bottom run.
    pub(crate) fn bottom(&self) -> Option<&Arc<SortedRun>> {
        self.runs.last().filter(|run| run.level == TreeLevel::BOTTOM)
    }

    /// The runs of one level, newest first.
    pub(crate) fn level(&self, level: TreeLevel) -> impl Iterator<Item = &Arc<SortedRun>> {
        self.runs.iter().filter(move |run| run.level == level)
    }
}

impl Drop for TreeVersion {
    fn drop(&mut self) {
        self.epochs.leave(self.epoch);
    }
}

/// Cursor over the slices of a run, one after another; at most one table cursor is open.
pub(crate) struct RunCursor {
    parts: Vec<(Arc<TableHandle>, KeyRange)>,
    at: usize,
    cursor: Option<TableCursor>,
    /// Whether the table cursor is at an entry, and that entry lies in its part.
    inside: bool,
    scan: Scan,
}

impl RunCursor {
    /// Opens part `at`; `false` when there is none.
    fn open(&mut self, at: Option<usize>) -> Result<bool, Error> {
        self.cursor = None;
        let Some((at, (table, _))) = at.and_then(|at| Some((at, self.parts.get(at)?))) else {
            return Ok(false);
        };
        self.cursor = Some(TableCursor::new(&table.table, self.scan));
        self.at = at;
        Ok(true)
    }

    /// Updates `inside`; called once per move, since callers ask for the entry several times.
    fn look(&mut self) -> bool {
        let entry = self.cursor.as_ref().and_then(Cursor::entry);
        self.inside = entry.is_some_and(|entry| self.parts[self.at].1.contains(entry.key));
        self.inside
    }

    /// From the end of a part, moves to the first entry of a later one.
    fn skip_forward(&mut self) -> Result<(), Error> {
        while self.cursor.is_some() && !self.look() {
            if !self.open(Some(self.at + 1))? {
                return Ok(());
            }
            let start = self.parts[self.at].1.start.clone();
            if let Some(cursor) = &mut self.cursor {
                cursor.seek(&start, MAX_SEQ)?;
            }
        }
        Ok(())
    }

    fn skip_backward(&mut self) -> Result<(), Error> {
        while self.cursor.is_some() && !self.look() {
            if !self.open(self.at.checked_sub(1))? {
                return Ok(());
            }
            let end = self.parts[self.at].1.end.clone();
            if let Some(cursor) = &mut self.cursor {
                cursor.seek_for_prev(&end, MAX_SEQ)?;
            }
        }
        Ok(())
    }
}

impl Cursor for RunCursor {
    fn first(&mut self) -> Result<(), Error> {
        let Some((_, range)) = self.parts.first() else {
            return Ok(());
        };
        let start = range.start.clone();
        self.seek(&start, MAX_SEQ)
    }

    fn last(&mut self) -> Result<(), Error> {
        let Some((_, range)) = self.parts.last() else {
            return Ok(());
        };
        let end = range.end.clone();
        self.seek_for_prev(&end, MAX_SEQ)
    }

    fn seek(&mut self, key: &[u8], seq: u64) -> Result<(), Error> {
        let at = self.parts.partition_point(|(_, range)| range.end[..] <= *key);
        if !self.open(Some(at))? {
            return Ok(());
        }
        let start = self.parts[at].1.start.clone();
        if let Some(cursor) = &mut self.cursor {
            if *key < start[..] { cursor.seek(&start, MAX_SEQ)? } else { cursor.seek(key, seq)? }
        }
        self.skip_forward()
    }

    fn seek_for_prev(&mut self, key: &[u8], seq: u64) -> Result<(), Error> {
        let after = self.parts.partition_point(|(_, range)| range.start[..] <= *key);
        if !self.open(after.checked_sub(1))? {
            return Ok(());
        }
        let end = self.parts[self.at].1.end.clone();
        if let Some(cursor) = &mut self.cursor {
            if *key >= end[..] {
                cursor.seek_for_prev(&end, MAX_SEQ)?
            } else {
                cursor.seek_for_prev(key, seq)?
            }
        }
        self.skip_backward()
    }

    fn next(&mut self) -> Result<(), Error> {
        if let Some(cursor) = &mut self.cursor {
            cursor.next()?;
        }
        self.skip_forward()
    }

    fn prev(&mut self) -> Result<(), Error> {
        if let Some(cursor) = &mut self.cursor {
            cursor.prev()?;
        }
        self.skip_backward()
    }

    fn entry(&self) -> Option<Entry<'_>> {
        let cursor = self.cursor.as_ref().filter(|_| self.inside)?;
        cursor.entry()
    }

    fn value(&self) -> Bytes {
        self.cursor.as_ref().map(Cursor::value).unwrap_or_default()
    }
}

/// Memtables and tree version that one reader searches, newest first.
pub(crate) struct SuperVersion {
    /// The memtable that commits insert into.
    pub(crate) active: Arc<Memtable>,
    /// Full memtables, newest first, until their flush is installed.
    pub(crate) frozen: Vec<Arc<Memtable>>,
    pub(crate) version: Arc<TreeVersion>,
}

impl SuperVersion {
    /// All memtables, newest first.
    pub(crate) fn memtables(&self) -> impl Iterator<Item = &Arc<Memtable>> {
        std::iter::once(&self.active).chain(&self.frozen)
    }
}
