//! Sampling of probes: each thread fills a ring of its own and hands it over when it is full.
//!
//! Invariants
//! - A probe costs its thread one write to thread-local memory; one probe in 64 hands the full ring over.
//! - If the queue of full rings has no room, a ring is dropped instead of waiting. Dropped probes are
//!   counted.
//!
//! Not here: the use of the probes (`adjust`).

use super::slot::PartitionNumber;
use copal_filter::rules::{Outcome, PartitionId, Probe};
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use std::{
    cell::RefCell,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

/// Probes in a ring.
pub(crate) const RING: usize = 64;
/// Most full rings in the queue: 64 KiB.
const WAITING: usize = 256;
/// Full rings at which it pays to wake the adjuster.
const WORTH_WAKING: usize = 16;

/// Probes of one thread, oldest first: number of the partition and outcome, packed.
struct SampleRing {
    probes: [u32; RING],
    len: usize,
    /// Gets of all stores when the ring was handed over.
    at: u64,
}

const OUTCOME_BITS: u32 = 2;
/// Limit of partition numbers (exclusive).
pub(crate) const MOST_PARTITIONS: u32 = 1 << (32 - OUTCOME_BITS);

fn pack(partition: PartitionNumber, outcome: Outcome) -> u32 {
    let code = match outcome {
        Outcome::Negative => 0,
        Outcome::FalsePositive => 1,
        Outcome::Hit => 2,
    };
    partition.0 << OUTCOME_BITS | code
}

fn unpack(packed: u32) -> Probe {
    let outcome = match packed & ((1 << OUTCOME_BITS) - 1) {
        0 => Outcome::Negative,
        1 => Outcome::FalsePositive,
        _ => Outcome::Hit,
    };
    Probe { partition: PartitionId(packed >> OUTCOME_BITS), outcome }
}

/// Probes of one ring.
pub(crate) struct ProbeSample {
    pub(crate) probes: Vec<Probe>,
    /// Gets of all stores when the last of them was sampled. A rule that lets partitions expire needs it:
    /// many rings may queue, so the time of the drain is too late.
    pub(crate) at: u64,
}

/// Collects the threads' rings for one filter memory.
pub(crate) struct ProbeSampler {
    /// Distinguishes the samplers of a process; never reused.
    id: u64,
    full: Sender<Box<SampleRing>>,
    drain: Receiver<Box<SampleRing>>,
    dropped: Arc<AtomicU64>,
}

/// A thread's ring for one sampler.
struct Mine {
    sampler: u64,
    full: Sender<Box<SampleRing>>,
    /// Without references once the sampler was dropped.
    dropped: Weak<AtomicU64>,
    ring: Box<SampleRing>,
}

thread_local!(static RINGS: RefCell<Vec<Mine>> = const { RefCell::new(Vec::new()) });

fn empty() -> Box<SampleRing> {
    Box::new(SampleRing { probes: [0; RING], len: 0, at: 0 })
}

impl ProbeSampler {
    pub(crate) fn new() -> ProbeSampler {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (full, drain) = bounded(WAITING);
        ProbeSampler { id: NEXT.fetch_add(1, Ordering::Relaxed), full, drain, dropped: Arc::default() }
    }

    /// Samples a probe; `true`: a drain is due. Calls `now` only when the ring is full. Never blocks.
    pub(crate) fn note(
        &self,
        partition: PartitionNumber,
        outcome: Outcome,
        now: impl FnOnce() -> u64,
    ) -> bool {
        RINGS.with_borrow_mut(|rings| {
            let at = match rings.iter().position(|mine| mine.sampler == self.id) {
                Some(at) => at,
                None => self.join(rings),
            };
            let ring = &mut rings[at].ring;
            ring.probes[ring.len] = pack(partition, outcome);
            ring.len += 1;
            ring.len == RING && hand_over(&mut rings[at], now())
        })
    }

    /// Adds a ring for the calling thread; removes rings of dropped samplers.
    fn join(&self, rings: &mut Vec<Mine>) -> usize {
        rings.retain(|mine| mine.dropped.strong_count() > 0);
        rings.push(Mine {
            sampler: self.id,
            full: self.full.clone(),
            dropped: Arc::downgrade(&self.dropped),
            ring: empty(),
        });
        rings.len() - 1
    }

    /// Hands the calling thread's ring over, full or not.
    pub(crate) fn hand_over_mine(&self, now: u64) {
        RINGS.with_borrow_mut(|rings| {
            if let Some(mine) = rings.iter_mut().find(|mine| mine.sampler == self.id) {
                hand_over(mine, now);
            }
        });
    }

    /// The rings handed over so far, oldest first.
    pub(crate) fn drain(&self) -> Vec<ProbeSample> {
        let rings = self.drain.try_iter().take(WAITING);
        rings
            .map(|ring| ProbeSample {
                probes: ring.probes[..ring.len].iter().copied().map(unpack).collect(),
                at: ring.at,
            })
            .collect()
    }

    /// Number of dropped probes.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

fn hand_over(mine: &mut Mine, now: u64) -> bool {
    let mut ring = std::mem::replace(&mut mine.ring, empty());
    ring.at = now;
    let len = ring.len as u64;
    match mine.full.try_send(ring) {
        Ok(()) => mine.full.len() >= WORTH_WAKING,
        Err(TrySendError::Full(ring) | TrySendError::Disconnected(ring)) => {
            if let Some(dropped) = mine.dropped.upgrade() {
                dropped.fetch_add(len, Ordering::Relaxed);
            }
            mine.ring = ring;
            mine.ring.len = 0;
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_of_all_threads_arrive_in_the_order_of_each() {
        let sampler = ProbeSampler::new();
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                let sampler = &sampler;
                scope.spawn(move || {
                    for i in 0..1000u32 {
                        let outcome =
                            [Outcome::Negative, Outcome::FalsePositive, Outcome::Hit][i as usize % 3];
                        sampler.note(PartitionNumber(thread * 10_000 + i), outcome, || u64::from(i));
                    }
                    sampler.hand_over_mine(1000);
                });
            }
        });
        let rings = sampler.drain();
        for ring in &rings {
            // Each ring carries the time at which it was full, or handed over.
            let last = ring.probes.last().unwrap().partition.0 % 10_000;
            let at = if last == 999 { 1000 } else { last };
            assert_eq!(ring.at, u64::from(at));
        }
        let probes: Vec<Probe> = rings.into_iter().flat_map(|ring| ring.probes).collect();
        assert_eq!((probes.len(), sampler.dropped()), (4000, 0));
        for thread in 0..4u32 {
            let of_thread = probes.iter().filter(|probe| probe.partition.0 / 10_000 == thread);
            let numbers: Vec<_> = of_thread.clone().map(|probe| probe.partition.0 % 10_000).collect();
            assert!(numbers.iter().copied().eq(0..1000));
            for probe in of_thread {
                let outcome = [Outcome::Negative, Outcome::FalsePositive, Outcome::Hit];
                assert_eq!(probe.outcome, outcome[probe.partition.0 as usize % 10_000 % 3]);
            }
        }
        assert!(sampler.drain().is_empty());
    }

    #[test]
    fn a_full_queue_drops_rings_and_blocks_no_reader() {
        let sampler = ProbeSampler::new();
        let probes = (WAITING + 10) * RING;
        for i in 0..probes {
            sampler.note(PartitionNumber(i as u32), Outcome::Negative, || 0);
        }
        assert_eq!(sampler.dropped(), (10 * RING) as u64);
        let kept: Vec<Probe> = sampler.drain().into_iter().flat_map(|ring| ring.probes).collect();
        assert_eq!(kept.len(), WAITING * RING);
        assert_eq!(kept[kept.len() - 1].partition.0, (WAITING * RING - 1) as u32);
        // The queue has room again.
        sampler.note(PartitionNumber(7), Outcome::Hit, || 0);
        sampler.hand_over_mine(0);
        assert_eq!(sampler.drain()[0].probes.len(), 1);
    }

    #[test]
    fn a_thread_keeps_no_ring_of_a_sampler_that_is_gone() {
        let first = ProbeSampler::new();
        first.note(PartitionNumber(1), Outcome::Hit, || 0);
        drop(first);
        let second = ProbeSampler::new();
        second.note(PartitionNumber(2), Outcome::Hit, || 0);
        second.hand_over_mine(0);
        assert_eq!(second.drain()[0].probes[0].partition, PartitionId(2));
        RINGS.with_borrow(|rings| assert!(rings.iter().all(|mine| mine.dropped.strong_count() > 0)));
    }
}
