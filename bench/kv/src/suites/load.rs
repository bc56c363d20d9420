//! Random load and steady overwrite with the same memory for all: speed, bytes written to storage for each byte
//! of the user's, the longest wait of a write, Gets beside steady overwriting, and the time to open again.
//!
//! Loads alternate, and what is said of them is the median of each figure; the longest wait is the longest of all.
//! Copal loads twice: `Deferred`, LevelDB's speed class, and `Process`, LevelDB's promise.

use crate::{
    keys::Skew,
    lab::{Lab, LoadFacts, Role, Scale},
    peer::Peer,
    protocol::{Request, Safety},
};
use anyhow::Result;
use clap::Args;
use std::{collections::HashMap, fs, path::Path, time::Instant};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    scale: Scale,
    /// Memory of each engine, MiB; an eighth of it is the write buffer
    #[arg(long, default_value_t = 64)]
    memory: u64,
    /// Overwrites after the load, as a multiple of the keys
    #[arg(long, default_value_t = 1.0)]
    overwrite: f64,
}

const NAMES: [&str; 5] = ["copal", "leveldb", "rocksdb", "rocksdb-tuned", "fjall"];
const CAP: u64 = 512 << 20;

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut lab = Lab::new(root, "kv-load", &options.scale)?;
    let mut speeds: HashMap<(&str, bool), f64> = HashMap::new();
    let mut plans: Vec<(&str, Safety, &str)> = Vec::new();
    for name in lab.chosen(&NAMES)? {
        plans.push((name, Safety::Bulk, "load"));
        if name == "copal" {
            plans.push((name, Safety::Process, "load, safe from a kill"));
        }
    }
    let mut loads: Vec<Vec<LoadFacts>> = plans.iter().map(|_| Vec::new()).collect();
    let rounds = lab.scale.rounds;
    for round in 0..rounds {
        // Another one is first in each round.
        for step in 0..plans.len() {
            let which = (round + step) % plans.len();
            let (name, safety, _) = plans[which];
            let role = Role {
                memory_bytes: options.memory << 20,
                write_buffer_bytes: options.memory << 17,
                table_bytes: 0,
                store: format!("load-{name}"),
                ..lab.loading_role(10.0)
            };
            let spec = lab.spec(name, &role)?;
            if spec.directory.exists() {
                fs::remove_dir_all(&spec.directory)?;
            }
            loads[which].push(lab.load(&spec, CAP, safety)?);
            if round + 1 == rounds && safety == Safety::Bulk {
                overwrite(&mut lab, options, name, &spec)?;
            }
            fs::remove_dir_all(&spec.directory)?;
        }
    }
    for ((name, safety, what), facts) in plans.into_iter().zip(loads) {
        let facts = LoadFacts::median(&facts);
        let label = format!("{name}: {what}");
        report_load(&mut lab, &label, &facts);
        speeds.insert((name, safety == Safety::Process), facts.megabytes_per_second());
        if safety == Safety::Bulk && name == "copal" {
            lab.report.at_most(
                "T8 copal: write amplification of the load",
                facts.amplification(),
                "x",
                10.0,
            );
            lab.report.at_most(
                "T9 copal: longest put of the load",
                facts.put_max / 1e3,
                "ms",
                100.0,
            );
        }
    }
    // The peers' loads survive the death of the process; both of ours are judged by them.
    for (kill_safe, what) in [(false, "random load"), (true, "random load, safe from a kill")] {
        let Some(ours) = speeds.get(&("copal", kill_safe)) else {
            continue;
        };
        for peer in ["rocksdb", "rocksdb-tuned", "leveldb", "fjall"] {
            if let Some(theirs) = speeds.get(&(peer, false)) {
                lab.report
                    .at_least(format!("T8 {what}: copal / {peer}"), ours / theirs, "x", 1.0);
            }
        }
    }
    lab.finish()
}

fn report_load(lab: &mut Lab<'_>, label: &str, facts: &LoadFacts) {
    let report = &mut lab.report;
    report.fact(label, facts.megabytes_per_second(), "MB/s");
    report.fact(
        format!("{label}: until merged"),
        facts.megabytes_per_second_settled(),
        "MB/s",
    );
    report.fact(
        format!("{label}: bytes written / user bytes"),
        facts.amplification(),
        "x",
    );
    report.detail(format!("{label}: processor time"), facts.cpu_seconds, "s");
    report.detail(format!("{label}: time"), facts.load_seconds, "s");
    report.detail(
        format!("{label}: writers held back"),
        facts.held_back_seconds,
        "s",
    );
    report.detail(format!("{label}: p99 of a put"), facts.put_p99, "us");
    report.fact(format!("{label}: longest put"), facts.put_max / 1e3, "ms");
    report.detail(
        format!("{label}: peak memory with page cache"),
        facts.peak_bytes as f64 / f64::from(1 << 20),
        "MiB",
    );
}

fn overwrite(lab: &mut Lab<'_>, options: &Options, name: &str, spec: &crate::protocol::Spec) -> Result<()> {
    let started = Instant::now();
    let mut peer = Peer::open(spec, Some(CAP))?;
    let open_seconds = started.elapsed().as_secs_f64();
    let gets = |seconds| Request::Gets {
        keys: lab.scale.keys(),
        skew: Skew::Uniform,
        missing: 0.5,
        ops: 0,
        seconds,
        threads: 1,
        seed: 1,
    };
    peer.ask(&gets(1.0))?;
    let idle = peer.ask(&gets(lab.scale.slice_seconds()))?;
    let ops = (lab.scale.keys() as f64 * options.overwrite) as u64;
    let written = peer.ask(&Request::Writes {
        keys: lab.scale.keys(),
        skew: Skew::Uniform,
        value_bytes: lab.scale.value,
        safety: Safety::Bulk,
        ops,
        seconds: 0.0,
        threads: 1,
        outstanding: 1,
        seed: 7,
    })?;
    // Flushes and merges go on all the time now.
    let busy = peer.ask(&Request::ReadsBesideWrites {
        keys: lab.scale.keys(),
        value_bytes: lab.scale.value,
        safety: Safety::Bulk,
        seconds: lab.scale.slice_seconds().max(3.0),
        seed: 9,
    })?;
    let settled = peer.ask(&Request::Settle)?;
    peer.close()?;
    let user_bytes = ops as f64 * (lab.scale.value + crate::keys::KEY_BYTES) as f64;
    let bytes = [&written, &settled]
        .iter()
        .map(|outcome| outcome.traffic.write_bytes as f64)
        .sum::<f64>();
    let report = &mut lab.report;
    report.fact(
        format!("{name}: overwrite"),
        user_bytes / 1e6 / written.answer.seconds.max(1e-9),
        "MB/s",
    );
    report.fact(
        format!("{name}: overwrite: bytes written / user bytes"),
        bytes / user_bytes,
        "x",
    );
    report.fact(
        format!("{name}: overwrite: longest put"),
        written.answer.latency.max / 1e3,
        "ms",
    );
    report.detail(
        format!("{name}: overwrite: processor time"),
        written.answer.cpu_seconds,
        "s",
    );
    report.detail(format!("{name}: overwrite: time"), written.answer.seconds, "s");
    for (counter, what) in [
        ("flush_nanos", "in flushes"),
        ("merge_nanos", "in merges"),
        ("paced_nanos", "writers slowed"),
        ("stalled_nanos", "writers stalled"),
    ] {
        if name == "copal" {
            let seconds = written.answer.counter(counter) / 1e9;
            report.detail(format!("{name}: overwrite: {what}"), seconds, "s");
        }
    }
    report.fact(format!("{name}: open again"), open_seconds, "s");
    let (quiet, beside) = (idle.answer.latency.p99, busy.answer.latency.p99);
    report.detail(format!("{name}: p99 of a Get, idle"), quiet, "us");
    report.fact(format!("{name}: p99 of a Get beside overwriting"), beside, "us");
    report.fact(
        format!("{name}: Gets/s beside overwriting"),
        busy.answer.per_second(),
        "Gets/s",
    );
    if name == "copal" {
        let vain = busy.answer.counter("false_positives") + busy.answer.counter("filter_page_reads");
        report.at_most(
            "criterion: extra reads per Get beside overwriting",
            vain / busy.answer.ops as f64,
            "",
            0.10,
        );
        report.at_most(
            "T9 copal: longest put beside Gets",
            busy.answer.write_latency.max / 1e3,
            "ms",
            100.0,
        );
        report.at_most(
            "T8 copal: write amplification of the overwrite",
            bytes / user_bytes,
            "x",
            15.0,
        );
        report.at_most(
            "T9 copal: longest put of the overwrite",
            written.answer.latency.max / 1e3,
            "ms",
            100.0,
        );
        report.at_most(
            "T9 copal: p99 of a Get beside overwriting / idle",
            beside / quiet,
            "x",
            2.0,
        );
        report.at_most("T12 copal: open again", open_seconds, "s", 2.0);
    }
    Ok(())
}
