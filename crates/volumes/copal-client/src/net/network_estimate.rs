//! What a client measures of its network: how long a round trip takes, and how fast bytes leave it.
//!
//! A round trip is what a connection takes to come about; speed is measured while anything is being sent,
//! over all connections together, since they share the way out. From both follows which bodies go from member
//! to member instead of from here to each.
//!
//! Paper: beanfs §3.4.4 (how to call is chosen by the size of the payload; here by what the network does,
//! too)

use crate::net::machine;
use copal_proto::CHAIN_PART_BYTES;
use parking_lot::Mutex;
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

/// Bytes that a measurement of speed takes: fewer say nothing, they lie in buffers.
const MEASURED_BYTES: u64 = 1 << 20;
/// Bodies from this size on go from member to member at the earliest, and at the latest.
const LEAST: u64 = 32 << 10;
const MOST: u64 = 1 << 20;

#[derive(Default)]
struct Speed {
    /// Connections that are sending.
    senders: u32,
    since: Option<Instant>,
    bytes: u64,
    busy: Duration,
    bytes_per_s: Option<f64>,
    round_trip: Option<Duration>,
}

#[derive(Default)]
struct Shared {
    speed: Mutex<Speed>,
    sent_bytes: AtomicU64,
}

/// See the module. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Link {
    shared: Arc<Shared>,
}

/// A connection that sends.
pub(crate) struct Sending(Link);

impl Link {
    /// A connection begins to send.
    pub(crate) fn begin(&self) -> Sending {
        self.shared.speed.lock().begin(machine::now());
        Sending(self.clone())
    }

    pub(crate) fn note_round_trip(&self, took: Duration) {
        let mut speed = self.shared.speed.lock();
        speed.round_trip = Some(speed.round_trip.map_or(took, |known| (known * 7 + took) / 8));
    }

    /// Bytes that were sent.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.shared.sent_bytes.load(Ordering::Relaxed)
    }

    /// From how many bytes on a body takes less time from member to member than from here to each of
    /// `copies`.
    pub(crate) fn chain_from(&self, copies: usize) -> u64 {
        let speed = self.shared.speed.lock();
        match (speed.bytes_per_s, speed.round_trip) {
            (Some(bytes_per_s), Some(round_trip)) => chain_from(bytes_per_s, round_trip, copies),
            _ => MOST,
        }
    }
}

impl Sending {
    /// It has sent so many bytes.
    pub(crate) fn end(self, bytes: usize) {
        let shared = &self.0.shared;
        shared.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        shared.speed.lock().end(machine::now(), bytes as u64);
    }
}

impl Speed {
    fn begin(&mut self, now: Instant) {
        if self.senders == 0 {
            self.since = Some(now);
        }
        self.senders += 1;
    }

    fn end(&mut self, now: Instant, bytes: u64) {
        self.bytes += bytes;
        self.senders = self.senders.saturating_sub(1);
        if self.senders > 0 {
            return;
        }
        if let Some(since) = self.since.take() {
            self.busy += now.saturating_duration_since(since);
        }
        if self.bytes >= MEASURED_BYTES && !self.busy.is_zero() {
            let measured = self.bytes as f64 / self.busy.as_secs_f64();
            let mixed = |known: f64| (known * 3.0 + measured) / 4.0;
            self.bytes_per_s = Some(self.bytes_per_s.map_or(measured, mixed));
            (self.bytes, self.busy) = (0, Duration::ZERO);
        }
    }
}

/// From here to each of n members a body of S bytes takes n S/B; from member to member S/B and (n - 1) (RTT +
/// part/B): equal at S = B RTT + part.
fn chain_from(bytes_per_s: f64, round_trip: Duration, copies: usize) -> u64 {
    if copies < 2 {
        return u64::MAX;
    }
    let equal = bytes_per_s * round_trip.as_secs_f64() + CHAIN_PART_BYTES as f64;
    (equal as u64).clamp(LEAST, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_from_which_a_chain_pays_follows_from_the_network() {
        let at = |megabits: f64, micros| chain_from(megabits * 1e6 / 8.0, Duration::from_micros(micros), 3);
        // 1 and 10 Gbit/s, round trips of 0.2 ms.
        assert!((84_000..92_000).contains(&at(1e3, 200)), "{}", at(1e3, 200));
        assert!((300_000..320_000).contains(&at(1e4, 200)), "{}", at(1e4, 200));
        // A long fat pipe, and none at all.
        assert_eq!(at(1e5, 100_000), MOST);
        assert!((LEAST..70_000).contains(&at(1.0, 1)));
        assert_eq!(chain_from(1e9, Duration::from_millis(1), 1), u64::MAX);
    }

    #[test]
    fn speed_is_that_of_all_connections_together() {
        let (mut speed, start) = (Speed::default(), Instant::now());
        speed.begin(start);
        speed.begin(start + Duration::from_millis(4));
        speed.end(start + Duration::from_millis(8), 1_000_000);
        assert_eq!(speed.bytes_per_s, None);
        speed.end(start + Duration::from_millis(16), 1_000_000);
        // 2 MB in 16 ms.
        assert_eq!(speed.bytes_per_s, Some(125e6));
        assert_eq!(Link::default().chain_from(3), MOST, "nothing is known yet");
    }
}
