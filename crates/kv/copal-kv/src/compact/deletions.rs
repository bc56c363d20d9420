//! What deletions are known to have met: how many of them found something below, and what walks passed over
//! because of them.
//!
//! Invariants
//! - Merges are chosen by these counts, nothing else depends on them: they begin anew when a store is opened.
//! - At most [`MOST_PLACES`] places are remembered, by short keys, whatever walks do.
//!
//! Not here: what follows from them (`merge_benefit`), who tells of a walk (`passed_deletions`).

use crate::{
    format::entry::{KeyRange, KeyspaceId},
    tree::version::SortedRun,
};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, btree_map::Entry};

/// Places that are told apart; beyond that, what is passed counts for the place before, if there is one.
const MOST_PLACES: usize = 1024;
/// Longest key that a place is remembered by: keys may be long, and these are in nobody's budget.
const LONGEST_PLACE: usize = 256;
/// Deletions that are taken to have found something before any were seen to.
const BELIEVED: u64 = 1024;
/// Deletions after which what was seen before counts half.
const MEMORY: u64 = 1 << 20;
/// Deletions that came to the end of their way, and those of them that something older lay below.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WalkDeletions {
    pub(crate) deletions: u64,
    pub(crate) hits: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Deletions {
    found: Mutex<BTreeMap<KeyspaceId, WalkDeletions>>,
    /// Bytes of deleted entries and their deletions that walks passed, by where the oldest run's table
    /// begins, or the gap behind one.
    passed: Mutex<BTreeMap<Bytes, u64>>,
}

impl Deletions {
    /// Adds what a merge saw of deletions that nothing is below any more.
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

    /// The part of a keyspace's deletions that is taken to find something, from 0 to 1.
    pub(crate) fn hit_share(&self, keyspace: Option<KeyspaceId>) -> f64 {
        let found = self.found.lock();
        let found = keyspace.and_then(|id| found.get(&id)).copied().unwrap_or_default();
        (found.hits + BELIEVED) as f64 / (found.deletions + BELIEVED) as f64
    }

    /// Adds bytes that a walk passed over before `key`; `oldest` is the last run of what it walked through.
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

    /// Bytes that walks passed in `range`.
    pub(crate) fn passed_in(&self, range: &KeyRange) -> u64 {
        let passed = self.passed.lock();
        passed.range(range.start.clone()..range.end.clone()).map(|(_, bytes)| bytes).sum()
    }

    /// What was passed in `range` is gone.
    pub(crate) fn forget_passed(&self, range: &KeyRange) {
        self.passed.lock().retain(|place, _| !range.contains(place));
    }
}

/// Where the table of a run that holds `key` begins, or the gap that it falls into.
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
        // What was long ago counts less and less.
        for _ in 0..8 {
            deletions.add_found(&[seen(MEMORY, MEMORY)]);
        }
        assert!(deletions.hit_share(Some(space)) > 0.99);
    }

    #[test]
    fn places_are_no_more_than_there_may_be() {
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
            // As if it had not been known.
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
