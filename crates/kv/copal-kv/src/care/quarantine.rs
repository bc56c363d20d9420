//! Key ranges that cannot be read: who they are, how they are given free.
//!
//! A block that differs at its second reading sets the range of its partition apart; a table whose own
//! description is damaged, or that is missing, sets apart all of its range. Keys there answer `Corrupt`
//! unless something newer is known of them; intact blocks of a damaged partition still answer.
//! Invariants
//! - Never absent instead of corrupt: a damaged part stays in its run, and no merge takes a key of its range
//!   past it, from above or below (KV-12).
//! - A range is free again when a range tombstone newer than the table covers it and no snapshot looks behind
//!   that: after a purge, or a repair, which is a purge with its entries in one batch.
//! - Nothing is recorded: what is damaged is found again when it is read, at the latest by a merge or a
//!   scrub.
//!
//! Not here: how merges go round them (`set_apart`), finding damage (`table::damage`, `verify`, `scrub`),
//! refilling (`repair`).

use crate::{
    Error, Store,
    compact::install::{Change, take_out},
    engine::Engine,
    read::get::{Version as Entry, in_memtables, in_runs},
    table::{
        Keep, Scan,
        entry::EntryKind,
        entry_cursor::Cursor,
        key::{keyspace_of, successor, user_key},
        range_tombstones::RangeTombstones,
    },
    tree::{
        damaged_parts::{Part, parts},
        super_version::SuperVersion,
        value::{
            interval::IntervalSet,
            pointer::{Pointer, VALUE_PAGE},
        },
        version::{Slice, Version},
    },
};
use bytes::Bytes;
use copal_device::Class;
use copal_object::ObjectId;
use std::collections::{BTreeMap, HashSet};

/// Keys of one keyspace that may be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRange {
    /// The keyspace's name.
    pub keyspace: String,
    /// The first key.
    pub start: Bytes,
    /// The first key behind them; `None`: to the end of the keyspace.
    pub end: Option<Bytes>,
    /// Object of the table, or of the separated value, that is damaged there.
    pub object: u64,
    /// What was found, as a sentence.
    pub what: String,
}

impl Store {
    /// Key ranges found damaged since the store was opened and not repaired, deleted or purged yet, newest
    /// data first: what another replica should send. [`Store::verify`] with `deep` and [`Store::scrub`] find
    /// the rest.
    #[must_use]
    pub fn damaged_ranges(&self) -> Vec<DamagedRange> {
        let engine = self.engine();
        let version = engine.super_version().version.clone();
        let tree = engine.stored.tree.lock();
        let mut found = Vec::new();
        for part in parts(&version) {
            for (id, space) in &tree.manifest.state.keyspaces {
                let range = part.range.intersect(&id.range());
                if range.is_empty() {
                    continue;
                }
                let to_the_end = range.end >= id.range().end;
                found.push(DamagedRange {
                    keyspace: space.name.clone(),
                    start: user_key(&range.start),
                    end: (!to_the_end).then(|| user_key(&range.end)),
                    object: part.slice.table.meta.object.0,
                    what: part.what.clone(),
                });
            }
        }
        drop(tree);
        found.extend(engine.damaged_values());
        found
    }
}

impl Engine {
    /// Separated values found damaged that are still what their key has; forgets the others.
    fn damaged_values(&self) -> Vec<DamagedRange> {
        let (view, seq) = self.super_version_now();
        let mut found = Vec::new();
        let mut noted = self.stored.damaged_values.lock();
        noted.retain(|key, (pointer, what)| {
            let current = in_memtables(&view, seq, key)
                .map_or_else(|| in_runs(&view, seq, key, self.seed, Keep::Nothing), Ok);
            let stands = |now: Entry| now.kind == EntryKind::Pointer && now.value == *pointer;
            if !current.is_ok_and(|now| now.is_some_and(stands)) {
                return false;
            }
            let keyspace =
                keyspace_of(key).map(|id| self.stored.tree.lock().manifest.state.keyspaces.get(&id).cloned());
            let Some(Some(keyspace)) = keyspace else {
                return false;
            };
            found.push(DamagedRange {
                keyspace: keyspace.name,
                start: user_key(key),
                end: Some(user_key(&successor(key))),
                object: Pointer::decode(pointer).map_or(0, |pointer| pointer.object.0),
                what: what.clone(),
            });
            true
        });
        found
    }

    /// Drops the first damaged part that a tombstone covers, unread; `true` when there was one.
    ///
    /// Which separated values it pointed to is not known, so those of its table are counted anew.
    pub(crate) fn release(
        &self,
        version: &Version,
        covered: &RangeTombstones,
        oldest: u64,
    ) -> Result<bool, Error> {
        let parts = parts(version);
        let free =
            |part: &&Part<'_>| covered.covers_range(&part.range, part.slice.table.meta.max_seq, oldest);
        let Some(part) = parts.iter().find(free) else {
            return Ok(false);
        };
        let meta = &part.slice.table.meta;
        let records = {
            let tree = self.stored.tree.lock();
            take_out(std::slice::from_ref(part.slice), &tree, &part.range)
        };
        tracing::info!(table = meta.object.0, "a damaged key range was replaced and is dropped");
        self.install(Change { records, ..Change::default() })?;
        self.recount(meta.values.iter().map(|(object, _)| *object).collect())?;
        Ok(true)
    }

    /// Finds out which bytes of value objects no entry points to any more, by reading every table that points
    /// to them. Objects that a damaged table may point to wait until that is gone.
    fn recount(&self, objects: HashSet<ObjectId>) -> Result<(), Error> {
        let accounted = self.accounted(&objects);
        let view = self.super_version();
        self.recount_in(&view, objects, &accounted)
    }

    /// Bytes that the manifest accounts for, by object.
    pub(crate) fn accounted(&self, objects: &HashSet<ObjectId>) -> BTreeMap<ObjectId, u64> {
        let tree = self.stored.tree.lock();
        let values = &tree.manifest.state.values;
        let accounted = |object: &ObjectId| Some((*object, values.get(object)?.meta.accounted));
        objects.iter().filter_map(accounted).collect()
    }

    /// `super_version` is not older than `accounted`: all that lives below these lengths is in it.
    pub(crate) fn recount_in(
        &self,
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
            let tree = self.stored.tree.lock();
            let values = tree.manifest.state.values.values();
            values.filter(|value| !value.meta.by_worker).map(|value| value.meta.object).collect()
        };
        let mut live: BTreeMap<ObjectId, IntervalSet> =
            objects.iter().map(|object| (*object, IntervalSet::default())).collect();
        let mut note = |cursor: &mut dyn Cursor| -> Result<(), Error> {
            while let Some(entry) = cursor.entry() {
                if entry.kind == EntryKind::Pointer {
                    let pointer = Pointer::decode(entry.value)?;
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
        let scan = Scan { class: Class::Background, whole: true, ..Scan::default() };
        for run in &view.version.runs {
            let points = |slice: &&Slice| slice.table.meta.values.iter().any(|(o, _)| objects.contains(o));
            for slice in run.slices.iter().filter(points) {
                let mut cursor = run.cursor(&slice.range, scan);
                cursor.first()?;
                note(&mut cursor)?;
            }
        }
        let mut change = Change::default();
        {
            let tree = self.stored.tree.lock();
            for (object, mut known) in live {
                // What was accounted for since is not in the view.
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
        self.install(change)
    }
}
