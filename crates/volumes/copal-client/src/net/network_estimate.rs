//! Estimate of the network: round-trip time and sending speed of this client.
//!
//! The round-trip time is that of opening a connection. The speed is measured while bytes are being sent, over
//! all connections together, since they share the uplink. Both determine which bodies are sent as chains.
//!
//! Paper: beanfs §3.4.4 (the kind of call is chosen by the size of the payload; here by the measured network,
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

/// Bytes of one measurement of speed: fewer only fill buffers.
const MEASURED_BYTES: u64 = 1 << 20;
/// Bounds of the size from which a body is sent as a chain.
const LEAST: u64 = 32 << 10;
const MOST: u64 = 1 << 20;

#[derive(Default)]
struct SpeedEstimate {
    /// Connections that are sending.
    senders: u32,
    since: Option<Instant>,
    bytes: u64,
    busy: Duration,
    bytes_per_s: Option<f64>,
    round_trip: Option<Duration>,
}

#[derive(Default)]
struct EstimateState {
    speed: Mutex<SpeedEstimate>,
    sent_bytes: AtomicU64,
}

/// See the module. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct NetworkEstimate {
    state: Arc<EstimateState>,
}

/// Measures one connection while it sends.
pub(crate) struct SendTimer(NetworkEstimate);

impl NetworkEstimate {
    /// Starts to measure a connection that begins to send.
    pub(crate) fn start_send(&self) -> SendTimer {
        self.state.speed.lock().begin(machine::now());
        SendTimer(self.clone())
    }

    pub(crate) fn note_round_trip(&self, took: Duration) {
        let mut speed = self.state.speed.lock();
        speed.round_trip = Some(speed.round_trip.map_or(took, |known| (known * 7 + took) / 8));
    }

    /// Bytes that this client has sent.
    pub(crate) fn sent_bytes(&self) -> u64 {
        self.state.sent_bytes.load(Ordering::Relaxed)
    }

    /// Size from which a body reaches `copies` replicas faster as a chain than from this client to each.
    pub(crate) fn chain_threshold(&self, copies: usize) -> u64 {
        let speed = self.state.speed.lock();
        match (speed.bytes_per_s, speed.round_trip) {
            (Some(bytes_per_s), Some(round_trip)) => chain_threshold(bytes_per_s, round_trip, copies),
            _ => MOST,
        }
    }
}

impl SendTimer {
    /// Ends the measurement after `bytes` were sent.
    pub(crate) fn end(self, bytes: usize) {
        let state = &self.0.state;
        state.sent_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        state.speed.lock().end(machine::now(), bytes as u64);
    }
}

impl SpeedEstimate {
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

/// From the client to each of n replicas, a body of S bytes takes n S/B. As a chain it takes S/B + (n - 1) (RTT +
/// part/B). Both are equal at S = B RTT + part.
fn chain_threshold(bytes_per_s: f64, round_trip: Duration, copies: usize) -> u64 {
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
    fn the_threshold_of_chains_follows_from_the_network() {
        let at =
            |megabits: f64, micros| chain_threshold(megabits * 1e6 / 8.0, Duration::from_micros(micros), 3);
        // 1 and 10 Gbit/s, round trips of 0.2 ms.
        assert!((84_000..92_000).contains(&at(1e3, 200)), "{}", at(1e3, 200));
        assert!((300_000..320_000).contains(&at(1e4, 200)), "{}", at(1e4, 200));
        // Fast with a long round trip, and very slow.
        assert_eq!(at(1e5, 100_000), MOST);
        assert!((LEAST..70_000).contains(&at(1.0, 1)));
        assert_eq!(chain_threshold(1e9, Duration::from_millis(1), 1), u64::MAX);
    }

    #[test]
    fn speed_is_measured_over_all_connections() {
        let (mut speed, start) = (SpeedEstimate::default(), Instant::now());
        speed.begin(start);
        speed.begin(start + Duration::from_millis(4));
        speed.end(start + Duration::from_millis(8), 1_000_000);
        assert_eq!(speed.bytes_per_s, None);
        speed.end(start + Duration::from_millis(16), 1_000_000);
        // 2 MB in 16 ms.
        assert_eq!(speed.bytes_per_s, Some(125e6));
        assert_eq!(NetworkEstimate::default().chain_threshold(3), MOST, "nothing was measured yet");
    }
}
