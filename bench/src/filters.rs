//! Cost and accuracy of filters: time to build and to probe, bits per key, false positives. No disk.
//!
//! Paper: elasticbf §3.1, §3.4
//! Keys are numbered, so everything but the times is equal on every machine.

use anyhow::{Context, Result};
use clap::Args;
use copal_bench_harness::report::{Report, median};
use copal_filter::{FilterFit, FilterPage, KeyHash, Kind, PartitionFilterBuilder, Units};
use std::{hint::black_box, path::Path, time::Instant};

#[derive(Args)]
pub(crate) struct Options {
    /// Number of present keys to look up
    #[arg(long, default_value_t = 100_000_000)]
    members: u64,
    /// Number of partitions in memory during look-ups of absent keys: enough that probes miss the processor's
    /// caches
    #[arg(long, default_value_t = 50_000)]
    partitions: usize,
    /// Number of absent keys for each number of units
    #[arg(long, default_value_t = 20_000_000)]
    probes: u64,
}

const SEED: u64 = 7;
/// Greatest number of units whose false positive rate is measured.
const MOST_UNITS: u8 = 8;

struct Partition {
    keys: std::ops::Range<u64>,
    page: FilterPage,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut report = Report::new(root, root);
    for kind in [Kind::Ribbon, Kind::Bloom] {
        measure(&mut report, kind, options)?;
    }
    report.finish(root, "kv-filters")
}

fn measure(report: &mut Report, kind: Kind, options: &Options) -> Result<()> {
    let ours = kind == Kind::Ribbon;
    let name = format!("{kind:?}");
    let units = kind.units().min(MOST_UNITS);
    // Kinds outside of the default configuration are measured with a tenth of the keys.
    let members = if ours { options.members } else { options.members / 10 };
    let (mut denied, mut times, mut kept) = (0u64, Vec::new(), Vec::new());
    let (mut keys, mut unit_bits) = (0u64, 0.0);
    build(kind, members, |partition, nanos| {
        let count = partition.keys.end - partition.keys.start;
        times.push(nanos / count as f64);
        let filter = load(&partition, units)?;
        // A key that fewer units deny is denied by all units too, so checking all units suffices.
        denied += partition.keys.clone().filter(|&key| !filter.may_contain(hash(key))).count() as u64;
        keys += count;
        unit_bits += f64::from(partition.page.unit_bytes()) * 8.0;
        if kept.len() < options.partitions {
            kept.push(partition);
        }
        Ok(())
    })?;
    report.fact(format!("{name}: keys looked up in their own partition"), keys as f64, "");
    report.exactly(format!("T4 {name}: ... of them denied"), denied as f64, "", 0.0);
    judge_build(report, kind, median(times).unwrap_or(0.0), unit_bits / keys as f64);
    probe(report, kind, units, &kept, options)
}

/// Time of building per key, and bits per key in each unit.
fn judge_build(report: &mut Report, kind: Kind, build_nanos: f64, bits: f64) {
    let name = format!("{kind:?}");
    if kind == Kind::Ribbon {
        report.at_most("T4 Ribbon: build, all 15 columns, hash included", build_nanos, "ns/key", 100.0);
        report.at_most("criterion: build of columns", build_nanos, "ns/key", 200.0);
        report.at_most("T4 Ribbon: bits per key and column", bits, "", 1.023);
        report.at_least("T4 Ribbon: bits per key and column", bits, "", 1.003);
    } else {
        report.fact(format!("{name}: build, all units, hash included"), build_nanos, "ns/key");
        report.fact(format!("{name}: bits per key and unit"), bits, "");
    }
}

/// False positives and times for every number of units.
fn probe(report: &mut Report, kind: Kind, units: u8, kept: &[Partition], options: &Options) -> Result<()> {
    let ours = kind == Kind::Ribbon;
    let name = format!("{kind:?}");
    let mut worst: f64 = 0.0;
    for units in 1..=units {
        let loaded = kept.iter().map(|partition| load(partition, units)).collect::<Result<Vec<_>>>()?;
        let (rate, sigmas) = false_positives(kind, units, &loaded, options.probes);
        worst = worst.max(sigmas.abs());
        report.fact(format!("{name}: {units} units: false positives"), rate, "");
        report.detail(format!("{name}: {units} units: sigmas from 2^-k or its like"), sigmas, "");
        let (cold, warm) = probe_times(units, &loaded);
        let label = format!("{name}: {units} units: probe of an absent key");
        report.detail(format!("{label}, in cache"), warm, "ns");
        if ours {
            report.at_most(format!("T4 {label}, cold"), cold, "ns", 60.0);
        } else {
            report.detail(format!("{label}, cold"), cold, "ns");
        }
    }
    if ours {
        report.at_most("T4 Ribbon: worst distance of a rate from 2^-k", worst, "sigma", 3.0);
    } else {
        // Bloom units promise their rate only for full partitions and many bits.
        report.fact(format!("{name}: worst distance of a rate from the formula"), worst, "sigma");
    }
    Ok(())
}

fn hash(key: u64) -> KeyHash {
    KeyHash::new(&key.to_le_bytes(), SEED)
}

/// Builds partitions of consecutive keys and calls `each` with their pages and build times in nanoseconds.
fn build(kind: Kind, members: u64, mut each: impl FnMut(Partition, f64) -> Result<()>) -> Result<()> {
    let mut builder = PartitionFilterBuilder::new(kind, SEED);
    let (mut from, mut key) = (0, 0);
    let mut started = Instant::now();
    while from < members {
        if builder.add(hash(key)) == FilterFit::Full {
            let page = builder.finish(from).context("ordinary keys fill a partition")?;
            let nanos = started.elapsed().as_nanos() as f64;
            each(Partition { keys: from..key, page }, nanos)?;
            from = key;
            started = Instant::now();
            builder.add(hash(key));
        }
        key += 1;
    }
    Ok(())
}

fn load(partition: &Partition, units: u8) -> Result<Units> {
    FilterPage::load(partition.page.as_bytes(), units, partition.keys.start, SEED)
        .context("newly built pages are valid")
}

/// A separate family of absent keys for each number of units, so that the errors of the rates are
/// independent.
fn absent(units: u8, number: u64) -> KeyHash {
    hash(u64::MAX / 2 + (u64::from(units) << 40) + number)
}

/// False positive rate of absent keys in all partitions in turn, and its distance from the promised rate in
/// sigmas.
fn false_positives(kind: Kind, units: u8, loaded: &[Units], probes: u64) -> (f64, f64) {
    let passes = |&number: &u64| loaded[number as usize % loaded.len()].may_contain(absent(units, number));
    let passed = (0..probes).filter(passes).count();
    let (rate, expected) = (passed as f64 / probes as f64, kind.fpr(units));
    let sigma = (expected * (1.0 - expected) / probes as f64).sqrt();
    (rate, (rate - expected) / sigma)
}

/// Nanoseconds of a probe in random partitions, and in the same few.
fn probe_times(units: u8, loaded: &[Units]) -> (f64, f64) {
    // Few enough keys to stay in cache: only the units are cold.
    let keys: Vec<KeyHash> = (0..4096).map(|number| absent(units, number)).collect();
    let key = |number: u64| keys[(number % 4096) as usize];
    let pick = |number: u64| (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % loaded.len();
    let cold = time(|number| loaded[pick(number)].may_contain(key(number)));
    let warm = time(|number| loaded[(number % 8) as usize].may_contain(key(number)));
    (cold, warm)
}

/// Median over many short slices, against other load of the machine.
fn time(mut one: impl FnMut(u64) -> bool) -> f64 {
    const SLICES: u64 = 300;
    const PROBES: u64 = 8192;
    let slice = |slice: u64| {
        let started = Instant::now();
        for number in slice * PROBES..(slice + 1) * PROBES {
            black_box(one(number));
        }
        started.elapsed().as_nanos() as f64 / PROBES as f64
    };
    median((0..SLICES).map(slice).collect()).unwrap_or(0.0)
}
