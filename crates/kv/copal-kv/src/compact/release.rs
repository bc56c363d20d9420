//! Drops damaged key ranges that a range tombstone covers, unread, and counts live values anew.
//!
//! Not here: which ranges are damaged (`damaged_parts`), listing them for users (`quarantine`).

use crate::{
    Error,
    compact::install::{self, TreeChange, take_out},
    engine::Engine,
    format::{entry::EntryKind, entry_cursor::Cursor, range_tombstones::RangeTombstones},
    table::Scan,
    tree::{
        damaged_parts::{DamagedPart, parts},
        value::{
            interval::IntervalSet,
            pointer::{VALUE_PAGE, ValuePointer},
        },
        version::{SuperVersion, TableSlice, TreeVersion},
    },
};
use copal_device::IoClass;
use copal_object::ObjectId;
use std::collections::{BTreeMap, HashSet};

/// Drops the first damaged part that a tombstone covers, unread; `true` when there was one.
///
/// The separated values that it pointed to are unknown, so the live values of the table's value objects are
/// counted anew.
pub(crate) fn release(
    engine: &Engine,
    version: &TreeVersion,
    covered: &RangeTombstones,
    oldest: u64,
) -> Result<bool, Error> {
    let parts = parts(version);
    let free =
        |part: &&DamagedPart<'_>| covered.covers_range(&part.range, part.slice.table.meta.max_seq, oldest);
    let Some(part) = parts.iter().find(free) else {
        return Ok(false);
    };
    let meta = &part.slice.table.meta;
    let records = {
        let tree = engine.stored.tree.lock();
        take_out(std::slice::from_ref(part.slice), &tree, &part.range)
    };
    tracing::info!(table = meta.object.0, "a damaged key range was replaced and is dropped");
    install::install(engine, TreeChange { records, ..TreeChange::default() })?;
    recount(engine, meta.values.iter().map(|(object, _)| *object).collect())?;
    Ok(true)
}

/// Finds the bytes of value objects that no entry points to any more, by reading every table that points to
/// these objects. Skips objects that a remaining damaged table may point to.
fn recount(engine: &Engine, objects: HashSet<ObjectId>) -> Result<(), Error> {
    let accounted = accounted(engine, &objects);
    let view = engine.super_version();
    recount_in(engine, &view, objects, &accounted)
}

/// Accounted bytes by object, as in the manifest.
pub(crate) fn accounted(engine: &Engine, objects: &HashSet<ObjectId>) -> BTreeMap<ObjectId, u64> {
    let tree = engine.stored.tree.lock();
    let values = &tree.manifest.state.values;
    let accounted = |object: &ObjectId| Some((*object, values.get(object)?.meta.accounted));
    objects.iter().filter_map(accounted).collect()
}

/// `super_version` must not be older than `accounted`, so that it holds every pointer below these lengths.
pub(crate) fn recount_in(
    engine: &Engine,
    view: &SuperVersion,
    mut objects: HashSet<ObjectId>,
    accounted: &BTreeMap<ObjectId, u64>,
) -> Result<(), Error> {
    for part in parts(&view.version) {
        for (object, _) in &part.slice.table.meta.values {
            objects.remove(object);
        }
    }
    if objects.is_empty() {
        return Ok(());
    }
    let direct: HashSet<ObjectId> = {
        let tree = engine.stored.tree.lock();
        let values = tree.manifest.state.values.values();
        values.filter(|value| !value.meta.by_worker).map(|value| value.meta.object).collect()
    };
    let mut live: BTreeMap<ObjectId, IntervalSet> =
        objects.iter().map(|object| (*object, IntervalSet::default())).collect();
    let mut note = |cursor: &mut dyn Cursor| -> Result<(), Error> {
        while let Some(entry) = cursor.entry() {
            if entry.kind == EntryKind::Pointer {
                let pointer = ValuePointer::decode(entry.value)?;
                if let Some(set) = live.get_mut(&pointer.object) {
                    let mut range = pointer.range();
                    if direct.contains(&pointer.object) {
                        range.end = range.end.next_multiple_of(VALUE_PAGE);
                    }
                    set.insert(range);
                }
            }
            cursor.next()?;
        }
        Ok(())
    };
    for memtable in view.memtables() {
        let mut cursor = memtable.cursor();
        cursor.first()?;
        note(&mut cursor)?;
    }
    let scan = Scan { class: IoClass::Background, whole: true, ..Scan::default() };
    for run in &view.version.runs {
        let points = |slice: &&TableSlice| slice.table.meta.values.iter().any(|(o, _)| objects.contains(o));
        for slice in run.slices.iter().filter(points) {
            let mut cursor = run.cursor(&slice.range, scan);
            cursor.first()?;
            note(&mut cursor)?;
        }
    }
    let mut change = TreeChange::default();
    {
        let tree = engine.stored.tree.lock();
        for (object, mut known) in live {
            // Bytes accounted for since then are not in the view.
            let value = tree.manifest.state.values.get(&object);
            let Some((value, accounted)) = value.zip(accounted.get(&object)) else {
                continue;
            };
            for range in value.dead.iter() {
                known.insert(range);
            }
            let dead = known.gaps(*accounted);
            if !dead.is_empty() {
                change.dead.insert(object, dead);
            }
        }
    }
    if change.dead.is_empty() {
        return Ok(());
    }
    install::install(engine, change)
}
