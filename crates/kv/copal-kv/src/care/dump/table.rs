//! Dump of a table: its metadata, its partitions with index and filter pages, its entries.

use super::{DumpOptions, key_field, log::pointed, state};
use crate::{
    Error, MemoryBudget,
    format::entry::{Entry, EntryKind},
    memory::cache::TableCache,
    table::{
        ReadOptions, Table, TableVerifier,
        dump::{self, PartitionView},
    },
};
use copal_device::IoClass;
use copal_object::{DumpItem, DumpSink, ObjectId, Store as Objects};
use std::sync::Arc;

/// Memory for reading one table: fences and one partition's pages.
const MEMORY_BYTES: u64 = 32 << 20;

/// Opens a table for a dump.
pub(super) fn open(objects: &Objects, id: ObjectId, store_seed: u64) -> Result<Arc<Table>, Error> {
    let cache = TableCache::of(&MemoryBudget::new(MEMORY_BYTES));
    let options = ReadOptions { store_seed };
    Ok(Table::open(objects, id, cache, options)?)
}

pub(super) fn dump(
    objects: &Objects,
    id: ObjectId,
    options: &DumpOptions,
    sink: &mut DumpSink<'_>,
) -> Result<bool, Error> {
    let (_, seed, _) = state(objects)?;
    let table = match open(objects, id, seed) {
        Err(error) if error.is_corruption() => return Ok(sink(DumpItem::damage(1, &error))),
        table => table?,
    };
    let meta = table.meta();
    let summary = DumpItem::new(1, "properties")
        .with("smallest", key_field(&meta.smallest))
        .with("largest", key_field(&meta.largest))
        .number("entries", meta.entries)
        .number("keys", meta.keys)
        .number("deletes", meta.deletes)
        .number("range_tombstones", meta.range_tombstones)
        .number("oldest_sequence", meta.min_seq)
        .number("newest_sequence", meta.max_seq)
        .number("key_bytes", meta.key_bytes)
        .number("value_bytes", meta.value_bytes)
        .number("partitions", meta.partitions)
        .text("filter", format!("{:?}", meta.filter).to_lowercase());
    if !sink(summary) {
        return Ok(false);
    }
    for (name, section) in dump::sections(&table) {
        let item = DumpItem::new(1, "section")
            .text("name", name)
            .number("offset", section.offset)
            .number("bytes", section.len);
        if !sink(item) {
            return Ok(false);
        }
    }
    for used in &meta.value_objects {
        let item = DumpItem::new(1, "points-into")
            .number("object", used.object.0)
            .number("values", used.values)
            .number("value_bytes", used.bytes);
        if !sink(item) {
            return Ok(false);
        }
    }
    for tombstone in table.range_tombstones() {
        let item = DumpItem::new(1, "range-tombstone")
            .with("start", key_field(&tombstone.start))
            .with("end", key_field(&tombstone.end))
            .number("sequence", tombstone.seq);
        if !sink(item) {
            return Ok(false);
        }
    }
    let all = 0..table.meta().partitions;
    let wanted = match options.partition {
        Some(one) => all.filter(|partition| *partition == one).collect::<Vec<_>>(),
        None => all.collect(),
    };
    for partition in wanted {
        if !show_partition(&table, partition, options, sink)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn show_partition(
    table: &Table,
    partition: u32,
    options: &DumpOptions,
    sink: &mut DumpSink<'_>,
) -> Result<bool, Error> {
    let PartitionView { fence, offset, data_len, index_len, filter_len, uid, keys, entries, blocks, filter } =
        dump::view_partition(table, partition)?;
    let head = DumpItem::new(1, "partition")
        .number("number", partition)
        .with("fence", key_field(&fence))
        .number("offset", offset)
        .number("data_bytes", data_len)
        .number("index_bytes", index_len)
        .number("filter_bytes", filter_len)
        .number("uid", uid)
        .number("keys", keys)
        .number("entries", entries);
    if !sink(head) {
        return Ok(false);
    }
    let index = match blocks {
        Ok(blocks) => DumpItem::new(2, "index-page").number("blocks", blocks),
        Err(error) => DumpItem::damage(2, &error),
    };
    let filter = match filter {
        None => DumpItem::new(2, "filter-page").text("units", "none"),
        Some(Ok(page)) => DumpItem::new(2, "filter-page")
            .text("kind", format!("{:?}", page.kind).to_lowercase())
            .number("units", page.kind.units())
            .number("unit_bytes", page.unit_bytes),
        Some(Err(error)) => DumpItem::damage(2, &error),
    };
    if !sink(index) || !sink(filter) {
        return Ok(false);
    }
    if !options.entries && options.partition.is_none() {
        return Ok(true);
    }
    let mut more = true;
    let report =
        TableVerifier::new(table).verify_partition(partition, IoClass::Background, &mut |entry| {
            more = more && sink(show_entry(entry));
        })?;
    for damaged in report.damaged {
        more = more && sink(DumpItem::damage(2, &damaged));
    }
    Ok(more)
}

fn show_entry(entry: &Entry<'_>) -> DumpItem {
    let kind = match entry.kind {
        EntryKind::Put => "put",
        EntryKind::Delete => "delete",
        EntryKind::Pointer => "pointer",
    };
    let item = DumpItem::new(2, kind).with("key", key_field(entry.key)).number("sequence", entry.seq);
    match entry.kind {
        EntryKind::Put => item.number("value_bytes", entry.value.len() as u64).bytes("value", entry.value),
        EntryKind::Delete => item,
        EntryKind::Pointer => pointed(item, entry.value),
    }
}
