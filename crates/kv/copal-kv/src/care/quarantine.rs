//! Quarantine: lists key ranges that cannot be read.
//!
//! A block that differs at its second reading quarantines the range of its partition. A table that is
//! missing, or whose own description is damaged, quarantines its whole range. Look-ups there answer `Corrupt`
//! unless they find something newer; intact blocks of a damaged partition still answer.
//! Invariants
//! - Never absent instead of corrupt: a damaged part stays in its run, and no merge moves a key of its range
//!   past it, from above or below (KV-12).
//! - A range leaves the quarantine when a range tombstone newer than the table covers it and no snapshot
//!   reads below that. A purge writes such a tombstone, and so does a repair, in one batch with its entries.
//! - Nothing is recorded: damage is found again when it is read, at the latest by a merge or a scrub.
//!
//! Not here: how merges leave ranges out (`damaged_parts`), finding damage (`table::damage`, `verify`,
//! `scrub`), refilling (`repair`), dropping damaged parts (`release`).

use crate::{
    engine::Engine,
    format::entry::{EntryKind, keyspace_of, successor, user_key},
    read::get::{FoundVersion as Entry, in_memtables, in_runs},
    table::KeepPolicy,
    tree::{damaged_parts::parts, value::pointer::ValuePointer},
};
use bytes::Bytes;

/// Keys of one keyspace that may be lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedRange {
    /// The keyspace's name.
    pub keyspace: String,
    /// The first of these keys.
    pub start: Bytes,
    /// Exclusive end of these keys; `None`: to the end of the keyspace.
    pub end: Option<Bytes>,
    /// Object of the damaged table or separated value.
    pub object: u64,
    /// The damage, as a sentence.
    pub what: String,
}

/// As [`crate::Store::damaged_ranges`].
pub(crate) fn damaged_ranges(engine: &Engine) -> Vec<DamagedRange> {
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
    found.extend(damaged_values(engine));
    found
}

/// Damaged separated values that are still current; removes the others from the list.
fn damaged_values(engine: &Engine) -> Vec<DamagedRange> {
    let (view, seq) = engine.super_version_now();
    let mut found = Vec::new();
    let mut noted = engine.stored.damaged_values.lock();
    noted.retain(|key, (pointer, what)| {
        let current = in_memtables(&view, seq, key).map_or_else(
            || in_runs(&view, seq, key, engine.seed, KeepPolicy::Nothing, &engine.counters.reads),
            Ok,
        );
        let stands = |now: Entry| now.kind == EntryKind::Pointer && now.value == *pointer;
        if !current.is_ok_and(|now| now.is_some_and(stands)) {
            return false;
        }
        let keyspace =
            keyspace_of(key).map(|id| engine.stored.tree.lock().manifest.state.keyspaces.get(&id).cloned());
        let Some(Some(keyspace)) = keyspace else {
            return false;
        };
        found.push(DamagedRange {
            keyspace: keyspace.name,
            start: user_key(key),
            end: Some(user_key(&successor(key))),
            object: ValuePointer::decode(pointer).map_or(0, |pointer| pointer.object.0),
            what: what.clone(),
        });
        true
    });
    found
}
