//! Prints what filters cost and how well they filter: build and probe time, bits per key, false positives.
//!
//! `cargo run --release -p copal-filter --example filter_bench [partitions]`
//! Targets: Ribbon build at most 100 ns per key for all 15 columns, probe at most 60 ns cold, no false negative in
//! 10^8 keys (with 50,000 partitions and 400 MB), columns within 3 sigma of 2^-k, 1.013 bits per key and column.
//! Bloom units promise their rate for full partitions in the limit of many bits; sigmas say little of them.
#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a stopwatch that prints is its purpose"
)]

use copal_filter::{FilterPage, Fit, KeyHash, Kind, PartitionFilterBuilder, Units};
use std::{hint::black_box, time::Instant};

const SEED: u64 = 7;

struct Partition {
    keys: std::ops::Range<u64>,
    page: FilterPage,
}

fn hash(i: u64) -> KeyHash {
    KeyHash::new(&i.to_le_bytes(), SEED)
}

/// Times are medians over many short slices, because machines have other things to do.
fn median(mut ns: Vec<f64>) -> f64 {
    ns.sort_by(f64::total_cmp);
    ns.get(ns.len() / 2).copied().unwrap_or_default()
}

fn build(kind: Kind, count: u64) -> (Vec<Partition>, f64) {
    let mut builder = PartitionFilterBuilder::new(kind, SEED);
    let (mut partitions, mut times) = (Vec::new(), Vec::new());
    let (mut from, mut i) = (0, 0);
    let mut started = Instant::now();
    while (partitions.len() as u64) < count {
        if builder.add(hash(i)) == Fit::Full {
            let page = builder.finish(from).expect("ordinary keys fill a partition");
            times.push(started.elapsed().as_nanos() as f64 / (i - from) as f64);
            partitions.push(Partition { keys: from..i, page });
            from = i;
            started = Instant::now();
            builder.add(hash(i));
        }
        i += 1;
    }
    (partitions, median(times))
}

/// Median time of `one` in slices of a few thousand.
fn time(mut one: impl FnMut(u64) -> bool) -> f64 {
    const SLICES: u64 = 500;
    const PROBES: u64 = 8192;
    let mut times = Vec::new();
    for slice in 0..SLICES {
        let started = Instant::now();
        for i in slice * PROBES..(slice + 1) * PROBES {
            black_box(one(i));
        }
        times.push(started.elapsed().as_nanos() as f64 / PROBES as f64);
    }
    median(times)
}

fn load(partitions: &[Partition], units: u8) -> Vec<Units> {
    let load = |p: &Partition| FilterPage::load(p.page.as_bytes(), units, p.keys.start, SEED);
    partitions
        .iter()
        .map(|p| load(p).expect("freshly built pages are whole"))
        .collect()
}

fn main() {
    let count = std::env::args()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .unwrap_or(2000);
    for kind in [Kind::Ribbon, Kind::Bloom, Kind::OneProbe] {
        let (partitions, build_ns) = build(kind, count);
        let keys = partitions.last().map_or(0, |p| p.keys.end);
        let unit_bits = partitions
            .iter()
            .map(|p| (p.page.as_bytes().len() - 256) as f64 * 8.0)
            .sum::<f64>()
            / f64::from(kind.units());
        println!(
            "{kind:?}: {count} partitions, {keys} keys, {:.4} bits per key and unit, build {build_ns:.1} ns/key \
             for all {} units, hash included",
            unit_bits / keys as f64,
            kind.units()
        );
        let most = kind.units().min(8);
        for units in 1..=most {
            probe(kind, &partitions, units);
        }
        println!(
            "  {} false negatives among {keys} keys under {most} units",
            false_negatives(&partitions, most)
        );
    }
}

/// Keys that their own partition denies. Whatever fewer units say, all of them say too.
fn false_negatives(partitions: &[Partition], units: u8) -> usize {
    let denied =
        |(p, filter): (&Partition, &Units)| p.keys.clone().filter(|&i| !filter.may_contain(hash(i))).count();
    partitions.iter().zip(&load(partitions, units)).map(denied).sum()
}

/// Probes for absent keys: in partitions at random, then in the same few.
fn probe(kind: Kind, partitions: &[Partition], units: u8) {
    let loaded = load(partitions, units);
    // A family of keys for each number of units, or all rates would err alike.
    let first = u64::MAX / 2 + (u64::from(units) << 40);
    let probes = 4_000_000u64;
    let passed = (0..probes)
        .filter(|&i| loaded[i as usize % loaded.len()].may_contain(hash(first + i)))
        .count();
    let (rate, expected) = (passed as f64 / probes as f64, kind.fpr(units));
    let sigma = (expected * (1.0 - expected) / probes as f64).sqrt();
    // Few enough keys to stay in cache: what is cold are the units.
    let absent: Vec<KeyHash> = (0..4096).map(|i| hash(first + i)).collect();
    let pick = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % loaded.len();
    let key = |i: u64| absent[(i % 4096) as usize];
    let cold = time(|i| loaded[pick(i)].may_contain(key(i)));
    let warm = time(|i| loaded[(i % 8) as usize].may_contain(key(i)));
    let memory: usize = loaded.iter().map(Units::heap_bytes).sum();
    println!(
        "  {units} units: FPR {rate:.5}, expected {expected:.5}, {:+.1} sigma; probe {cold:.1} ns over {} MB, \
         {warm:.1} ns in cache",
        (rate - expected) / sigma,
        memory >> 20
    );
}
