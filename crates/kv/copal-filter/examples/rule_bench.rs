//! Prints the cost of the rules: time per Get for sampling and deciding, by number of partitions.
//!
//! `cargo run --release -p copal-filter --example rule_bench`
//!
//! A Get misses in six runs, so it has six probes; the rule steps every 64 Gets. Its lists make the cost
//! independent of the number of partitions, except for cache misses.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a stopwatch that prints is its purpose"
)]

use copal_filter::{
    KEYS_PER_PARTITION, Kind,
    rules::{BYTES_PER_PARTITION, Heat, Outcome, PartitionId, Probe, RuleKind, Shape},
};
use copal_testkit::Random;
use std::time::Instant;

const RUNS: [u64; 6] = [1, 1, 1, 9, 90, 900];
const GETS: u64 = 64;

/// Median nanoseconds per Get, changes per Get.
fn measure(kind: RuleKind, scale: u64) -> (f64, f64) {
    let mut rule = kind.build();
    let mut first = Vec::new();
    let mut partitions = 0u32;
    for (level, run) in RUNS.iter().enumerate() {
        first.push((partitions, run * scale));
        for _ in 0..run * scale {
            let units = Kind::Ribbon.units();
            let unit_bytes = Kind::Ribbon.unit_bytes(KEYS_PER_PARTITION);
            let shape =
                Shape { kind: Kind::Ribbon, keys: KEYS_PER_PARTITION, unit_bytes, units, level: level as u8 };
            rule.add(PartitionId(partitions), shape, Heat(0.0), 0, 0);
            partitions += 1;
        }
    }
    let budget = u64::from(partitions) * u64::from(KEYS_PER_PARTITION) / 2;
    let (mut times, mut changes, mut now) = (Vec::new(), 0, 0);
    for batch in 0..20_000u64 {
        let mut probes = Vec::new();
        for get in 0..GETS {
            // A third of the Gets go to one key in a thousand.
            let random = Random::new(batch * GETS + get).next_u64();
            let key = if random.is_multiple_of(3) {
                Random::new(random >> 32).below(1000) * 1_000_003
            } else {
                random
            };
            let place =
                |&(first, count): &(u32, u64)| PartitionId(first + (Random::new(key).below(count)) as u32);
            probes.extend(
                first.iter().map(place).map(|partition| Probe { partition, outcome: Outcome::Negative }),
            );
        }
        now += GETS;
        let started = Instant::now();
        rule.observe(&probes, now);
        let step = rule.step(budget, now);
        times.push(started.elapsed().as_nanos() as f64 / GETS as f64);
        changes += step.len();
    }
    times.sort_by(f64::total_cmp);
    (times[times.len() / 2], changes as f64 / now as f64)
}

fn main() {
    println!("at most {BYTES_PER_PARTITION} bytes of memory per partition");
    for scale in [1, 10, 100] {
        let partitions = RUNS.iter().sum::<u64>() * scale;
        for kind in RuleKind::ALL {
            let (ns, changes) = measure(kind, scale);
            println!(
                "{partitions:7} partitions, {kind:8}: {ns:7.1} ns per Get, {changes:.4} changes per Get"
            );
        }
    }
}
