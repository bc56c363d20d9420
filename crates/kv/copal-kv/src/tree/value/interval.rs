//! Set of byte ranges of one object, adjacent ranges joined. Pure.

use std::{collections::BTreeMap, ops::Range};

/// Disjoint, non-adjacent ranges in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IntervalSet {
    /// start -> end
    ranges: BTreeMap<u64, u64>,
    total: u64,
}

impl IntervalSet {
    /// Adds `range`; returns the joined range that now holds it.
    pub(crate) fn insert(&mut self, range: Range<u64>) -> Range<u64> {
        if range.is_empty() {
            return range;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&s, &e)) = self.ranges.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.ranges.remove(&s);
            self.total -= e - s;
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
        self.total += end - start;
        start..end
    }

    /// The joined range that contains `range`; `range` itself when it is not in the set.
    pub(crate) fn holding(&self, range: &Range<u64>) -> Range<u64> {
        match self.ranges.range(..=range.start).next_back() {
            Some((&start, &end)) if end >= range.end => start..end,
            _ => range.clone(),
        }
    }

    /// Sum of the lengths, bytes.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    /// Bytes of heap memory: map nodes that are half full.
    pub(crate) fn heap_bytes(&self) -> usize {
        2 * self.ranges.len() * size_of::<(u64, u64)>()
    }

    /// Number of ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// The parts of `0..len` that no range covers.
    pub(crate) fn gaps(&self, len: u64) -> Vec<Range<u64>> {
        let mut gaps = Vec::new();
        let mut at = 0;
        for range in self.iter() {
            if range.start >= len {
                break;
            }
            if range.start > at {
                gaps.push(at..range.start);
            }
            at = at.max(range.end);
        }
        if at < len {
            gaps.push(at..len);
        }
        gaps
    }

    /// Bytes of `self` in whole pages of `page` bytes: the part that hole punching can free.
    pub(crate) fn whole_pages(&self, page: u64) -> u64 {
        self.iter().filter_map(|range| page_aligned(&range, page)).map(|r| r.end - r.start).sum()
    }
}

/// The whole pages inside `range`; `None` when there is none.
pub(crate) fn page_aligned(range: &Range<u64>, page: u64) -> Option<Range<u64>> {
    let start = range.start.next_multiple_of(page);
    let end = range.end / page * page;
    (start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touching_intervals_join_and_each_byte_counts_once() {
        let mut set = IntervalSet::default();
        assert_eq!(set.insert(10..20), 10..20);
        assert_eq!(set.insert(30..40), 30..40);
        assert_eq!(set.insert(20..30), 10..40);
        assert_eq!(set.insert(0..5), 0..5);
        assert_eq!(set.insert(12..15), 10..40);
        assert_eq!(set.total(), 35);
        assert_eq!((set.holding(&(12..13)), set.holding(&(6..7))), (10..40, 6..7));
        assert_eq!(set.gaps(50), vec![5..10, 40..50]);
        assert_eq!(set.len(), 2);
    }

    #[test]
    fn agrees_with_a_bitmap() {
        let mut random = copal_testkit::Random::new(1);
        let mut next = move |bound| random.below(bound);
        for _ in 0..200 {
            let mut set = IntervalSet::default();
            let mut bits = [false; 64];
            for _ in 0..20 {
                let start = next(64);
                let end = start + next(64 - start + 1);
                set.insert(start..end);
                bits[start as usize..end as usize].fill(true);
            }
            assert_eq!(set.total(), bits.iter().filter(|bit| **bit).count() as u64);
            for gap in set.gaps(64) {
                assert!(bits[gap.start as usize..gap.end as usize].iter().all(|bit| !bit));
            }
            let pages = bits.chunks(8).filter(|page| page.iter().all(|bit| *bit)).count() as u64 * 8;
            assert_eq!(set.whole_pages(8), pages);
        }
    }
}
