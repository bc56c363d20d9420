//! Frees data without reading it: dead value objects, and tables that a range tombstone covers completely.
//!
//! Invariants
//! - An object that commits or the worker may still append to, or that a memtable points into, is kept.
//! - A table is dropped unread only if all value objects that its entries point to are dropped as well, so
//!   that no accounts of live values become wrong.

use super::{
    install::{TreeChange, take_out},
    value_separation::WorkerValues,
};
use crate::{
    Error,
    compact::{install, release},
    engine::Engine,
    format::{
        entry::KeyRange,
        range_tombstones::{RangeTombstones, tombstones_of},
        stripes::SequenceStripes,
    },
    tree::{
        manifest::{
            format::{ManifestRecord, ValueMeta},
            state::ValueState,
        },
        value::pointer::VALUE_PAGE,
        version::{TableSlice, TreeVersion},
    },
    write::commit::values::GroupKey,
};
use copal_object::ObjectId;
use std::collections::HashSet;

/// A value object is rewritten when more than this fraction (1/n) of its occupied bytes is dead.
const STALE_FRACTION: u64 = 4;
/// The same in a full store, for scattered dead values that share pages with live ones.
const STALE_FRACTION_WHEN_FULL: u64 = 16;
/// Dead bytes below which a rewrite is not worth its reads.
const STALE_LEAST: u64 = 256 << 10;

/// Value objects that may still be appended to, or that memtables point into.
fn busy_values(engine: &Engine, values: &WorkerValues) -> HashSet<ObjectId> {
    let direct = engine.writes.direct_values.lock();
    let mut busy: HashSet<ObjectId> = direct.open_objects().into_iter().collect();
    let view = engine.super_version();
    drop(direct);
    busy.extend(view.memtables().flat_map(|memtable| memtable.value_metas()).map(|meta| meta.object));
    busy.extend(values.open_objects());
    busy
}

/// Drops dead objects and covered tables; `true` when there were some. The caller holds the step lock.
pub(crate) fn sweep(engine: &Engine) -> Result<bool, Error> {
    let version = engine.super_version().version.clone();
    let covered = all_tombstones(&version, &engine.snapshots.stripes());
    sweep_covered(engine, version, &covered)
}

/// Forbidden behaviour for a test: drops values by tombstones that are not in tables yet.
#[cfg(test)]
pub(crate) fn sweep_too_early(engine: &Engine) -> Result<(), Error> {
    let _step = engine.compactor.step.lock();
    let view = engine.super_version();
    let in_memory = view.memtables().flat_map(|memtable| memtable.range_deletes());
    let covered: Vec<_> = in_memory.collect();
    let covered = RangeTombstones::new(&covered);
    sweep_covered(engine, view.version.clone(), &covered)?;
    engine.too_early(Vec::new())
}

fn sweep_covered(
    engine: &Engine,
    version: std::sync::Arc<TreeVersion>,
    covered: &RangeTombstones,
) -> Result<bool, Error> {
    let oldest = engine.snapshots.stripes().oldest();
    if !covered.is_empty() && release::release(engine, &version, covered, oldest)? {
        return Ok(true);
    }
    let purged = |meta: &ValueMeta| {
        let group = GroupKey { keyspace: meta.keyspace, prefix: meta.group.clone() };
        covered.covers_range(&group.range(), meta.max_seq, oldest)
    };
    let gone = |value: &ValueState| {
        value.dead.total() >= value.meta.accounted && value.meta.accounted > 0 || purged(&value.meta)
    };
    let candidates = || -> Vec<ObjectId> {
        let tree = engine.stored.tree.lock();
        let values = tree.manifest.state.values.values();
        values.filter(|value| gone(value)).map(|v| v.meta.object).collect()
    };
    let drops_tables = covered_slices(&version, covered, oldest).next().is_some();
    if !drops_tables && candidates().is_empty() {
        return Ok(false);
    }
    let mut values = engine.compactor.worker_values.lock();
    // Evaluated again: this thread may have waited for a flush, which may have appended to one of them.
    let candidates = candidates();
    // Close them: dead objects need no further appends.
    candidates.iter().for_each(|object| values.close(*object));
    let busy = busy_values(engine, &values);
    let dropped: HashSet<ObjectId> = candidates.into_iter().filter(|object| !busy.contains(object)).collect();
    let mut change = TreeChange::default();
    change.records.extend(dropped.iter().map(|object| ManifestRecord::DropValue { object: *object }));
    if drops_tables {
        let tree = engine.stored.tree.lock();
        let known = |object: &ObjectId| tree.manifest.state.values.contains_key(object);
        for slice in covered_slices(&version, covered, oldest) {
            let loses = slice.table.meta.values.iter().any(|(o, _)| known(o) && !dropped.contains(o));
            if !loses {
                change.records.extend(take_out(std::slice::from_ref(slice), &tree, &slice.range));
            }
        }
    }
    if change.records.is_empty() {
        return Ok(false);
    }
    drop(version);
    install::install(engine, change)?;
    Ok(true)
}

/// The key range of a group inside `range`, and its value objects with many dead bytes that hole punching
/// cannot free.
pub(crate) fn stale_group(engine: &Engine, range: &KeyRange) -> Option<(KeyRange, HashSet<ObjectId>)> {
    let fraction = stale_fraction(engine);
    let wasteful = |value: &&ValueState| is_wasteful(value, range, fraction);
    // Checked before waiting for a flush.
    wasted_values(engine, range).first()?;
    let busy = busy_values(engine, &engine.compactor.worker_values.lock());
    let tree = engine.stored.tree.lock();
    let stale = |value: &&ValueState| wasteful(value) && !busy.contains(&value.meta.object);
    let first = tree.manifest.state.values.values().find(stale)?;
    let same = |value: &&ValueState| {
        value.meta.keyspace == first.meta.keyspace && value.meta.group == first.meta.group
    };
    let objects =
        tree.manifest.state.values.values().filter(same).filter(stale).map(|v| v.meta.object).collect();
    let group = GroupKey { keyspace: first.meta.keyspace, prefix: first.meta.group.clone() };
    Some((group.range(), objects))
}

fn stale_fraction(engine: &Engine) -> u64 {
    match engine.writes.pressure.is_on() {
        true => STALE_FRACTION_WHEN_FULL,
        false => STALE_FRACTION,
    }
}

/// Value objects inside `range` with many dead bytes that hole punching cannot free.
pub(crate) fn wasted_values(engine: &Engine, range: &KeyRange) -> Vec<ObjectId> {
    let tree = engine.stored.tree.lock();
    let values = tree.manifest.state.values.values();
    let fraction = stale_fraction(engine);
    let wasted = values.filter(|value| is_wasteful(value, range, fraction));
    wasted.map(|value| value.meta.object).collect()
}

/// Closes the objects, so that flushes append to none of them any more. Waits for a running flush.
pub(crate) fn close_values(engine: &Engine, objects: &[ObjectId]) {
    let mut values = engine.compactor.worker_values.lock();
    objects.iter().for_each(|object| values.close(*object));
}

fn is_wasteful(value: &ValueState, range: &KeyRange, fraction: u64) -> bool {
    let punched = value.dead.whole_pages(VALUE_PAGE);
    let held = value.dead.total() - punched;
    let occupied = value.meta.accounted.saturating_sub(punched);
    let group = GroupKey { keyspace: value.meta.keyspace, prefix: value.meta.group.clone() };
    held >= STALE_LEAST && range.covers(&group.range()) && held * fraction > occupied
}

/// The range tombstones of all tables, in one set.
fn all_tombstones(version: &TreeVersion, stripes: &SequenceStripes) -> RangeTombstones {
    let mut list = Vec::new();
    for slice in version.runs.iter().flat_map(|run| &run.slices) {
        if !slice.table.tombstones.is_empty() {
            list.extend(tombstones_of(&slice.table.tombstones.clipped(&slice.range)));
        }
    }
    RangeTombstones::in_stripes(&list, stripes)
}

/// Slices that a tombstone covers completely, where no held snapshot reads below the tombstone.
fn covered_slices<'a>(
    version: &'a TreeVersion,
    covered: &'a RangeTombstones,
    oldest: u64,
) -> impl Iterator<Item = &'a TableSlice> {
    let slices = version.runs.iter().flat_map(|run| &run.slices);
    slices.filter(move |slice| covered.covers_range(&slice.range, slice.table.meta.max_seq, oldest))
}
