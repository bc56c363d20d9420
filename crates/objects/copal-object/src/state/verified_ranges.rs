//! Bytes of objects that their readers have verified, so that a check of the same command need not read them again.
//!
//! The owner of an object with `ReadCheck::Caller` compares the bytes that it reads with sums of its own. On request the
//! store notes these ranges. A check of the data then leaves out each unit under a sum all of whose bytes are noted.
//!
//! Invariants
//! - Only a store that is open for reading only notes ranges: nothing changes after the comparison.
//! - A unit with one byte that is not noted is read: padding between values, deleted values, the end of an object.
//! - At most [`MOST_RANGES`] ranges are noted; bytes of others are read again.

use crate::ObjectId;
use parking_lot::Mutex;
use std::{collections::BTreeMap, ops::Range};

/// 4 MiB of them.
const MOST_RANGES: usize = 1 << 16;

/// Verified ranges of all objects.
#[derive(Debug, Default)]
pub(crate) struct VerifiedRanges {
    noted: Mutex<NotedRanges>,
}

#[derive(Debug, Default)]
struct NotedRanges {
    /// End of each range by object and start. Ranges of one object neither overlap nor touch.
    ends: BTreeMap<(u64, u64), u64>,
}

impl VerifiedRanges {
    /// Adds bytes of an object.
    pub(crate) fn add(&self, id: ObjectId, range: &Range<u64>) {
        let Range { mut start, mut end } = *range;
        if start >= end {
            return;
        }
        let ends = &mut self.noted.lock().ends;
        if let Some((&(_, before), &until)) = ends.range((id.0, 0)..=(id.0, start)).next_back()
            && until >= start
        {
            (start, end) = (before, end.max(until));
        }
        while let Some((&key, &until)) = ends.range((id.0, start)..=(id.0, end)).next_back() {
            end = end.max(until);
            ends.remove(&key);
        }
        if ends.len() < MOST_RANGES {
            ends.insert((id.0, start), end);
        }
    }

    /// Whether all bytes of `range` are noted.
    pub(crate) fn covers(&self, id: ObjectId, range: &Range<u64>) -> bool {
        let ends = &self.noted.lock().ends;
        let before = ends.range((id.0, 0)..=(id.0, range.start)).next_back();
        before.is_some_and(|(_, end)| *end >= range.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_testkit::Random;

    #[test]
    fn ranges_are_covered_as_in_a_list_of_bytes() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let verified = VerifiedRanges::default();
            let mut bytes = [[false; 64]; 2];
            for _ in 0..random.below(20) {
                let (id, start) = (random.below(2), random.below(64));
                let end = random.below(65);
                verified.add(ObjectId(id), &(start..end));
                (start..end).for_each(|at| bytes[id as usize][at as usize] = true);
                for start in 0..64 {
                    for end in start + 1..=64 {
                        for id in 0..2 {
                            let expected =
                                bytes[id as usize][start as usize..end as usize].iter().all(|noted| *noted);
                            assert_eq!(verified.covers(ObjectId(id), &(start..end)), expected);
                        }
                    }
                }
            }
        }
    }
}
