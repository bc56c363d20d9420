//! State of the manifest: keyspaces, tables and their slices, value objects and their dead bytes.
//!
//! Invariants
//! - Applying the records of [`ManifestState::records`] to an empty state gives an equal state.
//! - A record about an unknown item (a value object dropped meanwhile) changes nothing.

use super::format::{ManifestRecord, TableMeta, TreeLevel, ValueMeta};
use crate::{
    format::entry::KeyspaceId, session::options::KeyspaceOptions, tree::value::interval::IntervalSet,
};
use bytes::Bytes;
use copal_object::ObjectId;
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// Bytes of a shared key's overhead.
const KEY_BYTES: usize = 48;

/// A table and the parts of it that count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableState {
    pub(crate) meta: TableMeta,
    pub(crate) level: TreeLevel,
    pub(crate) run: u64,
    pub(crate) parts: Vec<Range<Bytes>>,
}

impl TableState {
    /// Lets the part of a whole table share the table's bounds, so that they exist once in memory.
    fn share_bounds(&mut self) {
        if let Some(first) = self.parts.first_mut().filter(|first| first.start == self.meta.start) {
            first.start = self.meta.start.clone();
        }
        if let Some(last) = self.parts.last_mut().filter(|last| last.end == self.meta.end) {
            last.end = self.meta.end.clone();
        }
    }
}

/// A value object and its dead bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueState {
    pub(crate) meta: ValueMeta,
    pub(crate) dead: IntervalSet,
}

/// A keyspace with the options of its creation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyspaceState {
    pub(crate) name: String,
    pub(crate) options: KeyspaceOptions,
}

/// State of the manifest; see the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ManifestState {
    pub(crate) keyspaces: BTreeMap<KeyspaceId, KeyspaceState>,
    pub(crate) tables: BTreeMap<ObjectId, TableState>,
    pub(crate) values: BTreeMap<ObjectId, ValueState>,
    pub(crate) flushed_generation: u64,
    pub(crate) last_seq: u64,
    pub(crate) next_object: u64,
    pub(crate) next_run: u64,
    pub(crate) next_keyspace: u32,
    /// Dropped tables and value objects that may still exist, for old readers.
    pub(crate) dropped: BTreeSet<ObjectId>,
    /// See [`ManifestRecord::Settled`].
    pub(crate) settled_below: u64,
}

impl ManifestState {
    /// Approximate bytes of heap memory: keys, lists, and map nodes that are half full.
    pub(crate) fn heap_bytes(&self) -> u64 {
        let table = |table: &TableState| {
            let bounds = |range: &Range<Bytes>| range.start.len() + range.end.len();
            let keys: usize = table.parts.iter().map(bounds).sum();
            let is_cut = table.parts.len() != 1
                || table.parts[0] != (table.meta.start.clone()..table.meta.end.clone());
            let keys = keys + if is_cut { table.meta.start.len() + table.meta.end.len() } else { 0 };
            let lists = table.parts.capacity() * size_of::<Range<Bytes>>()
                + table.meta.values.capacity() * size_of::<(ObjectId, u64)>();
            2 * size_of::<(ObjectId, TableState)>() + keys + 2 * KEY_BYTES + lists
        };
        let value = |value: &ValueState| {
            2 * size_of::<(ObjectId, ValueState)>()
                + value.meta.group.len()
                + KEY_BYTES
                + value.dead.heap_bytes()
        };
        let tables: usize = self.tables.values().map(table).sum();
        let values: usize = self.values.values().map(value).sum();
        (tables + values) as u64
    }

    pub(crate) fn apply(&mut self, record: &ManifestRecord) {
        match record {
            ManifestRecord::Keyspace { id, name, options } => {
                let (name, options) = (name.clone(), options.clone());
                self.keyspaces.insert(*id, KeyspaceState { name, options });
                self.next_keyspace = self.next_keyspace.max(id.0 + 1);
            }
            ManifestRecord::DropKeyspace { id } => {
                self.keyspaces.remove(id);
            }
            ManifestRecord::Table(meta) => {
                self.next_object = self.next_object.max(meta.object.0 + 1);
                let table =
                    TableState { meta: meta.clone(), level: TreeLevel::TOP, run: 0, parts: Vec::new() };
                self.tables.insert(meta.object, table);
            }
            ManifestRecord::Slices { object, level, run, parts } => {
                if parts.is_empty() {
                    self.tables.remove(object);
                    self.dropped.insert(*object);
                } else if let Some(table) = self.tables.get_mut(object) {
                    (table.level, table.run) = (*level, *run);
                    table.parts = parts.clone();
                    table.share_bounds();
                }
                self.next_run = self.next_run.max(run + 1);
            }
            ManifestRecord::Value(meta) => {
                self.next_object = self.next_object.max(meta.object.0 + 1);
                let dead = IntervalSet::default();
                self.values
                    .entry(meta.object)
                    .and_modify(|value| {
                        // A generation may be installed after a later opening accounted for more.
                        let (accounted, max_seq) = (value.meta.accounted, value.meta.max_seq);
                        value.meta = meta.clone();
                        value.meta.accounted = accounted.max(meta.accounted);
                        value.meta.max_seq = max_seq.max(meta.max_seq);
                    })
                    .or_insert_with(|| ValueState { meta: meta.clone(), dead });
            }
            ManifestRecord::DropValue { object } => {
                self.values.remove(object);
                self.dropped.insert(*object);
            }
            ManifestRecord::Dead { object, ranges } => {
                if let Some(value) = self.values.get_mut(object) {
                    for range in ranges {
                        value.dead.insert(range.clone());
                    }
                }
            }
            ManifestRecord::Flushed { generation, last_seq } => {
                self.flushed_generation = self.flushed_generation.max(*generation);
                self.last_seq = self.last_seq.max(*last_seq);
            }
            ManifestRecord::Counters { next_object, next_run, next_keyspace } => {
                self.next_object = self.next_object.max(*next_object);
                self.next_run = self.next_run.max(*next_run);
                self.next_keyspace = self.next_keyspace.max(*next_keyspace);
            }
            ManifestRecord::Settled { below } => {
                self.settled_below = self.settled_below.max(*below);
                // Ids must not be reused, or a young leftover would look like an old leak.
                self.next_object = self.next_object.max(*below);
            }
            ManifestRecord::Ingested { object, seq } => {
                if let Some(table) = self.tables.get_mut(object) {
                    (table.meta.ingested_at, table.meta.max_seq) = (Some(*seq), *seq);
                }
            }
        }
    }

    /// A table with a part that overlaps another part of its run, or ends before it begins. No version can be
    /// made of such a run: only a damaged or foreign manifest has one.
    pub(crate) fn overlapping_table(&self) -> Option<ObjectId> {
        struct Part<'a> {
            of: (TreeLevel, u64),
            range: &'a Range<Bytes>,
            table: ObjectId,
        }
        let mut parts = Vec::new();
        for (object, table) in &self.tables {
            let of = (table.level, table.run);
            parts.extend(table.parts.iter().map(|range| Part { of, range, table: *object }));
        }
        parts.sort_by(|a, b| (a.of, &a.range.start).cmp(&(b.of, &b.range.start)));
        let reversed = parts.iter().find(|part| part.range.start > part.range.end);
        let overlap = |pair: &[Part<'_>]| pair[0].of == pair[1].of && pair[0].range.end > pair[1].range.start;
        let overlapping = || parts.windows(2).find(|pair| overlap(pair)).map(|pair| &pair[1]);
        reversed.or_else(overlapping).map(|part| part.table)
    }

    /// Records that build this state from an empty one, made one at a time.
    pub(crate) fn records(&self) -> impl Iterator<Item = ManifestRecord> {
        let keyspaces = self.keyspaces.iter().map(|(id, keyspace)| ManifestRecord::Keyspace {
            id: *id,
            name: keyspace.name.clone(),
            options: keyspace.options.clone(),
        });
        let tables = self.tables.iter().flat_map(|(object, table)| {
            let object = *object;
            let slices = move || ManifestRecord::Slices {
                object,
                level: table.level,
                run: table.run,
                parts: table.parts.clone(),
            };
            let ingested_at = table.meta.ingested_at;
            std::iter::once_with(|| ManifestRecord::Table(table.meta.clone()))
                .chain(ingested_at.map(|seq| ManifestRecord::Ingested { object, seq }))
                .chain(std::iter::once_with(slices))
        });
        let values = self.values.iter().flat_map(|(object, value)| {
            let dead = || {
                let (object, ranges) = (*object, value.dead.iter().collect());
                (value.dead.len() > 0).then_some(ManifestRecord::Dead { object, ranges })
            };
            std::iter::once_with(|| ManifestRecord::Value(value.meta.clone()))
                .chain(std::iter::once_with(dead).flatten())
        });
        // Either record drops an object of any kind; there are few, and this one is smaller.
        let dropped = self.dropped.iter().map(|object| ManifestRecord::DropValue { object: *object });
        let (generation, last_seq) = (self.flushed_generation, self.last_seq);
        let numbers = [
            ManifestRecord::Flushed { generation, last_seq },
            ManifestRecord::Counters {
                next_object: self.next_object,
                next_run: self.next_run,
                next_keyspace: self.next_keyspace,
            },
            ManifestRecord::Settled { below: self.settled_below },
        ];
        let named = keyspaces.chain(tables).chain(values);
        named.chain(dropped).chain(numbers)
    }

    /// Upper bound of the bytes that [`ManifestState::records`] take in edits.
    pub(crate) fn encoded_bytes(&self) -> u64 {
        const NUMBERS: usize = 96;
        const RANGE: usize = 20;
        let keyspaces = self.keyspaces.values();
        let keyspaces: usize = keyspaces.map(|keyspace| NUMBERS + keyspace.name.len()).sum();
        let table = |table: &TableState| {
            let parts = table.parts.iter();
            let parts: usize = parts.map(|part| RANGE + part.start.len() + part.end.len()).sum();
            let (meta, values) = (&table.meta, RANGE * table.meta.values.len());
            2 * NUMBERS + meta.start.len() + meta.end.len() + values + parts
        };
        let value = |value: &ValueState| 2 * NUMBERS + value.meta.group.len() + RANGE * value.dead.len();
        let tables: usize = self.tables.values().map(table).sum();
        let values: usize = self.values.values().map(value).sum();
        (keyspaces + tables + values + NUMBERS * (2 + self.dropped.len())) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_rebuilds_the_state() {
        let key = |text: &[u8]| KeyspaceId(1).key(text);
        let table = |object: u64| TableMeta {
            object: ObjectId(object),
            bytes: 10,
            entries: 2,
            droppable: 0,
            max_seq: 7,
            start: key(b"a"),
            end: key(b"z"),
            values: Vec::new(),
            ingested_at: None,
        };
        let value = ValueMeta {
            object: ObjectId(12),
            keyspace: KeyspaceId(1),
            group: Bytes::new(),
            accounted: 9000,
            max_seq: 6,
            by_worker: false,
        };
        let slices = |object: u64, parts: Vec<Range<Bytes>>| ManifestRecord::Slices {
            object: ObjectId(object),
            level: TreeLevel(1),
            run: 5,
            parts,
        };
        let mut state = ManifestState::default();
        let options = KeyspaceOptions::default();
        for record in [
            ManifestRecord::Keyspace { id: KeyspaceId(1), name: "a".to_owned(), options },
            ManifestRecord::Table(table(10)),
            slices(10, vec![key(b"a")..key(b"z")]),
            ManifestRecord::Table(table(11)),
            slices(11, vec![key(b"a")..key(b"c"), key(b"d")..key(b"z")]),
            slices(10, Vec::new()),
            ManifestRecord::Ingested { object: ObjectId(11), seq: 9 },
            ManifestRecord::Value(value.clone()),
            ManifestRecord::Dead { object: ObjectId(12), ranges: vec![0..4096, 4096..8192] },
            ManifestRecord::Dead { object: ObjectId(99), ranges: vec![0..1, 2..3] },
            ManifestRecord::Value(ValueMeta { accounted: 10_000, ..value }),
            ManifestRecord::Flushed { generation: 3, last_seq: 7 },
            ManifestRecord::DropValue { object: ObjectId(8) },
            ManifestRecord::Settled { below: 13 },
        ] {
            state.apply(&record);
        }
        assert_eq!(state.tables.len(), 1);
        assert!(state.dropped.iter().eq([&ObjectId(8), &ObjectId(10)]));
        assert_eq!(state.tables[&ObjectId(11)].meta.ingested_at, Some(9));
        assert_eq!(state.tables[&ObjectId(11)].meta.max_seq, 9);
        assert_eq!(state.values[&ObjectId(12)].dead.total(), 8192);
        assert_eq!(state.values[&ObjectId(12)].meta.accounted, 10_000);
        assert_eq!((state.next_object, state.next_run, state.next_keyspace), (13, 6, 2));
        let mut again = ManifestState::default();
        for record in state.records() {
            again.apply(&record);
        }
        assert_eq!(again, state);
    }
}
