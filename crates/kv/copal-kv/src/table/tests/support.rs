//! Tables built in memory, and a small seeded generator.

use super::super::{ReadOptions, Table, TableBuilder, TableMeta, TableOptions};
use crate::{
    format::entry::{Entry, EntryKind},
    memory::cache::TableCache,
    session::options::{FilterMemory, FilterOptions},
};
use bytes::Bytes;
use copal_filter::{Kind, rules::RuleKind};
use copal_object::{ObjectId, ObjectLifetime};
pub(super) use copal_testkit::Random;
use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

pub(super) const SEED: u64 = 42;
pub(super) const ID: ObjectId = ObjectId(7);

/// (key, newest first) -> kind and value of the version: the internal order of a `BTreeMap`.
pub(super) type Model = BTreeMap<(Vec<u8>, Reverse<u64>), (EntryKind, Vec<u8>)>;

pub(super) fn options(compress: bool, filter: Kind) -> TableOptions {
    TableOptions { compress, filter, store_seed: SEED, lifetime: ObjectLifetime::Medium, expected_bytes: 0 }
}

pub(super) fn build(model: &Model, options: TableOptions) -> (Bytes, TableMeta) {
    let mut builder = TableBuilder::with_sink(Vec::new(), ID, options);
    for ((key, seq), (kind, value)) in model {
        builder.add(Entry { key, seq: seq.0, kind: *kind, value }).unwrap();
    }
    let (bytes, meta) = builder.finish_sink().unwrap();
    (bytes.into(), meta)
}

/// The table, with all units loaded that fit.
pub(super) fn open(bytes: Bytes, cache: &Arc<TableCache>) -> Arc<Table> {
    let table = open_cold(bytes, cache);
    cache.adjust_filters();
    table
}

/// The table, with no unit loaded.
pub(super) fn open_cold(bytes: Bytes, cache: &Arc<TableCache>) -> Arc<Table> {
    Table::open_bytes(bytes, ID, cache.clone(), ReadOptions { store_seed: SEED }).unwrap()
}

pub(super) fn cache() -> Arc<TableCache> {
    cache_with(4 << 20, 1 << 20, 6)
}

/// `units` units for each partition, as far as they fit `filter_bytes`.
pub(super) fn cache_with(page_bytes: u64, filter_bytes: u64, units: u8) -> Arc<TableCache> {
    let filters = FilterOptions {
        rule: RuleKind::Fixed { units },
        memory: FilterMemory::Bytes(u64::MAX),
        background: false,
        ..FilterOptions::default()
    };
    TableCache::new(page_bytes, filter_bytes, filters)
}

/// A model of `keys` keys in which some have many versions, some values are empty and some are large.
pub(super) fn mixed(random: &mut Random, keys: usize) -> Model {
    let mut model = Model::new();
    for _ in 0..keys {
        let shape = random.below(100);
        let mut key = match shape {
            0..40 => b"user/profile/".to_vec(),
            40..60 => b"zz".to_vec(),
            _ => Vec::new(),
        };
        let len = if shape == 99 { 1 + random.below(60_000) as usize } else { random.below(12) as usize };
        key.extend(random.bytes(len));
        let versions = match random.below(20) {
            0 => 1 + random.below(40),
            1..5 => 1 + random.below(4),
            _ => 1,
        };
        for _ in 0..versions {
            let kind = if random.below(6) == 0 { EntryKind::Delete } else { EntryKind::Put };
            let len = match random.below(40) {
                0 => random.below(30_000),
                1..10 => 0,
                _ => random.below(400),
            };
            let value = if kind == EntryKind::Put { random.bytes(len as usize) } else { Vec::new() };
            model.insert((key.clone(), Reverse(random.below(1000))), (kind, value));
        }
    }
    model
}
