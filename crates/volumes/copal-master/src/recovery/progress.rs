//! How fast copies get on, and when they will be done.

use std::collections::VecDeque;

/// The rate is that of the last so many milliseconds.
const WINDOW_MS: u64 = 30_000;
/// Between two samples.
const STEP_MS: u64 = 500;
/// A group takes as long as so many bytes more than it has: its view changes twice.
const PER_GROUP_BYTES: u64 = 256 << 10;

/// Work that was done, and when. Nothing here reads a clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    copied_bytes: u64,
    groups: u64,
    /// When; bytes and groups until then.
    samples: VecDeque<(u64, u64, u64)>,
}

impl Progress {
    /// Bytes were copied.
    pub(crate) fn copied(&mut self, bytes: u64) {
        self.copied_bytes = self.copied_bytes.saturating_add(bytes);
    }

    /// The clock has moved: what was measured by it says nothing.
    pub(crate) fn restart(&mut self) {
        self.samples.clear();
    }

    /// A group got its copy.
    pub(crate) fn finished(&mut self) {
        self.groups += 1;
    }

    /// Lets time pass; while nothing is to do nothing is measured.
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

    /// Milliseconds, bytes and groups between the first sample and the last.
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

    /// Seconds for what is left; `None`: nothing has got on yet.
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
    fn the_end_is_told_by_what_was_done_in_the_last_half_minute() {
        let mut progress = Progress::default();
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
        let mut progress = Progress::default();
        for second in 0..10 {
            progress.tick(second * 1000, true);
            progress.finished();
        }
        assert_eq!(progress.seconds_for(0, 20), Some(20));
    }
}
