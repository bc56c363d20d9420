//! Installs a new version of the tree: one object transaction, then the view.
//!
//! Invariants
//! - One transaction publishes the outputs, appends the manifest edit and deletes a flushed log (KV-5, KV-6).
//! - Inputs are freed later, when no earlier version is pinned (`garbage`). After a crash the sweep of the
//!   next opening frees them.

use super::output::WrittenTable;
use crate::{
    Error,
    broken::Flaw,
    compact::picker,
    engine::Engine,
    format::entry::KeyRange,
    memory::{
        budget::MemoryClass as Memory,
        elastic::{AtHand, PredictedPartition},
    },
    tree::{
        garbage::GarbageItem,
        manifest::format::{ManifestRecord, TreeLevel},
        stored::OpenTree,
        value::{interval::page_aligned, pointer::VALUE_PAGE},
        version::{SuperVersion, TableSlice, TreeVersion, filter_level},
    },
};
use copal_object::{Ack, ObjectId, Op, Txn};
use std::{collections::BTreeMap, ops::Range, sync::Arc};

/// Most operations in one transaction that frees garbage.
const FREED_AT_ONCE: usize = 256;
/// Bytes that the object layer reads to free part of an object: two of its checksum units.
const FREED_BYTES: u64 = 128 << 10;

/// Changes of one step of flush or merge.
#[derive(Default)]
pub(crate) struct TreeChange {
    pub(crate) ops: Vec<Op>,
    pub(crate) records: Vec<ManifestRecord>,
    pub(crate) dead: BTreeMap<ObjectId, Vec<Range<u64>>>,
    /// Input slices of a merge step, and the range that the step takes out of them. The records follow from
    /// the tree at the commit, since steps side by side may share a table.
    pub(crate) merged: Option<(Vec<TableSlice>, KeyRange)>,
    /// Generation of the memtable that this flush replaces.
    pub(crate) flushed: Option<u64>,
    /// Initial filters of the new tables.
    pub(crate) predicted: BTreeMap<ObjectId, Vec<PredictedPartition>>,
}

impl TreeChange {
    /// Adds a table to a run.
    pub(crate) fn add_table(&mut self, written: WrittenTable, level: TreeLevel, run: u64) {
        let object = written.meta.object;
        let parts = vec![written.range.start..written.range.end];
        self.predicted.insert(object, written.predicted);
        self.ops.push(Op::Publish(written.staged));
        self.records.push(ManifestRecord::Table(written.meta));
        self.records.push(ManifestRecord::Slices { object, level, run, parts });
    }
}

/// Commits a change and makes it visible to readers.
pub(crate) fn install(engine: &Engine, mut change: TreeChange) -> Result<(), Error> {
    engine.poison.check()?;
    let mut tree = engine.stored.tree.lock();
    if let Some((inputs, taken)) = change.merged.take() {
        let taken = take_out(&inputs, &tree, &taken);
        change.records.splice(..0, taken);
    }
    for (object, ranges) in &change.dead {
        if tree.manifest.state.values.contains_key(object) || names_value(&change.records, *object) {
            change.records.push(ManifestRecord::Dead { object: *object, ranges: ranges.clone() });
        }
    }
    let opened: Vec<_> = change
        .records
        .iter()
        .filter_map(|record| if let ManifestRecord::Table(meta) = record { Some(meta.clone()) } else { None })
        .collect();
    if engine.broken(Flaw::InputsDeletedEarly) {
        let gone = change.records.iter().filter_map(|record| match record {
            ManifestRecord::Slices { object, parts, .. } if parts.is_empty() => {
                Some(Op::Delete { id: *object })
            }
            _ => None,
        });
        engine.too_early(gone.collect())?;
    }
    let (ops, records) = (std::mem::take(&mut change.ops), &change.records);
    tree.manifest.commit(&engine.objects, &engine.poison, ops, records, Ack::Ordered)?;
    tree.count_state();
    for meta in opened {
        let handle = engine.open_table(&meta).inspect_err(|error| {
            engine.poison.set(&format!("a table that was just written cannot be read: {error}"));
        })?;
        tree.handles.insert(meta.object, handle);
    }
    hand_over_filters(&tree, &mut change);
    let garbage = garbage_of(&mut tree, &change);
    let version = TreeVersion::new(
        tree.next_epoch,
        &tree.manifest.state,
        &tree.handles,
        &engine.stored.epochs,
        &engine.budget,
    );
    tree.next_epoch += 1;
    let before = engine.super_version().version.epoch;
    picker::count_tiers(&engine.counters, &version);
    let version = Arc::new(version);
    engine.change_super_version(|view| SuperVersion {
        active: view.active.clone(),
        frozen: view
            .frozen
            .iter()
            .filter(|memtable| Some(memtable.generation) != change.flushed)
            .cloned()
            .collect(),
        version,
    });
    engine.stored.garbage.add(before, garbage);
    Ok(())
}

/// Frees objects that no pinned version can reach any more; `true` when there were some.
pub(crate) fn free_garbage(engine: &Engine) -> Result<bool, Error> {
    let items = engine.stored.garbage.take(&engine.stored.epochs);
    if items.is_empty() {
        return Ok(false);
    }
    let mut ops: Vec<Op> = Vec::new();
    {
        let mut tree = engine.stored.tree.lock();
        // An object that the device lost needs no freeing.
        let there = |id: &ObjectId| engine.objects.stat(*id).is_some();
        for item in items {
            match item {
                GarbageItem::Delete(id) | GarbageItem::Punch(id, _) if !there(&id) => {
                    tree.manifest.state.dropped.remove(&id);
                }
                GarbageItem::Delete(id) => ops.push(Op::Delete { id }),
                GarbageItem::Punch(id, range) if tree.manifest.state.values.contains_key(&id) => {
                    ops.push(Op::Punch { id, range });
                }
                GarbageItem::Punch(..) => {}
            }
        }
    }
    let fitting = (engine.budget.merge_bytes() / 2 / FREED_BYTES).max(1) as usize;
    while !ops.is_empty() {
        let at_once = ops.len().min(FREED_AT_ONCE).min(fitting);
        let _units = engine.budget.charge(Memory::Merges, at_once as u64 * FREED_BYTES);
        let rest = ops.split_off(at_once);
        let now = std::mem::replace(&mut ops, rest);
        let deleted = now.iter().filter_map(|op| match op {
            Op::Delete { id } => Some(*id),
            _ => None,
        });
        let deleted: Vec<ObjectId> = deleted.collect();
        let mut items = items_of(&now);
        let freed = engine.objects.commit(Txn::new().ops(now), Ack::Ordered).wait();
        if let Err(error) = freed {
            // Kept, so that a full store retries.
            items.extend(items_of(&ops));
            engine.stored.garbage.add(0, items);
            return Err(engine.poison.failed_write(error));
        }
        let mut tree = engine.stored.tree.lock();
        for id in deleted {
            tree.manifest.state.dropped.remove(&id);
        }
    }
    Ok(true)
}

/// Garbage items that the operations free.
fn items_of(ops: &[Op]) -> Vec<GarbageItem> {
    let item = |op: &Op| match op {
        Op::Delete { id } => Some(GarbageItem::Delete(*id)),
        Op::Punch { id, range } => Some(GarbageItem::Punch(*id, range.clone())),
        _ => None,
    };
    ops.iter().filter_map(item).collect()
}

/// Moves filter memory before readers see the new version. Filters of tables that the version no longer names
/// give their memory to those of new tables, and the new index pages replace the old ones in the cache.
fn hand_over_filters(tree: &OpenTree, change: &mut TreeChange) {
    let slices = |record: &ManifestRecord| {
        if let ManifestRecord::Slices { object, level, run, parts } = record {
            let handle = tree.handles.get(object)?.clone();
            Some((handle, filter_level(*level, *run), parts.clone()))
        } else {
            None
        }
    };
    let tables: Vec<_> = change.records.iter().filter_map(slices).collect();
    for (handle, level, parts) in &tables {
        handle.table.keep_filters(*level, parts);
    }
    let mut at_hand = AtHand::default();
    for (handle, level, _) in &tables {
        if let Some(mut predicted) = change.predicted.remove(&handle.meta.object) {
            handle.table.attach_index_pages(&mut predicted);
            handle.table.attach_filters(*level, &mut predicted, &mut at_hand);
        }
    }
    if let Some((handle, ..)) = tables.first() {
        handle.table.elastic().adjust_to_budget(&at_hand);
    }
}

fn names_value(records: &[ManifestRecord], object: ObjectId) -> bool {
    records.iter().any(|record| matches!(record, ManifestRecord::Value(meta) if meta.object == object))
}

/// Garbage that the change produces: tables without slices, dead bytes, dropped value objects.
fn garbage_of(tree: &mut OpenTree, change: &TreeChange) -> Vec<GarbageItem> {
    let mut items = Vec::new();
    for record in &change.records {
        match record {
            ManifestRecord::Slices { object, parts, .. } if parts.is_empty() => {
                items.extend(tree.handles.remove(object).map(|_| GarbageItem::Delete(*object)));
            }
            ManifestRecord::DropValue { object } => items.push(GarbageItem::Delete(*object)),
            ManifestRecord::Dead { object, ranges } => {
                let Some(value) = tree.manifest.state.values.get(object) else {
                    continue;
                };
                for range in ranges {
                    // The neighbours may be dead already, and then a page shared with them is free now.
                    let joined = value.dead.holding(range);
                    if let Some(pages) = page_aligned(&joined, VALUE_PAGE) {
                        let near = widen(range, VALUE_PAGE);
                        let pages = pages.start.max(near.start)..pages.end.min(near.end);
                        if !pages.is_empty() {
                            items.push(GarbageItem::Punch(*object, pages));
                        }
                    }
                }
            }
            _ => {}
        }
    }
    items
}

/// The pages that `range` touches, as a byte range.
fn widen(range: &Range<u64>, page: u64) -> Range<u64> {
    range.start / page * page..range.end.next_multiple_of(page)
}

/// Manifest records that remove `taken` from slices of a run's tables and keep the rest in place.
pub(crate) fn take_out(slices: &[TableSlice], tree: &OpenTree, taken: &KeyRange) -> Vec<ManifestRecord> {
    let mut objects: Vec<ObjectId> = slices.iter().map(|slice| slice.table.meta.object).collect();
    objects.sort_unstable();
    objects.dedup();
    let mut records = Vec::new();
    for object in objects {
        let Some(table) = tree.manifest.state.tables.get(&object) else {
            continue;
        };
        let mut parts = Vec::new();
        for part in &table.parts {
            let before = part.start.clone()..part.end.clone().min(taken.start.clone());
            let after = part.start.clone().max(taken.end.clone())..part.end.clone();
            parts.extend([before, after].into_iter().filter(|rest| rest.start < rest.end));
        }
        records.push(ManifestRecord::Slices { object, level: table.level, run: table.run, parts });
    }
    records
}
