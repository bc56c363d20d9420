//! Memtable: the newest writes of all keyspaces, sorted, in memory, until a flush writes them to tables.
//!
//! A locked `BTreeMap`; one writer at a time (the commit leader), any number of readers.
//! Invariants
//! - An inserted entry is never changed: a reader of the table keeps seeing every entry it saw before.
//! - `charged_bytes` counts keys, values and the map's own overhead; it decides when the table is full.
//! - A look-up of a key that the table lacks takes no lock, but for some of them (`key_filter`).
//!
//! Not here: durability (`log`), visibility (readers pass a sequence), rotation (`commit`).

use crate::{
    Error,
    format::{
        entry::{Entry, EntryKind, RangeTombstone, compare},
        entry_cursor::Cursor,
    },
    memory::budget::MemoryAccounts,
    tree::{key_filter::KeyFilter, manifest::format::ValueMeta},
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
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

/// Bytes of map and headers per entry, besides its key and value.
const ENTRY_OVERHEAD: u64 = 112;
/// Entries that a cursor copies under one lock.
const BATCH: usize = 64;

/// Order of versions: key ascending, then newest first.
#[derive(Clone, Debug)]
struct VersionKey {
    key: Bytes,
    seq: u64,
}

/// A version key by reference, so that a search allocates nothing.
trait AsVersionKey {
    fn place(&self) -> (&[u8], u64);
}
impl AsVersionKey for VersionKey {
    fn place(&self) -> (&[u8], u64) {
        (&self.key, self.seq)
    }
}
impl AsVersionKey for (&[u8], u64) {
    fn place(&self) -> (&[u8], u64) {
        *self
    }
}
impl<'a> Borrow<dyn AsVersionKey + 'a> for VersionKey {
    fn borrow(&self) -> &(dyn AsVersionKey + 'a) {
        self
    }
}
impl PartialEq for dyn AsVersionKey + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}
impl Eq for dyn AsVersionKey + '_ {}
impl PartialOrd for dyn AsVersionKey + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for dyn AsVersionKey + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.place(), other.place())
    }
}
impl PartialEq for VersionKey {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}
impl Eq for VersionKey {}
impl PartialOrd for VersionKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for VersionKey {
    fn cmp(&self, other: &Self) -> Ordering {
        compare(self.place(), other.place())
    }
}

/// Contents of a version; the value is empty for a delete, an encoded pointer for a separated value.
#[derive(Clone, Debug)]
pub(crate) struct EntryVersion {
    pub(crate) kind: EntryKind,
    pub(crate) value: Bytes,
}

type Entries = BTreeMap<VersionKey, EntryVersion>;

/// One memtable; see the module.
pub(crate) struct Memtable {
    /// Generation of the log that holds the same writes.
    pub(crate) generation: u64,
    /// Stream of that log.
    pub(crate) log: ObjectId,
    entries: RwLock<Entries>,
    /// Keys of the entries.
    filter: KeyFilter,
    deletes: RwLock<RangeDeletes>,
    has_range_deletes: AtomicBool,
    last_seq: AtomicU64,
    /// Whether it holds a deletion.
    has_deletes: AtomicBool,
    /// Value objects that commits of this generation wrote to, as of the last such commit.
    values: Mutex<BTreeMap<ObjectId, ValueMeta>>,
    /// Shared with the memory budget. Must stay the last field: fields drop in order, and this one ends the
    /// charge after the others are freed.
    charged: Arc<AtomicU64>,
}

/// Bytes that a range delete costs besides its keys: its place in the list, and the two extra ranges into
/// which it may cut another one.
const RANGE_DELETE_OVERHEAD: u64 = 400;

#[derive(Default)]
struct RangeDeletes {
    /// All range deletes, in order of insertion.
    list: Vec<RangeTombstone>,
    /// By start: disjoint ranges, each with its end and the newest delete that covers it.
    newest: BTreeMap<Bytes, (Bytes, u64)>,
}

impl RangeDeletes {
    fn insert(&mut self, tombstone: RangeTombstone) {
        let RangeTombstone { start, end, seq } = tombstone.clone();
        self.list.push(tombstone);
        if start >= end {
            return;
        }
        self.cut(&start);
        self.cut(&end);
        let inside = (Bound::Included(&start), Bound::Excluded(&end));
        let over: Vec<(Bytes, (Bytes, u64))> = self
            .newest
            .range::<Bytes, _>(inside)
            .map(|(start, (end, seq))| (start.clone(), (end.clone(), *seq)))
            .collect();
        // Deletes arrive in sequence order, except those of neighbouring commit groups, so a newer one may be
        // present.
        let mut at = start;
        for (older, (until, there)) in over {
            if there > seq {
                self.fill(at, older, seq);
                at = until;
            } else {
                self.newest.remove(&older);
            }
        }
        self.fill(at, end, seq);
    }

    fn fill(&mut self, start: Bytes, end: Bytes, seq: u64) {
        if start < end {
            self.newest.insert(start, (end, seq));
        }
    }

    /// Splits the range that contains `border`, if there is one.
    fn cut(&mut self, border: &Bytes) {
        let below = (Bound::Unbounded, Bound::Excluded(border));
        let Some((_, (end, seq))) = self.newest.range_mut::<Bytes, _>(below).next_back() else {
            return;
        };
        if *end > *border {
            let rest = (std::mem::replace(end, border.clone()), *seq);
            self.newest.insert(border.clone(), rest);
        }
    }

    fn cover(&self, key: &[u8], snapshot: u64) -> u64 {
        let until_key = (Bound::Unbounded, Bound::Included(key));
        match self.newest.range::<[u8], _>(until_key).next_back() {
            Some((_, (end, seq))) if *key < end[..] => {
                if *seq <= snapshot {
                    return *seq;
                }
            }
            _ => return 0,
        }
        // The reader is older than the newest delete: search all of them for those that it sees.
        let seen = |tombstone: &&RangeTombstone| {
            tombstone.seq <= snapshot && tombstone.start[..] <= *key && *key < tombstone.end[..]
        };
        let seen = self.list.iter().filter(seen);
        seen.map(|tombstone| tombstone.seq).max().unwrap_or(0)
    }
}

impl MemoryAccounts {
    /// Counts a memtable until its last reference is dropped and all of it is freed.
    pub(crate) fn watch(&self, memtable: &Memtable) {
        self.watch_bytes(&memtable.charged);
    }
}

impl Memtable {
    pub(crate) fn new(generation: u64, log: ObjectId) -> Memtable {
        Memtable {
            generation,
            log,
            entries: RwLock::default(),
            filter: KeyFilter::default(),
            deletes: RwLock::default(),
            has_range_deletes: AtomicBool::new(false),
            last_seq: AtomicU64::new(0),
            has_deletes: AtomicBool::new(false),
            values: Mutex::default(),
            charged: Arc::default(),
        }
    }

    /// Adds a filter, for a table that will be full with about that many bytes.
    pub(crate) fn with_filter(self, bytes: u64) -> Memtable {
        let filter = KeyFilter::for_memtable(bytes);
        self.charged.fetch_add(filter.bytes(), Relaxed);
        Memtable { filter, ..self }
    }

    pub(crate) fn insert(&self, key: Bytes, seq: u64, kind: EntryKind, value: Bytes) {
        let charge = (key.len() + value.len()) as u64 + ENTRY_OVERHEAD;
        if kind == EntryKind::Delete {
            self.has_deletes.store(true, Relaxed);
        }
        self.filter.add(&key);
        self.entries.write().insert(VersionKey { key, seq }, EntryVersion { kind, value });
        self.charge(charge, seq);
    }

    pub(crate) fn insert_range_delete(&self, tombstone: RangeTombstone) {
        let charge = (tombstone.start.len() + tombstone.end.len()) as u64 + RANGE_DELETE_OVERHEAD;
        let seq = tombstone.seq;
        self.has_deletes.store(true, Relaxed);
        self.has_range_deletes.store(true, Relaxed);
        self.deletes.write().insert(tombstone);
        self.charge(charge, seq);
    }

    fn charge(&self, bytes: u64, seq: u64) {
        self.charged.fetch_add(bytes, Relaxed);
        self.last_seq.fetch_max(seq, Relaxed);
    }

    /// Records the length to which commits of this generation filled a value object.
    pub(crate) fn note_value(&self, meta: ValueMeta) {
        self.values.lock().insert(meta.object, meta);
    }

    pub(crate) fn value_metas(&self) -> Vec<ValueMeta> {
        self.values.lock().values().cloned().collect()
    }

    /// Bytes charged for the table, without its filter: 0 when it is empty.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.charged.load(Relaxed) - self.filter.bytes()
    }

    /// Newest sequence inserted; 0 when empty.
    pub(crate) fn last_seq(&self) -> u64 {
        self.last_seq.load(Relaxed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last_seq() == 0
    }

    /// The newest version of `key` at or below `snapshot`.
    pub(crate) fn get(&self, key: &[u8], snapshot: u64) -> Option<(u64, EntryVersion)> {
        if self.is_empty() || !self.filter.may_have(key) {
            return None;
        }
        let entries = self.entries.read();
        let from: &dyn AsVersionKey = &(key, snapshot);
        let (place, version) =
            entries.range::<dyn AsVersionKey, _>((Bound::Included(from), Bound::Unbounded)).next()?;
        (place.key[..] == *key).then(|| (place.seq, version.clone()))
    }

    /// All range deletes so far, in no particular order.
    pub(crate) fn range_deletes(&self) -> Vec<RangeTombstone> {
        self.deletes.read().list.clone()
    }

    /// Whether it holds a delete of a key or of a range.
    pub(crate) fn has_deletes(&self) -> bool {
        self.has_deletes.load(Relaxed)
    }

    /// Whether it holds a range delete.
    pub(crate) fn has_range_deletes(&self) -> bool {
        self.has_range_deletes.load(Relaxed)
    }

    /// Sequence of the newest range delete over `key` that a reader at `snapshot` sees; 0 when there is none.
    pub(crate) fn cover(&self, key: &[u8], snapshot: u64) -> u64 {
        if self.has_range_deletes() { self.deletes.read().cover(key, snapshot) } else { 0 }
    }

    /// Iterates over the table as of each step; entries inserted meanwhile may appear.
    pub(crate) fn cursor(self: &Arc<Memtable>) -> MemtableCursor {
        MemtableCursor { table: self.clone(), batch: Vec::new(), at: 0, ascending: true }
    }
}

/// Cursor that copies (by reference count) a batch of entries under each lock.
pub(crate) struct MemtableCursor {
    table: Arc<Memtable>,
    /// Versions in the order of the iteration, ascending or descending.
    batch: Vec<(VersionKey, EntryVersion)>,
    at: usize,
    ascending: bool,
}

impl MemtableCursor {
    fn fill(&mut self, bounds: (Bound<&dyn AsVersionKey>, Bound<&dyn AsVersionKey>), ascending: bool) {
        let entries = self.table.entries.read();
        let range = entries.range::<dyn AsVersionKey, _>(bounds);
        let take = |(place, version): (&VersionKey, &EntryVersion)| (place.clone(), version.clone());
        self.batch = if ascending {
            range.take(BATCH).map(take).collect()
        } else {
            range.rev().take(BATCH).map(take).collect()
        };
        drop(entries);
        self.at = 0;
        self.ascending = ascending;
    }

    fn current(&self) -> Option<&(VersionKey, EntryVersion)> {
        self.batch.get(self.at)
    }

    fn step(&mut self, ascending: bool) {
        let Some((place, _)) = self.current() else { return };
        if self.ascending == ascending && self.at + 1 < self.batch.len() {
            self.at += 1;
            return;
        }
        let place = place.clone();
        let here: &dyn AsVersionKey = &place;
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
        let from: &dyn AsVersionKey = &(key, seq);
        self.fill((Bound::Included(from), Bound::Unbounded), true);
        Ok(())
    }

    fn seek_for_prev(&mut self, key: &[u8], seq: u64) -> Result<(), Error> {
        let to: &dyn AsVersionKey = &(key, seq);
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
        Some(Entry { key: &place.key, seq: place.seq, kind: version.kind, value: &version.value })
    }

    fn value(&self) -> Bytes {
        self.current().map(|(_, version)| version.value.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::entry::MAX_SEQ;

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

    /// Symptom: some thousand overlapping range deletes took gigabytes of memory when they were flushed, and
    /// each look-up after a range delete sorted all of them.
    /// Cause: each part of the key space listed every delete over it, and the list was rebuilt after each
    /// delete.
    /// Fix: each part names the newest; an older reader searches the deletes one by one.
    #[test]
    fn range_deletes_cover_the_same_keys_as_a_list_of_them() {
        let mut random = copal_testkit::Random::new(5);
        let mut next = move |bound| random.below(bound);
        for round in 0..300 {
            let table = Memtable::new(1, ObjectId(1));
            let mut list = Vec::new();
            for seq in 1..=next(12) {
                // Neighbouring groups may come in either order.
                let seq = if round % 2 == 0 { seq } else { seq ^ 1 };
                let (a, b) = (next(16) as u8, next(16) as u8);
                let (start, end) = (Bytes::from(vec![a.min(b)]), Bytes::from(vec![a.max(b)]));
                list.push(RangeTombstone { start, end, seq });
                table.insert_range_delete(list[list.len() - 1].clone());
            }
            for key in 0..16u8 {
                for snapshot in 0..14 {
                    let over = list.iter().filter(|t| t.start[..] <= [key][..] && [key][..] < t.end[..]);
                    let newest = over.map(|t| t.seq).filter(|seq| *seq <= snapshot).max();
                    assert_eq!(table.cover(&[key], snapshot), newest.unwrap_or(0), "{list:?}");
                }
            }
            let ranges = table.deletes.read().newest.len();
            assert!(ranges <= 2 * list.len(), "{ranges} of {}", list.len());
        }
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
