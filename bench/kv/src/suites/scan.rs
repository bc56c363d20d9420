//! Range scans from random keys, short and long.
//!
//! A scan merges more runs under lazy leveling than leveled compaction has levels; it may cost half as much
//! again as in RocksDB.

use super::{BITS, contestants, cpu_micros, name_the_fallen, ratio_row};
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
    /// Entries of a scan
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 10_000])]
    entries: Vec<usize>,
    /// Percent of the data as memory
    #[arg(long, default_value_t = 4.0)]
    cap: f64,
}

const NAMES: [&str; 5] = ["copal", "leveldb", "rocksdb", "rocksdb-tuned", "fjall"];

/// The design allows 1.5 times RocksDB's time, and has no limit for the others.
const TARGETS: [(&str, f64); 4] =
    [("rocksdb", 0.667), ("rocksdb-tuned", 0.667), ("leveldb", 1.0), ("fjall", 1.0)];

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut runner = SuiteRunner::new(root, "kv-scan", &options.scale)?;
    let names = runner.chosen(&NAMES)?;
    let mut entrants = contestants(&mut runner, &names, BITS, options.cap)?;
    runner.describe(&entrants);
    let mut costs = Vec::new();
    for &entries in &options.entries {
        let scans = |round: usize| Request::Scans {
            keys: runner.scale.keys(),
            skew: Skew::Uniform,
            entries,
            seconds: runner.scale.slice_seconds(),
            seed: round as u64 + 1,
        };
        // Fills the caches and lets engines finish their merges for readers.
        runner.rounds(&mut entrants, 1, |round| scans(round + 100))?;
        runner.await_merges(&mut entrants)?;
        runner.rounds(&mut entrants, runner.scale.rounds, scans)?;
        let label = format!("scans of {entries}");
        let per_second =
            |entrant: &Entrant| entrant.median(|one| one.answer.found as f64 / one.answer.seconds.max(1e-9));
        for entrant in &entrants {
            let name = &entrant.name;
            let Some(speed) = per_second(entrant) else {
                continue;
            };
            runner.report.fact(format!("{label}: {name}"), speed / 1000.0, "k entries/s");
            for (what, unit, value) in [
                ("reads per scan", "", entrant.per_op(|one| one.traffic.reads as f64)),
                ("bytes read per scan", "B", entrant.per_op(|one| one.traffic.read_bytes as f64)),
                ("processor time per scan", "us", entrant.per_op(cpu_micros)),
            ] {
                if let Some(value) = value {
                    runner.report.detail(format!("{label}: {name}: {what}"), value, unit);
                }
            }
        }
        for (peer, target) in TARGETS {
            ratio_row(&mut runner.report, &label, &entrants, ("copal", peer), per_second, target);
        }
        name_the_fallen(&mut runner.report, &label, &entrants);
        if let Some(lazy) = super::find(&entrants, "copal").and_then(Cost::of) {
            costs.push((entries, lazy));
        }
    }
    against_one_run(&mut runner, &mut entrants, costs)?;
    for entrant in entrants {
        entrant.close()?;
    }
    runner.finish()
}

/// Cost of a scan, independent of other load. One store cannot have both trees at once, so speeds would come
/// from different times.
struct Cost {
    cpu_micros: f64,
    reads: f64,
}

impl Cost {
    fn of(entrant: &Entrant) -> Option<Cost> {
        Some(Cost {
            cpu_micros: entrant.per_op(cpu_micros)?,
            reads: entrant.per_op(|one| one.traffic.reads as f64)?,
        })
    }
}

/// Scans of a tree of one run, the optimum of every tree: an upper bound of the cost of lazy leveling.
fn against_one_run(
    runner: &mut SuiteRunner<'_>,
    entrants: &mut [Entrant],
    lazy: Vec<(usize, Cost)>,
) -> Result<()> {
    let Some(ours) = entrants.iter_mut().find(|entrant| entrant.name == "copal") else {
        return Ok(());
    };
    let Some(peer) = &mut ours.peer else { return Ok(()) };
    peer.ask(&Request::Compact)?;
    for (entries, lazy) in lazy {
        let (mut ops, mut cpu, mut reads) = (0.0, 0.0, 0.0);
        for round in 0..=runner.scale.rounds {
            let scanned = peer.ask(&Request::Scans {
                keys: runner.scale.keys(),
                skew: Skew::Uniform,
                entries,
                seconds: runner.scale.slice_seconds(),
                seed: round as u64 + 1,
            })?;
            // The first round fills the cache.
            if round > 0 {
                ops += scanned.answer.ops as f64;
                cpu += cpu_micros(&scanned);
                reads += scanned.traffic.reads as f64;
            }
        }
        if ops > 0.0 {
            let label = format!("criterion: scans of {entries}: lazy leveling / one run");
            let report = &mut runner.report;
            report.at_most(format!("{label}, processor time"), lazy.cpu_micros / (cpu / ops), "x", 2.0);
            let one_run = (reads / ops).max(f64::MIN_POSITIVE);
            report.at_most(format!("{label}, reads"), lazy.reads / one_run, "x", 2.0);
        }
    }
    // The store has a different tree now: the next suite loads its own.
    let mut stamp = peer.spec.directory.clone().into_os_string();
    stamp.push(".json");
    std::fs::remove_file(stamp)?;
    Ok(())
}
