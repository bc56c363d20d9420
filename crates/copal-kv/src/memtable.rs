//! Memtable: the newest writes of all keyspaces, sorted, in memory, until a flush makes tables of them.
//!
//! A locked `BTreeMap`; one writer at a time (the commit leader), any number of readers.
//! Invariants
//! - What was inserted is never changed: a reader holding the table sees every entry it saw before.
//! - `charged_bytes` counts keys, values and the map's own overhead; it decides when the table is full.
//!
//! Not here: durability (`log`), visibility (readers pass a sequence), rotation (`commit`).

use crate::{
    Error,
    cursor::Cursor,
    entry::{Entry, EntryKind, RangeTombstone, compare},
    manifest::format::ValueMeta,
    range_tombstones::RangeTombstones,
};
use bytes::Bytes;
use copal_object::ObjectId;
use parking_lot::{Mutex, RwLock};
use std::{
    borrow::Borrow,
    cmp::Ordering,
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

/// Bytes of map and headers that an entry costs beside its key and value.
const ENTRY_OVERHEAD: u64 = 112;
/// Entries a cursor takes out under one lock.
const BATCH: usize = 64;

/// Place of a version: key ascending, newest first.
#[derive(Clone, Debug)]
struct Place {
    key: Bytes,
    seq: u64,
}

/// A place by reference, so that a search allocates nothing.
trait AsPlace {
    fn place(&self) -> (&[u8], u64);
}
impl AsPlace for Place {
    fn place(&self) -> (&[u8], u64) {
        (&self.key, self.seq)
    }
}
impl AsPlace for (&[u8], u64) {
    fn place(&self) -> (&[u8], u64) {
        *self
    }
}
impl<'a> Borrow<dyn AsPlace + 'a> for Place {
    fn borrow(&self) -> &(dyn AsPlace + 'a) {
        self
    }
}
impl PartialEq for dyn AsPlace + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}
impl Eq for dyn AsPlace + '_ {}
impl PartialOrd for dyn AsPlace + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for dyn AsPlace + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.place(), other.place())
    }
}
impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}
impl Eq for Place {}
impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.place(), other.place())
    }
}

/// What a version says; the value is empty for a delete, an encoded pointer for a separated value.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) kind: EntryKind,
    pub(crate) value: Bytes,
}

type Entries = BTreeMap<Place, Version>;

/// See the module.
pub(crate) struct Memtable {
    /// Generation of the log that holds the same writes.
    pub(crate) generation: u64,
    /// Stream of that log.
    pub(crate) log: ObjectId,
    entries: RwLock<Entries>,
    deletes: RwLock<Deletes>,
    last_seq: AtomicU64,
    /// Value objects written to by commits of this generation, as they stood after the last of them.
    values: Mutex<BTreeMap<ObjectId, ValueMeta>>,
    /// Shared with the memory budget. Fields are dropped in their order: this one when all the others are freed.
    charged: Arc<AtomicU64>,
}

#[derive(Default)]
struct Deletes {
    list: Vec<RangeTombstone>,
    /// Built from `list` when asked for.
    fragments: Option<Arc<RangeTombstones>>,
}

impl Memtable {
    pub(crate) fn new(generation: u64, log: ObjectId) -> Memtable {
        Memtable {
            generation,
            log,
            entries: RwLock::default(),
            deletes: RwLock::default(),
            last_seq: AtomicU64::new(0),
            values: Mutex::default(),
            charged: Arc::default(),
        }
    }

    pub(crate) fn insert(&self, key: Bytes, seq: u64, kind: EntryKind, value: Bytes) {
        let charge = (key.len() + value.len()) as u64 + ENTRY_OVERHEAD;
        self.entries
            .write()
            .insert(Place { key, seq }, Version { kind, value });
        self.charge(charge, seq);
    }

    pub(crate) fn insert_range_delete(&self, tombstone: RangeTombstone) {
        let charge = (tombstone.start.len() + tombstone.end.len()) as u64 + ENTRY_OVERHEAD;
        let seq = tombstone.seq;
        let mut deletes = self.deletes.write();
        deletes.list.push(tombstone);
        deletes.fragments = None;
        drop(deletes);
        self.charge(charge, seq);
    }

    fn charge(&self, bytes: u64, seq: u64) {
        self.charged.fetch_add(bytes, Relaxed);
        self.last_seq.fetch_max(seq, Relaxed);
    }

    /// Notes how far a value object is filled by commits of this generation.
    pub(crate) fn note_value(&self, meta: ValueMeta) {
        self.values.lock().insert(meta.object, meta);
    }

    pub(crate) fn value_metas(&self) -> Vec<ValueMeta> {
        self.values.lock().values().cloned().collect()
    }

    /// Memory the table is charged for.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.charged.load(Relaxed)
    }

    /// The number behind [`Memtable::charged_bytes`], there for as long as the memory is.
    pub(crate) fn charged(&self) -> &Arc<AtomicU64> {
        &self.charged
    }

    /// Newest sequence inserted; 0 when empty.
    pub(crate) fn last_seq(&self) -> u64 {
        self.last_seq.load(Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last_seq() == 0
    }

    /// The newest version of `key` at or below `snapshot`.
    pub(crate) fn get(&self, key: &[u8], snapshot: u64) -> Option<(u64, Version)> {
        let entries = self.entries.read();
        let from: &dyn AsPlace = &(key, snapshot);
        let (place, version) = entries
            .range::<dyn AsPlace, _>((Bound::Included(from), Bound::Unbounded))
            .next()?;
        (place.key[..] == *key).then(|| (place.seq, version.clone()))
    }

    /// The range tombstones as they are now.
    pub(crate) fn tombstones(&self) -> Arc<RangeTombstones> {
        if let Some(fragments) = &self.deletes.read().fragments {
            return fragments.clone();
        }
        let mut deletes = self.deletes.write();
        let built = Arc::new(RangeTombstones::new(&deletes.list));
        deletes.fragments = Some(built.clone());
        built
    }

    /// Walks the table as it is at each step; entries inserted meanwhile may appear.
    pub(crate) fn cursor(self: &Arc<Memtable>) -> MemtableCursor {
        MemtableCursor {
            table: self.clone(),
            batch: Vec::new(),
            at: 0,
            ascending: true,
        }
    }
}

/// Cursor that copies (by reference count) a batch of entries under each lock.
pub(crate) struct MemtableCursor {
    table: Arc<Memtable>,
    /// In walking order: ascending or descending places.
    batch: Vec<(Place, Version)>,
    at: usize,
    ascending: bool,
}

impl MemtableCursor {
    fn fill(&mut self, bounds: (Bound<&dyn AsPlace>, Bound<&dyn AsPlace>), ascending: bool) {
        let entries = self.table.entries.read();
        let range = entries.range::<dyn AsPlace, _>(bounds);
        let take = |(place, version): (&Place, &Version)| (place.clone(), version.clone());
        self.batch = if ascending {
            range.take(BATCH).map(take).collect()
        } else {
            range.rev().take(BATCH).map(take).collect()
        };
        drop(entries);
        self.at = 0;
        self.ascending = ascending;
    }

    fn current(&self) -> Option<&(Place, Version)> {
        self.batch.get(self.at)
    }

    fn step(&mut self, ascending: bool) {
        let Some((place, _)) = self.current() else { return };
        if self.ascending == ascending && self.at + 1 < self.batch.len() {
            self.at += 1;
            return;
        }
        let place = place.clone();
        let here: &dyn AsPlace = &place;
        let bounds = if ascending {
            (Bound::Excluded(here), Bound::Unbounded)
        } else {
            (Bound::Unbounded, Bound::Excluded(here))
        };
        self.fill(bounds, ascending);
    }
}

impl Cursor for MemtableCursor {
    fn first(&mut self) -> Result<(), Error> {
        self.fill((Bound::Unbounded, Bound::Unbounded), true);
        Ok(())
    }

    fn last(&mut self) -> Result<(), Error> {
        self.fill((Bound::Unbounded, Bound::Unbounded), false);
        Ok(())
    }

    fn seek(&mut self, key: &[u8], seq: u64) -> Result<(), Error> {
        let from: &dyn AsPlace = &(key, seq);
        self.fill((Bound::Included(from), Bound::Unbounded), true);
        Ok(())
    }

    fn seek_for_prev(&mut self, key: &[u8], seq: u64) -> Result<(), Error> {
        let to: &dyn AsPlace = &(key, seq);
        self.fill((Bound::Unbounded, Bound::Included(to)), false);
        Ok(())
    }

    fn next(&mut self) -> Result<(), Error> {
        self.step(true);
        Ok(())
    }

    fn prev(&mut self) -> Result<(), Error> {
        self.step(false);
        Ok(())
    }

    fn entry(&self) -> Option<Entry<'_>> {
        let (place, version) = self.current()?;
        Some(Entry {
            key: &place.key,
            seq: place.seq,
            kind: version.kind,
            value: &version.value,
        })
    }

    fn value(&self) -> Bytes {
        self.current()
            .map(|(_, version)| version.value.clone())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::MAX_SEQ;

    fn table() -> Arc<Memtable> {
        let table = Arc::new(Memtable::new(1, ObjectId(1)));
        for i in 0..300u64 {
            let key = Bytes::from(format!("key{:03}", i % 100));
            table.insert(key, i + 1, EntryKind::Put, Bytes::from(i.to_string()));
        }
        table
    }

    #[test]
    fn a_reader_sees_the_newest_version_at_its_sequence() {
        let table = table();
        assert_eq!(table.get(b"key007", MAX_SEQ).unwrap().0, 208);
        assert_eq!(table.get(b"key007", 207).unwrap().0, 108);
        assert_eq!(&table.get(b"key007", 8).unwrap().1.value[..], b"7");
        assert!(table.get(b"key007", 7).is_none());
        assert!(table.get(b"key0071", MAX_SEQ).is_none());
        assert_eq!(table.last_seq(), 300);
    }

    #[test]
    fn the_cursor_walks_both_ways_over_batches() {
        let table = table();
        let mut cursor = table.cursor();
        let mut forward = Vec::new();
        cursor.first().unwrap();
        while let Some(entry) = cursor.entry() {
            forward.push((entry.key.to_vec(), entry.seq));
            cursor.next().unwrap();
        }
        let mut backward = Vec::new();
        cursor.last().unwrap();
        while let Some(entry) = cursor.entry() {
            backward.push((entry.key.to_vec(), entry.seq));
            cursor.prev().unwrap();
        }
        backward.reverse();
        assert_eq!(forward.len(), 300);
        assert_eq!(forward, backward);
        assert!(forward.is_sorted_by(|a, b| compare((&a.0, a.1), (&b.0, b.1)).is_lt()));
        cursor.seek(b"key050", 200).unwrap();
        assert_eq!(cursor.entry().unwrap().position(), (&b"key050"[..], 151));
        cursor.prev().unwrap();
        assert_eq!(cursor.entry().unwrap().position(), (&b"key050"[..], 251));
        cursor.next().unwrap();
        assert_eq!(cursor.entry().unwrap().position(), (&b"key050"[..], 151));
        cursor.seek_for_prev(b"key050", 200).unwrap();
        assert_eq!(cursor.entry().unwrap().position(), (&b"key050"[..], 251));
    }
}
