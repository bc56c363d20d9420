//! Free file numbers, as ranges.
//!
//! Invariants
//! - There are as many ranges as gaps between used numbers, regardless of the largest number.
//!
//! Not here: when a number may be reused (`space`).

use std::collections::BTreeMap;

/// Free numbers, as ranges.
#[derive(Clone, Debug)]
pub(super) struct FileNumbers {
    /// First number of a range, and the number behind its end.
    ranges: BTreeMap<u32, u32>,
    count: u32,
}

impl FileNumbers {
    /// All numbers from 1 below `end`: 0 is the file `store`.
    pub(super) fn below(end: u32) -> FileNumbers {
        FileNumbers { ranges: BTreeMap::from([(1, end)]), count: end - 1 }
    }

    /// Number of free numbers.
    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// Takes the smallest number.
    pub(super) fn take_first(&mut self) -> Option<u32> {
        let (first, end) = self.ranges.pop_first()?;
        if first + 1 < end {
            self.ranges.insert(first + 1, end);
        }
        self.count -= 1;
        Some(first)
    }

    /// Takes `number`, if it is free.
    pub(super) fn take(&mut self, number: u32) {
        let Some((&first, &end)) = self.ranges.range(..=number).next_back() else {
            return;
        };
        if number >= end {
            return;
        }
        self.ranges.remove(&first);
        if first < number {
            self.ranges.insert(first, number);
        }
        if number + 1 < end {
            self.ranges.insert(number + 1, end);
        }
        self.count -= 1;
    }

    /// Returns `number`, which was taken.
    pub(super) fn give_back(&mut self, number: u32) {
        let mut range = (number, number + 1);
        if let Some((&first, &end)) = self.ranges.range(..number).next_back()
            && end == number
        {
            range.0 = first;
        }
        if let Some(end) = self.ranges.remove(&range.1) {
            range.1 = end;
        }
        self.ranges.insert(range.0, range.1);
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_number_is_free_or_taken() {
        let mut numbers = FileNumbers::below(40);
        let mut model: BTreeSet<u32> = (1..40).collect();
        let mut random = copal_testkit::Random::new(11);
        for _ in 0..20_000 {
            let number = 1 + random.below(39) as u32;
            match random.below(3) {
                0 => assert_eq!(numbers.take_first(), model.pop_first()),
                1 => {
                    numbers.take(number);
                    model.remove(&number);
                }
                _ if model.insert(number) => numbers.give_back(number),
                _ => {}
            }
            assert_eq!(numbers.count() as usize, model.len());
            let ranges = numbers.ranges.iter().flat_map(|(&first, &end)| first..end);
            assert!(ranges.eq(model.iter().copied()));
            let ends: Vec<u32> = numbers.ranges.values().copied().collect();
            assert!(ends.iter().all(|end| !numbers.ranges.contains_key(end)), "ranges are joined");
        }
    }
}
