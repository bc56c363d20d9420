//! Rate of copies, and the estimated time until they are done.

use std::collections::VecDeque;

/// The rate is measured over so many milliseconds.
const WINDOW_MS: u64 = 30_000;
/// Time between two samples.
const STEP_MS: u64 = 500;
/// Fixed cost of a group, in bytes: its view changes twice.
const PER_GROUP_BYTES: u64 = 256 << 10;

/// Samples of the work that was done. Reads no clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct CopyProgress {
    copied_bytes: u64,
    groups: u64,
    /// Time; bytes and groups until then.
    samples: VecDeque<(u64, u64, u64)>,
}

impl CopyProgress {
    /// Counts copied bytes.
    pub(crate) fn copied(&mut self, bytes: u64) {
        self.copied_bytes = self.copied_bytes.saturating_add(bytes);
    }

    /// Drops the samples, since the clock that measured them has moved.
    pub(crate) fn restart(&mut self) {
        self.samples.clear();
    }

    /// Counts a group that got its copy.
    pub(crate) fn finished(&mut self) {
        self.groups += 1;
    }

    /// Takes a sample when one is due; drops all samples while no copy is due.
    pub(crate) fn tick(&mut self, now_ms: u64, is_busy: bool) {
        if !is_busy {
            self.samples.clear();
            return;
        }
        let is_due = self.samples.back().is_none_or(|(at_ms, ..)| now_ms >= at_ms + STEP_MS);
        if is_due {
            self.samples.push_back((now_ms, self.copied_bytes, self.groups));
        }
        while self.samples.front().is_some_and(|(at_ms, ..)| at_ms + WINDOW_MS < now_ms) {
            self.samples.pop_front();
        }
    }

    /// Milliseconds, bytes and groups between the first and the last sample.
    fn measured(&self) -> Option<(u64, u64, u64)> {
        let (first, last) = (self.samples.front()?, self.samples.back()?);
        let passed_ms = last.0 - first.0;
        (passed_ms > 0).then_some((passed_ms, last.1 - first.1, last.2 - first.2))
    }

    /// Bytes copied per second.
    pub(crate) fn bytes_per_s(&self) -> Option<u64> {
        let (passed_ms, bytes, _) = self.measured()?;
        Some((u128::from(bytes) * 1000 / u128::from(passed_ms)) as u64)
    }

    /// Seconds for the remaining work; `None`: no work was done yet.
    pub(crate) fn seconds_for(&self, bytes: u64, groups: usize) -> Option<u64> {
        if groups == 0 {
            return Some(0);
        }
        let work =
            |bytes: u64, groups: u64| u128::from(bytes) + u128::from(groups) * u128::from(PER_GROUP_BYTES);
        let (passed_ms, done_bytes, done_groups) = self.measured()?;
        let done = work(done_bytes, done_groups);
        let left = work(bytes, groups as u64);
        let seconds = (left * u128::from(passed_ms)).div_ceil((done * 1000).max(1));
        (done > 0).then(|| u64::try_from(seconds).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_estimated_by_the_work_of_the_last_half_minute() {
        let mut progress = CopyProgress::default();
        assert_eq!((progress.seconds_for(1, 1), progress.seconds_for(0, 0)), (None, Some(0)));
        for second in 0..100 {
            progress.tick(second * 1000, true);
            // Slow at first, then 10 MB/s.
            progress.copied(if second < 50 { 1 } else { 10_000_000 });
        }
        assert_eq!(progress.bytes_per_s(), Some(10_000_000));
        assert_eq!(progress.seconds_for(100_000_000 - PER_GROUP_BYTES, 1), Some(10));
        progress.tick(200_000, false);
        assert_eq!(progress.bytes_per_s(), None);
    }

    #[test]
    fn groups_without_bytes_take_their_time_too() {
        let mut progress = CopyProgress::default();
        for second in 0..10 {
            progress.tick(second * 1000, true);
            progress.finished();
        }
        assert_eq!(progress.seconds_for(0, 20), Some(20));
    }
}
