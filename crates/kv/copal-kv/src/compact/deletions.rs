//! Statistics of deletions: the share of tombstones that deleted something, and the bytes that scans skipped
//! because of them.
//!
//! Invariants
//! - Only the choice of merges depends on these counts: they start anew when a store is opened.
//! - At most [`MOST_PLACES`] places are kept, each by a short key, however many scans run.
//!
//! Not here: the use of the counts (`merge_benefit`), their collection by scans (`passed_deletions`).

use crate::{
    format::entry::{KeyRange, KeyspaceId},
    tree::version::SortedRun,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, btree_map::Entry};

/// Limit of separate places. Beyond it, skipped bytes count for the preceding place, if there is one.
const MOST_PLACES: usize = 1024;
/// Longest key that names a place: keys may be long, and no budget is charged for these.
const LONGEST_PLACE: usize = 256;
/// Prior: this many deletions count as having deleted something before any was observed.
const BELIEVED: u64 = 1024;
/// Number of observed deletions at which all earlier observations are halved.
const MEMORY: u64 = 1 << 20;
/// Tombstones that reached the bottom of the tree, and those of them with an older version below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalkDeletions {
    pub(crate) deletions: u64,
    pub(crate) hits: u64,
}

/// Statistics of deletions of one store; see the module.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    found: Mutex<BTreeMap<KeyspaceId, WalkDeletions>>,
    /// Bytes of deleted entries and their tombstones that scans skipped. The key is the start of the oldest
    /// run's table at that place, or of the gap behind a table.
    passed: Mutex<BTreeMap<Bytes, u64>>,
}

impl Deletions {
    /// Adds the observations of a merge about tombstones with nothing older below.
    pub(crate) fn add_found(&self, seen: &[(KeyspaceId, WalkDeletions)]) {
        if seen.is_empty() {
            return;
        }
        let mut found = self.found.lock();
        for (keyspace, seen) in seen {
            let all = found.entry(*keyspace).or_default();
            all.deletions += seen.deletions;
            all.hits += seen.hits;
            if all.deletions > MEMORY {
                all.deletions /= 2;
                all.hits /= 2;
            }
        }
    }

    /// Estimated share of a keyspace's deletions that delete something, from 0 to 1.
    pub(crate) fn hit_share(&self, keyspace: Option<KeyspaceId>) -> f64 {
        let found = self.found.lock();
        let found = keyspace.and_then(|id| found.get(&id)).copied().unwrap_or_default();
        (found.hits + BELIEVED) as f64 / (found.deletions + BELIEVED) as f64
    }

    /// Adds bytes that a scan skipped before `key`; `oldest` is the last of the runs it read.
    pub(crate) fn add_passed(&self, oldest: &SortedRun, key: &[u8], bytes: u64) {
        let place = place_of(oldest, key);
        let mut passed = self.passed.lock();
        let is_full = passed.len() >= MOST_PLACES || place.len() > LONGEST_PLACE;
        match passed.entry(place) {
            Entry::Occupied(mut known) => *known.get_mut() += bytes,
            Entry::Vacant(new) if !is_full => {
                new.insert(bytes);
            }
            Entry::Vacant(new) => {
                let place = new.into_key();
                if let Some((_, before)) = passed.range_mut(..place).next_back() {
                    *before += bytes;
                }
            }
        }
    }

    /// Bytes that scans skipped in `range`.
    pub(crate) fn passed_in(&self, range: &KeyRange) -> u64 {
        let passed = self.passed.lock();
        passed.range(range.start.clone()..range.end.clone()).map(|(_, bytes)| bytes).sum()
    }

    /// Forgets the bytes skipped in `range`, after a merge dropped them.
    pub(crate) fn forget_passed(&self, range: &KeyRange) {
        self.passed.lock().retain(|place, _| !range.contains(place));
    }
}

/// Start of the run's table that holds `key`, or of the gap that contains it.
fn place_of(run: &SortedRun, key: &[u8]) -> Bytes {
    let after = run.slices.partition_point(|slice| slice.range.start[..] <= *key);
    let Some(slice) = after.checked_sub(1).and_then(|at| run.slices.get(at)) else {
        return Bytes::new();
    };
    if *key < slice.range.end[..] { slice.range.start.clone() } else { slice.range.end.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deletions_are_believed_until_they_were_seen_to_find_nothing() {
        let (deletions, space) = (Deletions::default(), KeyspaceId(1));
        assert_eq!(deletions.hit_share(Some(space)), 1.0);
        let seen = |deletions: u64, hits| (space, WalkDeletions { deletions, hits });
        deletions.add_found(&[seen(3 * BELIEVED, 0)]);
        assert_eq!(deletions.hit_share(Some(space)), 0.25);
        assert_eq!(deletions.hit_share(Some(KeyspaceId(2))), 1.0, "another keyspace");
        // Old observations lose weight with each halving.
        for _ in 0..8 {
            deletions.add_found(&[seen(MEMORY, MEMORY)]);
        }
        assert!(deletions.hit_share(Some(space)) > 0.99);
    }

    #[test]
    fn places_never_exceed_their_limit() {
        let deletions = Deletions::default();
        let slices = Vec::new();
        let run = SortedRun { level: crate::tree::manifest::format::TreeLevel::TOP, id: 1, slices };
        deletions.add_passed(&run, b"b", 5);
        let everything = KeyRange::all();
        assert_eq!(deletions.passed_in(&everything), 5);
        {
            let mut passed = deletions.passed.lock();
            let more = (1..MOST_PLACES as u32).map(|i| (Bytes::from(i.to_be_bytes().to_vec()), 1));
            passed.extend(more);
            // As if its place had been unknown.
            passed.remove(&Bytes::new());
            passed.insert(Bytes::from_static(&[0]), 1);
        }
        let before = deletions.passed_in(&everything);
        deletions.add_passed(&run, b"b", 7);
        assert!(deletions.passed_in(&everything) <= before + 7);
        assert!(deletions.passed.lock().len() <= MOST_PLACES);
        deletions.forget_passed(&everything);
        assert_eq!(deletions.passed_in(&everything), 0);
    }
}
