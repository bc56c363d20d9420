//! Durable writes of 200 B by 1, 4, 16 and 64 threads; operations per flush of the disk.
//!
//! Flushes are those of the whole disk, as the kernel counts them. Flushes of other programs are included and
//! can only lower an engine's figure. Each engine writes into a new store; slices alternate.

use crate::{
    keys::Skew,
    protocol::{Request, Safety},
    suite_runner::{Entrant, Role, Scale, SuiteRunner},
};
use anyhow::{Context, Result};
use clap::Args;
use copal_bench_harness::report::Report;
use std::{collections::HashMap, fs, os::unix::fs::MetadataExt, path::Path};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    scale: Scale,
    /// Memory of each engine, MiB
    #[arg(long, default_value_t = 64)]
    memory: u64,
}

const NAMES: [&str; 5] = ["copal", "leveldb", "rocksdb", "rocksdb-tuned", "fjall"];
const VALUE_BYTES: usize = 200;

/// Number of threads, and a name.
const SHAPES: [(usize, &str); 4] =
    [(1, "1 thread"), (4, "4 threads"), (16, "16 threads"), (64, "64 threads")];

/// Shape, peer, least ratio.
/// The design demands a gain over LevelDB and fjall, and parity with RocksDB.
const TARGETS: [(&str, &str, f64); 16] = [
    ("1 thread", "leveldb", 1.0),
    ("4 threads", "leveldb", 1.0),
    ("16 threads", "leveldb", 2.0),
    ("64 threads", "leveldb", 4.0),
    ("1 thread", "fjall", 1.0),
    ("4 threads", "fjall", 4.0),
    ("16 threads", "fjall", 4.0),
    ("64 threads", "fjall", 4.0),
    ("1 thread", "rocksdb", 1.0),
    ("4 threads", "rocksdb", 1.0),
    ("16 threads", "rocksdb", 1.0),
    ("64 threads", "rocksdb", 1.0),
    ("1 thread", "rocksdb-tuned", 1.0),
    ("4 threads", "rocksdb-tuned", 1.0),
    ("16 threads", "rocksdb-tuned", 1.0),
    ("64 threads", "rocksdb-tuned", 1.0),
];

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut runner = SuiteRunner::new(root, "kv-sync", &options.scale)?;
    let names = runner.chosen(&NAMES)?;
    let mut entrants = enter(&mut runner, &names, options)?;
    runner.describe(&entrants);
    let mut speeds: HashMap<(&str, String), f64> = HashMap::new();
    for (threads, shape) in SHAPES {
        let writes = |round: usize| Request::Writes {
            keys: 1 << 40,
            skew: Skew::Uniform,
            value_bytes: VALUE_BYTES,
            safety: Safety::Device,
            ops: 0,
            seconds: runner.scale.slice_seconds(),
            threads,
            seed: (round * 100 + threads * 10 + 1) as u64,
        };
        let mut flushes = vec![Vec::new(); entrants.len()];
        let count = entrants.len();
        for entrant in entrants.iter_mut() {
            entrant.outcomes.clear();
        }
        for round in 0..runner.scale.rounds {
            for step in 0..count {
                let index = (round + step) % count;
                let entrant = &mut entrants[index];
                let Some(peer) = &mut entrant.peer else { continue };
                let before = disk_flushes(&runner.scratch)?;
                let outcome = peer.ask(&writes(round))?;
                let flushed = disk_flushes(&runner.scratch)? - before;
                flushes[index].push(outcome.answer.ops as f64 / (flushed as f64).max(1.0));
                entrant.outcomes.push(outcome);
            }
        }
        let per_flush = flushes.into_iter().map(copal_bench_harness::report::median).collect::<Vec<_>>();
        report(&mut runner, &entrants, &per_flush, shape);
        for entrant in &entrants {
            if let Some(speed) = entrant.per_second() {
                speeds.insert((shape, entrant.name.clone()), speed);
            }
        }
    }
    judge(&mut runner.report, &speeds);
    for entrant in entrants {
        let directory = entrant.peer.as_ref().map(|peer| peer.spec.directory.clone());
        entrant.close()?;
        if let Some(directory) = directory {
            fs::remove_dir_all(directory)?;
        }
    }
    runner.finish()
}

/// Opens a new store for each engine.
fn enter(runner: &mut SuiteRunner<'_>, names: &[&'static str], options: &Options) -> Result<Vec<Entrant>> {
    let mut entrants = Vec::new();
    for &name in names {
        let store = format!("sync-{name}");
        let directory = runner.scratch.join(&store);
        if directory.exists() {
            fs::remove_dir_all(&directory)?;
        }
        let role = Role {
            memory_bytes: options.memory << 20,
            write_buffer_bytes: options.memory << 17,
            table_bytes: 0,
            cap_bytes: Some(512 << 20),
            store,
            ..runner.loading_role(10.0)
        };
        entrants.push(runner.entrant(name, &role)?);
    }
    Ok(entrants)
}

fn judge(report: &mut Report, speeds: &HashMap<(&str, String), f64>) {
    for (shape, peer, target) in TARGETS {
        let ours = speeds.get(&(shape, "copal".to_owned()));
        let theirs = speeds.get(&(shape, peer.to_owned()));
        if let (Some(ours), Some(theirs)) = (ours, theirs) {
            let label = format!("T7 copal, {shape} / {peer}, {shape}");
            report.at_least(label, ours / theirs, "x", target);
        }
    }
    let sixteen = |name: &str| speeds.get(&("16 threads", name.to_owned()));
    if let (Some(ours), Some(theirs)) = (sixteen("copal"), sixteen("leveldb")) {
        let label = "criterion: several groups on their way, 16 threads: copal / leveldb";
        report.at_least(label, ours / theirs, "x", 1.5);
    }
}

fn report(runner: &mut SuiteRunner<'_>, entrants: &[Entrant], per_flush: &[Option<f64>], shape: &str) {
    let report = &mut runner.report;
    for (entrant, per_flush) in entrants.iter().zip(per_flush) {
        let name = &entrant.name;
        if let Some(speed) = entrant.per_second() {
            report.fact(format!("{shape}: {name}"), speed, "durable ops/s");
        }
        if let Some(per_flush) = per_flush {
            report.fact(format!("{shape}: {name}: durable ops per flush of the disk"), *per_flush, "");
        }
        for (what, value) in [
            ("p50", entrant.median(|one| one.answer.latency.p50)),
            ("p99", entrant.median(|one| one.answer.latency.p99)),
        ] {
            if let Some(value) = value {
                report.detail(format!("{shape}: {name}: {what}"), value, "us");
            }
        }
        if let Some(cpu) = entrant.per_op(|one| one.answer.cpu_seconds * 1e6) {
            report.detail(format!("{shape}: {name}: processor time per write"), cpu, "us");
        }
    }
}

/// Number of flush requests that the disk below the directory has completed.
fn disk_flushes(directory: &Path) -> Result<u64> {
    let device = fs::metadata(directory)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let text = fs::read_to_string("/proc/diskstats").context("reading the disk's counters")?;
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        if fields.first() == Some(&major.to_string().as_str())
            && fields.get(1) == Some(&minor.to_string().as_str())
        {
            let flushes = fields.get(18).and_then(|field| field.parse().ok());
            return flushes.context("the kernel counts no flushes; 5.5 or newer is needed");
        }
    }
    anyhow::bail!("the disk below {} is not in /proc/diskstats", directory.display())
}
