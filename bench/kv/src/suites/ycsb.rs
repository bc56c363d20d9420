//! YCSB A to F under a cap: zipf .99, 1 KB, two threads, writes that survive a kill of the process.

use super::{BITS, compare_with_peers, contestants, cpu_micros, name_the_fallen};
use crate::{
    protocol::{Request, Safety},
    suite_runner::{Entrant, Scale, SuiteRunner},
};
use anyhow::Result;
use clap::Args;
use std::path::Path;

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    scale: Scale,
    /// Percent of the data as memory
    #[arg(long, default_value_t = 4.0)]
    cap: f64,
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Copal's writes are `Deferred`: LevelDB's speed class, less than its promise
    #[arg(long)]
    deferred: bool,
}

const NAMES: [&str; 5] = ["copal", "leveldb", "rocksdb", "rocksdb-tuned", "fjall"];

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut runner = SuiteRunner::new(root, "kv-ycsb", &options.scale)?;
    let names = runner.chosen(&NAMES)?;
    let mut entrants = contestants(&mut runner, &names, BITS, options.cap)?;
    runner.describe(&entrants);
    // The slices change the stores, also that of a fallen engine: the next suite loads its own.
    for entrant in &entrants {
        if let Some(peer) = &entrant.peer {
            let mut stamp = peer.spec.directory.clone().into_os_string();
            stamp.push(".json");
            std::fs::remove_file(stamp)?;
        }
    }
    // The order of YCSB's own manual: workloads with inserts come last.
    for workload in ['A', 'B', 'C', 'F', 'D', 'E'] {
        let slice = |round: usize| Request::Ycsb {
            workload,
            safety: if options.deferred { Safety::Bulk } else { Safety::Process },
            keys: runner.scale.keys(),
            value_bytes: runner.scale.value,
            seconds: runner.scale.slice_seconds(),
            threads: options.threads,
            seed: round as u64 + 1,
        };
        runner.rounds(&mut entrants, 1 + runner.scale.rounds, slice)?;
        let how = if options.deferred { ", deferred" } else { "" };
        let label = format!("YCSB {workload}{how}");
        for entrant in &entrants {
            tell(&mut runner, &label, entrant);
        }
        compare_with_peers(&mut runner.report, &label, &entrants, Entrant::per_second);
        name_the_fallen(&mut runner.report, &label, &entrants);
    }
    for entrant in entrants {
        entrant.close()?;
    }
    runner.finish()
}

/// Speed and cost of one engine in one workload.
fn tell(runner: &mut SuiteRunner<'_>, label: &str, entrant: &Entrant) {
    let name = &entrant.name;
    let Some(speed) = entrant.per_second() else {
        return;
    };
    runner.report.fact(format!("{label}: {name}"), speed, "ops/s");
    let longest = entrant.outcomes.iter().map(|one| one.answer.write_latency.max);
    for (what, unit, value) in [
        ("read p99", "us", entrant.median(|one| one.answer.latency.p99)),
        ("write p99", "us", entrant.median(|one| one.answer.write_latency.p99)),
        ("longest write", "us", longest.reduce(f64::max)),
        ("processor time per op", "us", entrant.per_op(cpu_micros)),
        ("reads per op", "", entrant.per_op(|one| one.traffic.reads as f64)),
        ("bytes read per op", "B", entrant.per_op(|one| one.traffic.read_bytes as f64)),
        ("bytes written per op", "B", entrant.per_op(|one| one.traffic.write_bytes as f64)),
    ] {
        if let Some(value) = value {
            runner.report.detail(format!("{label}: {name}: {what}"), value, unit);
        }
    }
}
