//! Prints what filters cost and how well they filter: build and probe time, bits per key, false positives.
//!
//! `cargo run --release -p copal-filter --example filter_bench [partitions]`
//! Targets (T4): Ribbon build at most 100 ns per key for all 15 columns, probe at most 60 ns cold, no false
//! negative in 10^8 (with 50 000 partitions), 1.013 bits per key and column.
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

/// Median time of `one` in slices of a few thousand; returns how often it was true, too.
fn time(mut one: impl FnMut(u64) -> bool) -> (f64, f64) {
    const SLICES: u64 = 500;
    const PROBES: u64 = 8192;
    let (mut times, mut positives) = (Vec::new(), 0u64);
    for slice in 0..SLICES {
        let started = Instant::now();
        for i in slice * PROBES..(slice + 1) * PROBES {
            positives += u64::from(black_box(one(i)));
        }
        times.push(started.elapsed().as_nanos() as f64 / PROBES as f64);
    }
    (median(times), positives as f64 / (SLICES * PROBES) as f64)
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
        for units in [1, 2, 4, kind.units().min(8)] {
            probe(kind, &partitions, units);
        }
    }
}

/// Probes every partition's own keys, then absent keys at random places.
fn probe(kind: Kind, partitions: &[Partition], units: u8) {
    let loaded = load(partitions, units);
    let missed: u64 = partitions
        .iter()
        .zip(&loaded)
        .map(|(p, filter)| p.keys.clone().filter(|&i| !filter.may_contain(hash(i))).count() as u64)
        .sum();
    let absent: Vec<KeyHash> = (0..1 << 16).map(|i| hash(u64::MAX / 2 + i)).collect();
    let pick = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % loaded.len();
    let key = |i: u64| absent[(i.wrapping_mul(0xd1b5_4a32_d192_ed03) >> 48) as usize];
    let (cold, rate) = time(|i| loaded[pick(i)].may_contain(key(i)));
    let (warm, _) = time(|i| loaded[(i % 8) as usize].may_contain(key(i)));
    let memory: usize = loaded.iter().map(Units::heap_bytes).sum();
    println!(
        "  {units} units: {missed} false negatives, FPR {:.5} (expected {:.5}), probe {cold:.1} ns over {} MB, \
         {warm:.1} ns in cache",
        rate,
        kind.fpr(units),
        memory >> 20
    );
}
