//! Random load and steady overwriting with equal memory for all engines.
//!
//! Measured are the speed, the write amplification, the longest put, Gets during steady overwriting, and the
//! time to reopen the store. Loads alternate, each followed by its overwriting. The report has the median of
//! each figure, and the longest put of all rounds. Copal loads twice: with `Deferred`, LevelDB's speed class,
//! and with `Process`, LevelDB's durability.

mod overwrite;

use super::PEERS;
use crate::{
    protocol::Safety,
    suite_runner::{LoadFacts, Role, Scale, SuiteRunner},
};
use anyhow::Result;
use clap::Args;
use overwrite::{Overwritten, overwrite};
use std::{collections::HashMap, fs, path::Path};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    scale: Scale,
    /// Memory of each engine, MiB; an eighth of it is the write buffer
    #[arg(long, default_value_t = 64)]
    memory: u64,
    /// Cap on all memory of each engine with page cache, MiB. At 128 fjall is killed during the load; memory
    /// that an engine does not use itself serves as page cache for its reads
    #[arg(long, default_value_t = 512)]
    cap: u64,
    /// Overwrites after the load, as a multiple of the keys
    #[arg(long, default_value_t = 1.0)]
    overwrite: f64,
    /// Minutes of Gets during overwriting; the design demands 30 [default: one slice, 3 s at least]
    #[arg(long)]
    minutes: Option<f64>,
}

const NAMES: [&str; 5] = ["copal", "leveldb", "rocksdb", "rocksdb-tuned", "fjall"];

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut runner = SuiteRunner::new(root, "kv-load", &options.scale)?;
    let mut speeds: HashMap<(&str, bool), f64> = HashMap::new();
    let mut merged: HashMap<(&str, bool), f64> = HashMap::new();
    let mut overwritten: HashMap<&str, Vec<Overwritten>> = HashMap::new();
    let mut plans: Vec<(&str, Safety, &str)> = Vec::new();
    for name in runner.chosen(&NAMES)? {
        plans.push((name, Safety::Bulk, "load"));
        if name == "copal" {
            plans.push((name, Safety::Process, "load, safe from a kill"));
        }
    }
    let mut loads: Vec<Vec<LoadFacts>> = plans.iter().map(|_| Vec::new()).collect();
    for round in 0..runner.scale.rounds {
        // The first engine rotates from round to round.
        for step in 0..plans.len() {
            let which = (round + step) % plans.len();
            let (name, safety, _) = plans[which];
            let role = Role {
                memory_bytes: options.memory << 20,
                write_buffer_bytes: options.memory << 17,
                table_bytes: 0,
                store: format!("load-{name}"),
                ..runner.loading_role(10.0)
            };
            let spec = runner.spec(name, &role)?;
            if spec.directory.exists() {
                fs::remove_dir_all(&spec.directory)?;
            }
            loads[which].push(runner.load(&spec, options.cap << 20, safety)?);
            if safety == Safety::Bulk {
                let one = overwrite(&runner, options, &spec)?;
                overwritten.entry(name).or_default().push(one);
            }
            fs::remove_dir_all(&spec.directory)?;
        }
    }
    for ((name, safety, what), facts) in plans.into_iter().zip(loads) {
        let facts = LoadFacts::median(&facts);
        let label = format!("{name}: {what}");
        report_load(&mut runner, &label, &facts);
        if safety == Safety::Bulk
            && let Some(rounds) = overwritten.get(name)
        {
            overwrite::tell(&mut runner.report, name, rounds);
        }
        let of = (name, safety == Safety::Process);
        speeds.insert(of, facts.megabytes_per_second());
        merged.insert(of, facts.megabytes_per_second_merged());
        if safety == Safety::Bulk && name == "copal" {
            runner.report.at_most(
                "T8 copal: write amplification of the load",
                facts.amplification(),
                "x",
                10.0,
            );
            runner.report.at_most("T9 copal: longest put of the load", facts.put_max / 1e3, "ms", 100.0);
        }
    }
    // The peers' loads survive a kill of the process; both loads of copal are compared with them.
    for (speeds, until) in [(&speeds, ""), (&merged, ", until merged")] {
        for (kill_safe, what) in [(false, "random load"), (true, "random load, safe from a kill")] {
            let Some(ours) = speeds.get(&("copal", kill_safe)) else {
                continue;
            };
            for peer in PEERS {
                if let Some(theirs) = speeds.get(&(peer, false)) {
                    let label = format!("T8 {what}{until}: copal / {peer}");
                    runner.report.at_least(label, ours / theirs, "x", 1.0);
                }
            }
        }
    }
    overwrite::judge(&mut runner.report, &overwritten);
    runner.finish()
}

fn report_load(runner: &mut SuiteRunner<'_>, label: &str, facts: &LoadFacts) {
    let report = &mut runner.report;
    report.fact(label, facts.megabytes_per_second(), "MB/s");
    report.fact(format!("{label}: until merged"), facts.megabytes_per_second_merged(), "MB/s");
    report.fact(format!("{label}: bytes written / user bytes"), facts.amplification(), "x");
    report.detail(format!("{label}: processor time"), facts.cpu_seconds, "s");
    report.detail(format!("{label}: time"), facts.load_seconds, "s");
    report.detail(format!("{label}: writers held back"), facts.held_back_seconds, "s");
    report.detail(format!("{label}: p99 of a put"), facts.put_p99, "us");
    report.fact(format!("{label}: longest put"), facts.put_max / 1e3, "ms");
    report.detail(
        format!("{label}: peak memory with page cache"),
        facts.peak_bytes as f64 / f64::from(1 << 20),
        "MiB",
    );
}
