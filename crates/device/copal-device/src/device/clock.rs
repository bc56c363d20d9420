//! `DeviceClock`: the clock by which a device's times are measured.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Clock of a device: the wall clock, or the virtual time of a model.
#[derive(Clone)]
pub struct DeviceClock(ClockSource);

#[derive(Clone)]
enum ClockSource {
    Wall,
    Virtual(std::sync::Arc<dyn VirtualClock>),
}

/// Virtual time of a model of a disk.
pub trait VirtualClock: Send + Sync {
    /// Time since the model was made.
    fn now(&self) -> Duration;
}

impl DeviceClock {
    /// The wall clock.
    #[must_use]
    pub fn wall() -> DeviceClock {
        DeviceClock(ClockSource::Wall)
    }

    /// The clock of a model.
    #[must_use]
    pub fn of_model(clock: std::sync::Arc<dyn VirtualClock>) -> DeviceClock {
        DeviceClock(ClockSource::Virtual(clock))
    }

    /// Time since an arbitrary moment before the first call.
    #[must_use]
    pub fn now(&self) -> Duration {
        static BEGIN: OnceLock<Instant> = OnceLock::new();
        match &self.0 {
            ClockSource::Wall => BEGIN.get_or_init(Instant::now).elapsed(),
            ClockSource::Virtual(clock) => clock.now(),
        }
    }

    /// Time since `begin`, which this clock has shown before.
    #[must_use]
    pub fn since(&self, begin: Duration) -> Duration {
        self.now().saturating_sub(begin)
    }

    /// Whether the time is that of a model, which no other work on the machine changes.
    #[must_use]
    pub fn is_virtual(&self) -> bool {
        matches!(self.0, ClockSource::Virtual(_))
    }
}

impl std::fmt::Debug for DeviceClock {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "DeviceClock({:?}, virtual: {})", self.now(), self.is_virtual())
    }
}
