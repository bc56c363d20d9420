//! Gets per second under the caps, half of the keys missing, engines in alternating slices.
//!
//! Paper: elasticbf §4.1, Figure 5
//! The configurations of copal without elastic filters are the control for all effects other than filters.

mod resident;

use super::{BITS, compare_with_peers, contestants, cpu_micros, name_the_fallen, ratio_row};
use crate::{
    keys::Skew,
    protocol::Request,
    suite_runner::{Entrant, Scale, SuiteRunner},
};
use anyhow::Result;
use clap::Args;
use std::path::Path;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    scale: Scale,
}

/// Gets/s of ElasticBF over LevelDB's: least and most of the four workloads in the paper's text (abstract and
/// §4.1); the bars themselves are a picture. Our elastic filters should reach the least at every skew.
const PAPER: [f64; 2] = [1.94, 2.24];

const NAMES: [&str; 9] = [
    "copal",
    "copal-ribbon-classes",
    "copal-bloom-paper",
    "copal-bloom-fixed",
    "leveldb",
    "rocksdb",
    "rocksdb-tuned",
    "fjall",
    "fjall-tuned",
];

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut runner = SuiteRunner::new(root, "elasticbf-fig5", &options.scale)?;
    let names = runner.chosen(&NAMES)?;
    for (value, which) in PAPER.into_iter().zip(["least", "most"]) {
        let label =
            format!("paper: ElasticBF / LevelDB, Gets/s, {which} of four workloads (uniform to zipf 1.20)");
        runner.report.fact(label, value, "x");
    }
    for percent in runner.scale.caps.clone() {
        // All four skews at the cap of the targets, the two most important ones at the other caps.
        let skews = if (percent - 1.0).abs() < 1e-9 { &Skew::PAPER[..] } else { &Skew::PAPER[..2] };
        let mut entrants = contestants(&mut runner, &names, BITS, percent)?;
        runner.describe(&entrants);
        for &skew in skews {
            let gets = |round: usize| Request::Gets {
                keys: runner.scale.keys(),
                skew,
                missing: 0.5,
                ops: 0,
                seconds: runner.scale.slice_seconds(),
                threads: 1,
                seed: round as u64 + 1,
            };
            // Caches and filters adapt to the new skew before the measurement.
            runner.rounds(&mut entrants, 2, |round| gets(round + 100))?;
            runner.await_merges(&mut entrants)?;
            runner.rounds(&mut entrants, runner.scale.rounds, gets)?;
            report(&mut runner, &entrants, &format!("cap {percent} %, {}", skew.name()));
        }
        if (percent - 1.0).abs() < 1e-9 {
            many_at_once(&mut runner, &mut entrants)?;
        }
        for entrant in entrants {
            entrant.close()?;
        }
    }
    resident::resident(&mut runner)?;
    runner.finish()
}

/// Keys of one call.
const BATCH: usize = 32;

/// Engines with a call for several keys use it; the others look up the keys one by one.
fn many_at_once(runner: &mut SuiteRunner<'_>, entrants: &mut [Entrant]) -> Result<()> {
    let gets = |round: usize| Request::MultiGets {
        keys: runner.scale.keys(),
        skew: Skew::Uniform,
        missing: 0.5,
        batch: BATCH,
        seconds: runner.scale.slice_seconds(),
        threads: 1,
        seed: round as u64 + 1,
    };
    runner.rounds(entrants, runner.scale.rounds, gets)?;
    let label = format!("cap 1 %, {BATCH} keys a call, uniform");
    for entrant in entrants.iter() {
        if let Some(speed) = entrant.per_second() {
            runner.report.fact(format!("{label}: {}", entrant.name), speed, "Gets/s");
        }
    }
    compare_with_peers(&mut runner.report, &label, entrants, Entrant::per_second);
    Ok(())
}

fn report(runner: &mut SuiteRunner<'_>, entrants: &[Entrant], label: &str) {
    let report = &mut runner.report;
    for entrant in entrants {
        let Some(speed) = entrant.per_second() else {
            continue;
        };
        let name = &entrant.name;
        report.fact(format!("{label}: {name}"), speed, "Gets/s");
        for (what, unit, value) in [
            ("reads per Get", "", entrant.per_op(|one| one.traffic.reads as f64)),
            ("bytes read per Get", "B", entrant.per_op(|one| one.traffic.read_bytes as f64)),
            ("processor time per Get", "us", entrant.per_op(cpu_micros)),
            ("p99", "us", entrant.median(|one| one.answer.latency.p99)),
            ("peak memory", "MiB", entrant.median(|one| one.peak_bytes as f64 / f64::from(1 << 20))),
        ] {
            if let Some(value) = value {
                report.detail(format!("{label}: {name}: {what}"), value, unit);
            }
        }
    }
    compare_with_peers(report, label, entrants, Entrant::per_second);
    for ours in ["copal-bloom-paper", "copal-ribbon-classes"] {
        let pair = (ours, "copal-bloom-fixed");
        ratio_row(report, label, entrants, pair, Entrant::per_second, PAPER[0]);
    }
    if let Some(cpu) = super::find(entrants, "copal").and_then(|ours| ours.per_op(cpu_micros)) {
        report.fact(format!("{label}: copal: processor time per Get, mean"), cpu, "us");
    }
    let p99 = |ours: &Entrant| ours.median(|one| one.answer.cpu.p99);
    if let Some(p99) = super::find(entrants, "copal").and_then(p99) {
        // Of the calling thread: with its system calls, without the device's own threads.
        report.at_most(format!("T6 {label}: processor time per Get, p99"), p99, "us", 5.0);
    }
    name_the_fallen(report, label, entrants);
}
