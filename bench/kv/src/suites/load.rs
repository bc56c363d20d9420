//! Random load and steady overwrite with the same memory for all: speed, bytes written to storage for each byte
//! of the user's, the longest wait of a write, Gets while merges run, and the time to open again.
//!
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
    let mut speeds: HashMap<&str, f64> = HashMap::new();
    let mut plans: Vec<(&str, Safety, &str)> = Vec::new();
    for name in lab.chosen(&NAMES)? {
        plans.push((name, Safety::Bulk, "load"));
        if name == "copal" {
            plans.push((name, Safety::Process, "load, safe from a kill"));
        }
    }
    for (name, safety, what) in plans {
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
        let facts = lab.load(&spec, CAP, safety)?;
        let label = format!("{name}: {what}");
        report_load(&mut lab, &label, &facts);
        if safety == Safety::Bulk {
            speeds.insert(name, facts.megabytes_per_second());
            if name == "copal" {
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
            overwrite(&mut lab, options, name, &spec)?;
        }
        fs::remove_dir_all(&spec.directory)?;
    }
    if let Some(ours) = speeds.get("copal") {
        for peer in ["rocksdb", "rocksdb-tuned", "leveldb", "fjall"] {
            if let Some(theirs) = speeds.get(peer) {
                lab.report
                    .at_least(format!("T8 random load: copal / {peer}"), ours / theirs, "x", 1.0);
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
    // Merges are still going on now.
    let busy = peer.ask(&gets(1.0))?;
    let settled = peer.ask(&Request::Settle)?;
    peer.close()?;
    let user_bytes = ops as f64 * (lab.scale.value + crate::keys::KEY_BYTES) as f64;
    let bytes = [&written, &busy, &settled]
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
    report.fact(format!("{name}: open again"), open_seconds, "s");
    let (idle, busy) = (idle.answer.latency.p99, busy.answer.latency.p99);
    report.detail(format!("{name}: p99 of a Get, idle"), idle, "us");
    report.detail(format!("{name}: p99 of a Get after the overwrite"), busy, "us");
    if name == "copal" {
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
            "T9 copal: p99 of a Get while merging / idle",
            busy / idle,
            "x",
            2.0,
        );
        report.at_most("T12 copal: open again", open_seconds, "s", 2.0);
    }
    Ok(())
}
