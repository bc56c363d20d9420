//! Latencies of single operations, recorded without an allocation per operation.
//!
//! Invariant: a quantile is at most 1/32 above the true one, also of the times of several threads.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Slots per power of two.
const STEPS: usize = 32;
const SLOTS: usize = STEPS * 40;

/// Counts of latencies in slots whose width grows with the value.
pub(crate) struct Latencies {
    slots: Vec<u64>,
    count: u64,
    max: u64,
}

/// Quantiles in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    pub(crate) max: f64,
}

impl Latencies {
    pub(crate) fn new() -> Latencies {
        Latencies { slots: vec![0; SLOTS], count: 0, max: 0 }
    }

    pub(crate) fn add(&mut self, time: Duration) {
        let nanos = time.as_nanos() as u64;
        self.slots[slot(nanos)] += 1;
        self.count += 1;
        self.max = self.max.max(nanos);
    }

    pub(crate) fn merge(&mut self, other: &Latencies) {
        for (mine, theirs) in self.slots.iter_mut().zip(&other.slots) {
            *mine += theirs;
        }
        self.count += other.count;
        self.max = self.max.max(other.max);
    }

    pub(crate) fn quantiles(&self) -> Quantiles {
        let at = |share: f64| {
            let wanted = ((self.count as f64 * share).ceil() as u64).max(1);
            let mut seen = 0;
            for (index, count) in self.slots.iter().enumerate() {
                seen += count;
                if seen >= wanted {
                    return upper(index).min(self.max) as f64 / 1000.0;
                }
            }
            0.0
        };
        Quantiles { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: self.max as f64 / 1000.0 }
    }
}

/// Values below `2 * STEPS` have slots of their own.
fn slot(nanos: u64) -> usize {
    let steps = STEPS as u64;
    if nanos < steps {
        return nanos as usize;
    }
    let shift = nanos.ilog2() - steps.ilog2();
    let index = (u64::from(shift) * steps + (nanos >> shift)) as usize;
    index.min(SLOTS - 1)
}

/// The largest value in the slot.
fn upper(slot: usize) -> u64 {
    let (slot, steps) = (slot as u64, STEPS as u64);
    if slot < 2 * steps {
        return slot;
    }
    let shift = slot / steps - 1;
    ((slot % steps + steps + 1) << shift) - 1
}

#[cfg(test)]
mod tests {
    use super::{Latencies, slot, upper};
    use std::time::Duration;

    #[test]
    fn every_value_lies_in_its_slot_and_slots_are_narrow() {
        for nanos in (0..5000).chain((1..35).map(|n| (1_u64 << n) + n)) {
            let top = upper(slot(nanos));
            assert!(top >= nanos, "{nanos} in a slot up to {top}");
            assert!(top <= nanos + nanos / 32 + 1, "{nanos} in a slot up to {top}");
            assert!(slot(top) == slot(nanos) && slot(top + 1) != slot(nanos), "{nanos}");
        }
    }

    #[test]
    fn quantiles_of_two_threads_are_those_of_all_their_times() {
        let (mut odd, mut even) = (Latencies::new(), Latencies::new());
        for micros in 1..=1000 {
            let into = if micros % 2 == 0 { &mut even } else { &mut odd };
            into.add(Duration::from_micros(micros));
        }
        odd.merge(&even);
        let quantiles = odd.quantiles();
        assert!((500.0..516.0).contains(&quantiles.p50), "{quantiles:?}");
        assert!((990.0..1022.0).contains(&quantiles.p99), "{quantiles:?}");
        assert!((quantiles.max - 1000.0).abs() < 1e-9, "{quantiles:?}");
    }

    #[test]
    fn no_time_at_all_is_zero() {
        assert!(Latencies::new().quantiles().p99.abs() < 1e-9);
    }
}
