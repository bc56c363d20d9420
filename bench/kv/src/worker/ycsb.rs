//! YCSB's core workloads A to F, zipf .99 over the loaded keys.
//!
//! A half reads, half updates; B 95 % reads; C reads; D 95 % reads of recently written keys, 5 % inserts; E
//! 95 % short scans, 5 % inserts; F half reads, half read-modify-writes. No look-up misses.

use super::{Done, Limit, on_threads};
use crate::{
    engine::Engine,
    keys::{Random, Ranks, Skew, fill_value, key, scattered},
    protocol::Request,
};
use anyhow::{Result, bail};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

const SKEW: Skew = Skew::Zipf(0.99);
const LONGEST_SCAN: u64 = 100;

/// Shares in percent; the rest are read-modify-writes.
#[derive(Debug, PartialEq, Eq)]
struct Mix {
    reads: u64,
    updates: u64,
    inserts: u64,
    scans: u64,
}

impl Mix {
    fn of(workload: char) -> Option<Mix> {
        let (reads, updates, inserts, scans) = match workload {
            'A' => (50, 50, 0, 0),
            'B' => (95, 5, 0, 0),
            'C' => (100, 0, 0, 0),
            'D' => (95, 0, 5, 0),
            'E' => (0, 0, 5, 95),
            'F' => (50, 0, 0, 0),
            _ => return None,
        };
        Some(Mix { reads, updates, inserts, scans })
    }
}

pub(super) fn perform(engine: &dyn Engine, request: &Request) -> Result<Done> {
    let Request::Ycsb { workload, safety, keys, value_bytes, seconds, threads, seed } = *request else {
        bail!("not a workload of YCSB: {request:?}");
    };
    let Some(mix) = Mix::of(workload) else {
        bail!("YCSB has no workload {workload}");
    };
    let ranks = Ranks::new(SKEW, keys);
    // Inserts of this call get the ids from here on: later calls begin beyond those of all earlier ones.
    let base = keys.saturating_mul(2 + seed);
    let inserted = AtomicU64::new(0);
    on_threads(threads, |thread| {
        let mut random = Random::new(seed.wrapping_mul(0x1000).wrapping_add(thread));
        let mut value = vec![0; value_bytes];
        let limit = Limit::new(seconds, 0);
        let mut done = Done::new();
        let mut now = Instant::now();
        while !limit.reached(done.ops, now) {
            let rank = ranks.draw(&mut random);
            let dice = random.below(100);
            let mut wrote = false;
            let latest = |rank: u64| {
                let new = inserted.load(Ordering::Acquire);
                // The newest id has rank 0; beyond the inserts come the loaded ids, last first.
                if rank < new { base + new - 1 - rank } else { keys - 1 - (rank - new) % keys }
            };
            if dice < mix.reads {
                let id = if workload == 'D' { latest(rank) } else { scattered(rank, keys) };
                let found = engine.get(&key(id))?;
                // An insert is visible after its call returned; another thread's may still be running.
                if found.is_none() && id < keys {
                    bail!("id {id} was lost");
                }
                done.found += u64::from(found.is_some());
            } else if dice < mix.reads + mix.scans {
                let entries = 1 + random.below(LONGEST_SCAN);
                done.found += engine.scan(&key(scattered(rank, keys)), entries as usize)? as u64;
            } else {
                wrote = true;
                let id = if dice < mix.reads + mix.scans + mix.inserts {
                    base + inserted.fetch_add(1, Ordering::AcqRel)
                } else {
                    scattered(rank, keys)
                };
                if dice >= mix.reads + mix.scans + mix.inserts + mix.updates {
                    done.found += u64::from(engine.get(&key(id))?.is_some());
                }
                fill_value(random.next(), &mut value);
                engine.put(&key(id), &value, safety)?;
            }
            let end = Instant::now();
            let time = end - now;
            if wrote {
                done.write_latencies.add(time);
            } else {
                done.latencies.add(time);
            }
            now = end;
            done.ops += 1;
        }
        Ok(done)
    })
}

#[cfg(test)]
mod tests {
    use super::Mix;

    #[test]
    fn every_workload_has_its_mix_and_others_have_none() {
        for workload in 'A'..='F' {
            let mix = Mix::of(workload).expect("a workload of YCSB");
            assert!(mix.reads + mix.updates + mix.inserts + mix.scans <= 100, "{workload}: {mix:?}");
        }
        assert_eq!(Mix::of('G'), None);
    }
}
