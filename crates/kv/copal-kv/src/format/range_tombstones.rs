//! Range tombstones as disjoint fragments, so that one search answers "is this key covered". Pure.
//!
//! Invariants
//! - Fragments ascend and do not overlap; each holds its sequences newest first, without repeats.
//! - A tombstone covers a version when the version is older (smaller sequence).

use crate::format::{
    entry::{KeyRange, RangeTombstone},
    stripes::SequenceStripes,
};
use bytes::Bytes;
use std::collections::BTreeMap;

/// Keys `[start, end)`, deleted at each of `seqs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TombstoneFragment {
    pub(crate) start: Bytes,
    pub(crate) end: Bytes,
    /// Newest first.
    pub(crate) seqs: Vec<u64>,
}

/// A searchable set of range tombstones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeTombstones {
    fragments: Vec<TombstoneFragment>,
}

impl RangeTombstones {
    /// Cuts `tombstones` into fragments.
    pub(crate) fn new(tombstones: &[RangeTombstone]) -> RangeTombstones {
        RangeTombstones::cut(tombstones, |active| active.keys().rev().copied().collect())
    }

    /// Like [`RangeTombstones::new`], but keeps only the newest tombstone of each stripe. No reader and no
    /// merge can tell the difference, and there are few, however many overlap.
    pub(crate) fn in_stripes(tombstones: &[RangeTombstone], stripes: &SequenceStripes) -> RangeTombstones {
        RangeTombstones::cut(tombstones, |active| {
            let mut newest = Vec::new();
            let mut up_to = Some(u64::MAX);
            while let Some((seq, _)) = up_to.and_then(|last| active.range(..=last).next_back()) {
                newest.push(*seq);
                up_to = stripes.before(*seq);
            }
            newest
        })
    }

    /// Fragments; `kept` selects the sequences of each from those that cover it, newest first.
    fn cut(tombstones: &[RangeTombstone], kept: impl Fn(&BTreeMap<u64, u32>) -> Vec<u64>) -> RangeTombstones {
        // At each border: +1 and -1 per sequence; between two borders the active set is constant.
        let mut borders: BTreeMap<Bytes, Vec<(u64, bool)>> = BTreeMap::new();
        for tombstone in tombstones.iter().filter(|tombstone| tombstone.start < tombstone.end) {
            borders.entry(tombstone.start.clone()).or_default().push((tombstone.seq, true));
            borders.entry(tombstone.end.clone()).or_default().push((tombstone.seq, false));
        }
        let mut active: BTreeMap<u64, u32> = BTreeMap::new();
        let mut fragments: Vec<TombstoneFragment> = Vec::new();
        let mut from: Option<Bytes> = None;
        for (border, changes) in borders {
            if let (Some(start), false) = (from.take(), active.is_empty()) {
                let (seqs, end) = (kept(&active), border.clone());
                let same = |before: &&mut TombstoneFragment| before.end == start && before.seqs == seqs;
                match fragments.last_mut().filter(same) {
                    Some(before) => before.end = end,
                    None => fragments.push(TombstoneFragment { start, end, seqs }),
                }
            }
            for (seq, opens) in changes {
                let count = active.entry(seq).or_insert(0);
                *count = if opens { *count + 1 } else { *count - 1 };
                if *count == 0 {
                    active.remove(&seq);
                }
            }
            from = Some(border);
        }
        RangeTombstones { fragments }
    }

    /// Bytes of heap memory of this value; the keys are shared with the list it was made from.
    pub(crate) fn heap_bytes(&self) -> usize {
        let sequences: usize = self.fragments.iter().map(|fragment| fragment.seqs.capacity()).sum();
        self.fragments.capacity() * size_of::<TombstoneFragment>() + sequences * size_of::<u64>()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.fragments.is_empty()
    }

    fn fragment_of(&self, key: &[u8]) -> Option<&TombstoneFragment> {
        let after = self.fragments.partition_point(|fragment| fragment.start[..] <= *key);
        let fragment = self.fragments.get(after.checked_sub(1)?)?;
        (*key < fragment.end[..]).then_some(fragment)
    }

    /// Sequence of the newest tombstone over `key` that a reader at `snapshot` sees; 0 when there is none.
    pub(crate) fn cover(&self, key: &[u8], snapshot: u64) -> u64 {
        let Some(fragment) = self.fragment_of(key) else {
            return 0;
        };
        let seen = fragment.seqs.partition_point(|seq| *seq > snapshot);
        fragment.seqs.get(seen).copied().unwrap_or(0)
    }

    /// Sequence of the oldest tombstone over `key` that is newer than `seq`: the first to delete that
    /// version.
    pub(crate) fn first_after(&self, key: &[u8], seq: u64) -> Option<u64> {
        let fragment = self.fragment_of(key)?;
        let newer = fragment.seqs.partition_point(|other| *other > seq);
        fragment.seqs.get(newer.checked_sub(1)?).copied()
    }

    /// The fragments inside `range`, clipped to it.
    pub(crate) fn clipped(&self, range: &KeyRange) -> Vec<TombstoneFragment> {
        let from = self.fragments.partition_point(|fragment| fragment.end <= range.start);
        self.fragments[from..]
            .iter()
            .take_while(|fragment| fragment.start < range.end)
            .map(|fragment| TombstoneFragment {
                start: fragment.start.clone().max(range.start.clone()),
                end: fragment.end.clone().min(range.end.clone()),
                seqs: fragment.seqs.clone(),
            })
            .collect()
    }

    /// Whether one tombstone at or below `snapshot` and newer than `seq` covers all of `range`.
    pub(crate) fn covers_range(&self, range: &KeyRange, seq: u64, snapshot: u64) -> bool {
        let mut at = range.start.clone();
        while at < range.end {
            let Some(fragment) = self.fragment_of(&at) else {
                return false;
            };
            if !fragment.seqs.iter().any(|other| *other > seq && *other <= snapshot) {
                return false;
            }
            at = fragment.end.clone();
        }
        true
    }
}

/// The fragments as single tombstones again.
pub(crate) fn tombstones_of(fragments: &[TombstoneFragment]) -> Vec<RangeTombstone> {
    let each = |fragment: &TombstoneFragment| {
        let (start, end) = (fragment.start.clone(), fragment.end.clone());
        fragment
            .seqs
            .iter()
            .map(move |seq| RangeTombstone { start: start.clone(), end: end.clone(), seq: *seq })
            .collect::<Vec<_>>()
    };
    fragments.iter().flat_map(each).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::entry::successor;

    fn just(key: &[u8]) -> KeyRange {
        KeyRange { start: Bytes::copy_from_slice(key), end: successor(key) }
    }

    #[test]
    fn agrees_with_a_list() {
        let mut random = copal_testkit::Random::new(1);
        let mut next = move |bound| random.below(bound);
        for _ in 0..300 {
            let list: Vec<RangeTombstone> = (0..next(8))
                .map(|_| {
                    let (a, b) = (next(16) as u8, next(16) as u8);
                    RangeTombstone {
                        start: Bytes::from(vec![a.min(b)]),
                        end: Bytes::from(vec![a.max(b)]),
                        seq: 1 + next(20),
                    }
                })
                .collect();
            let set = RangeTombstones::new(&list);
            for key in 0..16u8 {
                let over = |t: &&RangeTombstone| t.start[..] <= [key][..] && [key][..] < t.end[..];
                for snapshot in 0..22 {
                    let newest = list.iter().filter(over).map(|t| t.seq).filter(|s| *s <= snapshot).max();
                    assert_eq!(set.cover(&[key], snapshot), newest.unwrap_or(0));
                    let oldest = list.iter().filter(over).map(|t| t.seq).filter(|s| *s > snapshot).min();
                    assert_eq!(set.first_after(&[key], snapshot), oldest);
                    assert_eq!(set.covers_range(&just(&[key]), snapshot, u64::MAX), oldest.is_some());
                }
            }
            let again = tombstones_of(
                &set.clipped(&KeyRange { start: Bytes::from_static(&[0]), end: Bytes::from_static(&[200]) }),
            );
            assert_eq!(RangeTombstones::new(&again), set);
        }
    }
}
