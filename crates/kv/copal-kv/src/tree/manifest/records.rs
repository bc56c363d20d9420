//! Records of manifest edits, with the metadata of tables and value objects.
//!
//! Not here: their bytes (`format`), their effect on the tree (`state`).

use crate::{format::entry::KeyspaceId, session::options::KeyspaceOptions};
use bytes::Bytes;
use copal_object::ObjectId;
use std::ops::Range;

/// Metadata of a table, known without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TableMeta {
    pub(crate) object: ObjectId,
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
    /// Entries and range tombstones that a later merge could drop: old versions and tombstones.
    pub(crate) droppable: u64,
    pub(crate) max_seq: u64,
    /// First key, and the exclusive end of the keys (range tombstones included).
    pub(crate) start: Bytes,
    pub(crate) end: Bytes,
    /// Bytes of values in each value object that its entries point into.
    pub(crate) values: Vec<(ObjectId, u64)>,
    /// The sequence of all entries of an ingested table, whose stored sequences are 0.
    pub(crate) ingested_at: Option<u64>,
}

/// Level of a run in the tree; `BOTTOM` is the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct TreeLevel(pub(crate) u8);

impl TreeLevel {
    pub(crate) const TOP: TreeLevel = TreeLevel(0);
    pub(crate) const BOTTOM: TreeLevel = TreeLevel(u8::MAX);
}

/// Metadata of a value object, known without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValueMeta {
    pub(crate) object: ObjectId,
    pub(crate) keyspace: KeyspaceId,
    /// The group's prefix of the user key.
    pub(crate) group: Bytes,
    /// Bytes below this were logged or installed; beyond it only values that the log names are live.
    pub(crate) accounted: u64,
    /// Newest sequence of a value in it.
    pub(crate) max_seq: u64,
    /// Written by flush and collection, not by commits.
    pub(crate) by_worker: bool,
}

/// One record of an edit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ManifestRecord {
    Keyspace {
        id: KeyspaceId,
        name: String,
        options: KeyspaceOptions,
    },
    DropKeyspace {
        id: KeyspaceId,
    },
    Table(TableMeta),
    /// The parts of a table that count, and their run; none: the table is dropped.
    Slices {
        object: ObjectId,
        level: TreeLevel,
        run: u64,
        parts: Vec<Range<Bytes>>,
    },
    Value(ValueMeta),
    DropValue {
        object: ObjectId,
    },
    /// Dead bytes of a value object: no reader needs them any more.
    Dead {
        object: ObjectId,
        ranges: Vec<Range<u64>>,
    },
    /// Logs up to this generation are in tables, with every sequence up to `last_seq`.
    Flushed {
        generation: u64,
        last_seq: u64,
    },
    /// Ids and run numbers below these are taken.
    Counters {
        next_object: u64,
        next_run: u64,
        next_keyspace: u32,
    },
    /// At the time of writing, every object of the engine with a smaller id had a name or had been dropped by
    /// an edit.
    Settled {
        below: u64,
    },
    /// Sets the sequence of all entries of a table; follows the table's own record. No release writes it any
    /// more; stores from before 2026-12 may hold it.
    Ingested {
        object: ObjectId,
        seq: u64,
    },
}
