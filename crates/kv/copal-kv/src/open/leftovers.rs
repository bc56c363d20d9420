//! Objects of the engine that neither the manifest nor a log names: leftovers of a kill, or leaks.
//!
//! Two callers share this decision. The opening deletes all of them. Verification distinguishes leftovers
//! from leaks, also in a read-only store, which sweeps nothing.
//! Invariants
//! - A leftover is explained: an edit of the manifest dropped it, or it is younger than the last moment at
//!   which the store had no other ([`ManifestRecord::Settled`]).
//! - Every other object without a name is a leak: no crash of a correct engine makes one.
//!
//! Not here: freeing them (`open`), bytes inside value objects (`open`, `verify`).
//!
//! [`ManifestRecord::Settled`]: crate::tree::manifest::records::ManifestRecord::Settled

use crate::tree::manifest::{ObjectRole, parse_label, rewrite::BESIDE, state::ManifestState};
use copal_object::{ObjectId, ObjectStat, SCRUB_PLACE_ID, Store as Objects};
use std::collections::BTreeMap;

const LIST_AT_ONCE: usize = 1024;

/// The engine's objects in the object store, by their labels.
#[derive(Default)]
pub(crate) struct FoundObjects {
    /// Streams by generation.
    pub(crate) logs: BTreeMap<u64, ObjectId>,
    /// Streams with the same generation as another, older one.
    pub(crate) second_logs: Vec<ObjectId>,
    pub(crate) tables: Vec<ObjectId>,
    pub(crate) values: BTreeMap<ObjectId, ObjectStat>,
    /// The stream whose first extent is the page-cache log.
    pub(crate) page_cache_log: Option<ObjectId>,
    /// Objects of an unfinished rewrite of the manifest.
    pub(crate) manifests: Vec<ObjectId>,
    /// Highest id of any object except those and the place of a scrub, including objects of other owners.
    pub(crate) highest: u64,
}

impl FoundObjects {
    pub(crate) fn list(objects: &Objects) -> FoundObjects {
        let mut found = FoundObjects::default();
        let mut from = ObjectId(0);
        loop {
            let stats = objects.list(from, LIST_AT_ONCE);
            let Some(last) = stats.last() else { return found };
            from = ObjectId(last.id.0 + 1);
            stats.into_iter().for_each(|stat| found.add(stat));
        }
    }

    fn add(&mut self, stat: ObjectStat) {
        if BESIDE.contains(&stat.id) {
            self.manifests.push(stat.id);
            return;
        }
        if stat.id == SCRUB_PLACE_ID {
            return;
        }
        self.highest = self.highest.max(stat.id.0);
        match parse_label(&stat.label) {
            Some((ObjectRole::Log, generation)) => {
                // The older stream is the log that the store has been writing.
                if let Some(&first) = self.logs.get(&generation) {
                    self.second_logs.push(stat.id.max(first));
                    self.logs.insert(generation, stat.id.min(first));
                } else {
                    self.logs.insert(generation, stat.id);
                }
            }
            Some((ObjectRole::Table, _)) => self.tables.push(stat.id),
            Some((ObjectRole::Value, _)) => {
                self.values.insert(stat.id, stat);
            }
            Some((ObjectRole::PageCacheLog, _)) => {
                self.page_cache_log = self.page_cache_log.or(Some(stat.id))
            }
            Some((ObjectRole::Manifest, _)) | None => {}
        }
    }
}

/// An object without a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnnamedObject {
    pub(crate) object: ObjectId,
    pub(crate) role: ObjectRole,
    /// The step that made it did not complete, or is over: the next writable opening frees it, and no data is
    /// lost.
    pub(crate) explained: bool,
}

/// All objects in `found` that neither `state` nor the later logs name. `logged`: whether a log points into a
/// value object.
pub(crate) fn unnamed(
    state: &ManifestState,
    found: &FoundObjects,
    logged: impl Fn(&ObjectId) -> bool,
) -> Vec<UnnamedObject> {
    let logs = found
        .logs
        .range(..=state.flushed_generation)
        .map(|(_, log)| *log)
        .chain(found.second_logs.iter().copied());
    let tables = found.tables.iter().copied().filter(|table| !state.tables.contains_key(table));
    let values =
        found.values.keys().copied().filter(|value| !state.values.contains_key(value) && !logged(value));
    let judged = |role: ObjectRole| {
        move |object: ObjectId| UnnamedObject {
            object,
            role,
            explained: object.0 >= state.settled_below || state.dropped.contains(&object),
        }
    };
    let mut all: Vec<UnnamedObject> = logs.map(judged(ObjectRole::Log)).collect();
    all.extend(tables.map(judged(ObjectRole::Table)));
    all.extend(values.map(judged(ObjectRole::Value)));
    all.extend(found.manifests.iter().map(|&object| UnnamedObject {
        object,
        role: ObjectRole::Manifest,
        explained: true,
    }));
    all
}
