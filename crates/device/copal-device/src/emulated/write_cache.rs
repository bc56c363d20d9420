//! Ranges of dirty bytes in the volatile write cache of a hard disk.

use std::collections::BTreeMap;

/// Dirty ranges by their first byte. Neighbours are joined, so no two ranges touch.
#[derive(Default)]
pub(super) struct WriteCache {
    ranges: BTreeMap<u64, u64>,
    bytes: u64,
}

impl WriteCache {
    /// Dirty bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Adds a range, joined with those it touches.
    pub(super) fn insert(&mut self, at: u64, end: u64) {
        let (mut from, mut to) = (at, end);
        let touching: Vec<u64> = self
            .ranges
            .range(..=end)
            .rev()
            .take_while(|(_, last)| **last >= at)
            .map(|(first, _)| *first)
            .collect();
        for first in touching {
            if let Some(last) = self.ranges.remove(&first) {
                self.bytes -= last - first;
                (from, to) = (from.min(first), to.max(last));
            }
        }
        self.ranges.insert(from, to);
        self.bytes += to - from;
    }

    /// Whether all bytes of the range are dirty.
    pub(super) fn covers(&self, at: u64, end: u64) -> bool {
        self.ranges.range(..=at).next_back().is_some_and(|(_, last)| *last >= end)
    }

    /// Takes all ranges, in the order of one sweep that begins at `head`.
    pub(super) fn take_sweep(&mut self, head: u64) -> Vec<(u64, u64)> {
        self.bytes = 0;
        let mut below = std::mem::take(&mut self.ranges);
        let above = below.split_off(&head);
        above.into_iter().chain(below).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::WriteCache;

    #[test]
    fn ranges_join_with_those_they_touch_and_leave_in_one_sweep() {
        let mut cache = WriteCache::default();
        for (at, end) in [(0, 4), (8, 12), (20, 30), (4, 8), (25, 40), (50, 60), (41, 42)] {
            cache.insert(at, end);
        }
        assert_eq!(cache.bytes(), 12 + 20 + 10 + 1);
        assert!(
            cache.covers(2, 11) && cache.covers(20, 40) && !cache.covers(11, 13) && !cache.covers(45, 46)
        );
        assert_eq!(cache.take_sweep(22), [(41, 42), (50, 60), (0, 12), (20, 40)]);
        assert_eq!((cache.bytes(), cache.take_sweep(0).len()), (0, 0));
    }
}
