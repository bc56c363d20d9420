//! Trust in the figures: drift of a repeated load, and processors that are busy with other work.

use std::time::{Duration, Instant};

/// Trust in the figures of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProbeConfidence {
    /// The device or the machine changed: probe again on an idle machine.
    Low,
    /// Figures differ by up to twice between two moments.
    Medium,
    /// Figures agree.
    High,
}

impl ProbeConfidence {
    /// Its name in profiles.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ProbeConfidence::Low => "low",
            ProbeConfidence::Medium => "medium",
            ProbeConfidence::High => "high",
        }
    }
}

/// Largest quotient of the reference times of two moments, and of the wall time and processor time of a
/// computation.
const HIGH_DRIFT: f64 = 1.5;
const MEDIUM_DRIFT: f64 = 2.5;
const HIGH_SHARE: f64 = 1.15;
const MEDIUM_SHARE: f64 = 1.4;
/// Processor time of one look at the machine.
const LOOK_TIME: Duration = Duration::from_millis(8);

/// Observations between the steps of a probe.
#[derive(Debug, Default)]
pub(super) struct ConfidenceWatch {
    /// Time of the reference load at each moment.
    references: Vec<f64>,
    /// Wall time and processor time of all looks together.
    looks: (Duration, Duration),
}

impl ConfidenceWatch {
    pub(super) fn note_reference(&mut self, time: Duration) {
        self.references.push(time.as_secs_f64());
    }

    /// Computes for a moment, and notes how long a processor was not to be had.
    pub(super) fn look_at_machine(&mut self) {
        let (wall, before) = (Instant::now(), thread_time());
        while thread_time().saturating_sub(before) < LOOK_TIME && wall.elapsed() < 10 * LOOK_TIME {
            std::hint::spin_loop();
        }
        self.looks.0 += wall.elapsed();
        self.looks.1 += thread_time().saturating_sub(before);
    }

    /// The largest reference time by the smallest.
    fn drift(&self) -> f64 {
        let least = self.references.iter().copied().fold(f64::INFINITY, f64::min);
        let most = self.references.iter().copied().fold(0.0, f64::max);
        if least > 0.0 && least.is_finite() { most / least } else { 1.0 }
    }

    fn processor_share(&self) -> f64 {
        match self.looks.1.is_zero() {
            true => 1.0,
            false => self.looks.0.as_secs_f64() / self.looks.1.as_secs_f64(),
        }
    }

    pub(super) fn confidence(&self) -> ProbeConfidence {
        let (drift, share) = (self.drift(), self.processor_share());
        if drift <= HIGH_DRIFT && share <= HIGH_SHARE {
            ProbeConfidence::High
        } else if drift <= MEDIUM_DRIFT && share <= MEDIUM_SHARE {
            ProbeConfidence::Medium
        } else {
            ProbeConfidence::Low
        }
    }
}

/// Processor time of this thread.
fn thread_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_and_busy_processors_lower_the_confidence() {
        let of = |references: &[u64], wall: u64| {
            let references = references.iter().map(|time| *time as f64).collect();
            let looks = (Duration::from_millis(wall), Duration::from_millis(100));
            ConfidenceWatch { references, looks }.confidence()
        };
        assert_eq!(of(&[10, 12, 14], 110), ProbeConfidence::High);
        assert_eq!(of(&[10, 12, 18], 110), ProbeConfidence::Medium);
        assert_eq!(of(&[10, 12, 14], 130), ProbeConfidence::Medium);
        assert_eq!(of(&[10, 12, 40], 110), ProbeConfidence::Low);
        assert_eq!(of(&[10, 12, 14], 200), ProbeConfidence::Low);
        assert_eq!(ConfidenceWatch::default().confidence(), ProbeConfidence::High);
    }
}
