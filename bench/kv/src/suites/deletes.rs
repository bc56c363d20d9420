//! Deletes: bytes written, space given back, and scans over deleted ranges.
//!
//! Four loads, each over its own loaded store:
//! - two thirds of the keys deleted in random order;
//! - deletes and writes of drawn keys, existing or not, two to one;
//! - mail: new keys, reads and deletes of existing ones, 4 : 2 : 3;
//! - a queue in one place of the store, whose head is found by a scan over earlier deletes.
//!
//! The bytes of a load include the flushes and merges that it causes, until no engine has background work.
//! The space held then is reported too, so that no engine gains by keeping garbage. Scans over deleted ranges
//! begin in that state, with cold caches, under the same cap as other reads. Merges that they start count as
//! part of their reads and time.
//! User bytes of a delete are those of its key; the bytes written for it are mostly merges of the deleted
//! data.

use super::{BITS, PEERS};
use crate::{
    keys::{KEY_BYTES, Skew},
    peer::{Outcome, Peer},
    protocol::{Churn, Kind, Request, Safety, Spec},
    suite_runner::{Role, Scale, SuiteRunner},
};
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::median;
use std::{collections::HashMap, fs, os::unix::fs::MetadataExt, path::Path};

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    scale: Scale,
    /// Entries of a scan
    #[arg(long, default_value_t = 100)]
    entries: usize,
    /// Percent of the loaded data as memory for the scans, of which the page cache is a part
    #[arg(long, default_value_t = 4.0)]
    cap: f64,
}

const NAMES: [&str; 5] = ["copal", "leveldb", "rocksdb", "rocksdb-tuned", "fjall"];
/// Greatest ratio of bytes written to those of the peer.
const MOST: f64 = 1.5;
/// Peers that the targets refer to; the others give facts.
const JUDGES: [&str; 2] = ["rocksdb", "rocksdb-tuned"];

/// Selection of a load's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Draws {
    /// Existing ids, and new ones.
    There,
    /// Loaded ids, existing or deleted.
    Blind,
    /// New ids at the end, the oldest at the head.
    Queue,
}

/// Entries in the queue.
const WAITING: u64 = 1000;

/// One load: name, and the creates, reads and deletes of a turn.
struct Load {
    name: &'static str,
    creates: u32,
    reads: u32,
    deletes: u32,
    draws: Draws,
    /// Number of operations per loaded key.
    per_key: f64,
}

const LOADS: [Load; 4] = [
    Load {
        name: "random deletes",
        creates: 0,
        reads: 0,
        deletes: 1,
        draws: Draws::There,
        per_key: 2.0 / 3.0,
    },
    Load { name: "delete-heavy mix", creates: 1, reads: 0, deletes: 2, draws: Draws::Blind, per_key: 1.0 },
    Load { name: "mail", creates: 4, reads: 2, deletes: 3, draws: Draws::There, per_key: 1.0 },
    Load { name: "queue", creates: 1, reads: 1, deletes: 1, draws: Draws::Queue, per_key: 0.75 },
];

/// Results of one load in one round.
#[derive(Clone, Default)]
struct Facts {
    written: f64,
    per_second: f64,
    held: f64,
    cpu_seconds: f64,
    scans: Option<Scans>,
    /// Median and 99th percentile of the processor time of a look at the queue's head, in microseconds, and
    /// device reads per turn.
    looks: Option<(f64, f64, f64)>,
}

/// Results of scans over deleted ranges.
#[derive(Clone, Copy, Default)]
struct Scans {
    entries_per_second: f64,
    /// Device reads, and their bytes, per thousand entries.
    reads: f64,
    read_bytes: f64,
    /// Processor time per thousand entries.
    cpu_micros: f64,
    /// Bytes written during the scans, per byte scanned.
    written: f64,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut runner = SuiteRunner::new(root, "kv-deletes", &options.scale)?;
    let names = runner.chosen(&NAMES)?;
    let mut all: HashMap<(&str, &str), Vec<Facts>> = HashMap::new();
    for round in 0..runner.scale.rounds {
        for step in 0..names.len() {
            let name = names[(round + step) % names.len()];
            for load in &LOADS {
                let facts = one(&runner, options, name, load, round as u64)?;
                all.entry((name, load.name)).or_default().push(facts);
            }
        }
    }
    for load in &LOADS {
        for name in &names {
            if let Some(facts) = all.get(&(*name, load.name)) {
                tell(&mut runner, name, load, facts);
            }
        }
        let Some(ours) = all.get(&("copal", load.name)) else {
            continue;
        };
        for peer in PEERS {
            let Some(theirs) = all.get(&(peer, load.name)) else {
                continue;
            };
            let ratio = |figure: fn(&Facts) -> f64| of(ours, figure) / of(theirs, figure);
            let label = format!("{}: bytes written: copal / {peer}", load.name);
            if JUDGES.contains(&peer) {
                runner.report.at_most(label, ratio(|one| one.written), "x", MOST);
            } else {
                runner.report.fact(label, ratio(|one| one.written), "x");
            }
            if load.draws == Draws::Queue {
                let label = format!("queue: median processor time of a look at the head: copal / {peer}");
                let looks = ratio(|one| one.looks.map_or(0.0, |looks| looks.0));
                runner.report.fact(label, looks, "x");
            }
            if ours.iter().all(|one| one.scans.is_some()) {
                let ratio = |figure: fn(Scans) -> f64| of_scans(ours, figure) / of_scans(theirs, figure);
                let label = |what| format!("scans over what was deleted: {what}: copal / {peer}");
                runner.report.at_most(label("reads"), ratio(|scans| scans.reads), "x", 1.0);
                runner.report.fact(label("bytes read"), ratio(|scans| scans.read_bytes), "x");
                runner.report.at_most(label("processor time"), ratio(|scans| scans.cpu_micros), "x", 1.0);
                let speed = ratio(|scans| scans.entries_per_second);
                runner.report.fact(label("speed"), speed, "x");
            }
        }
    }
    runner.finish()
}

fn of(facts: &[Facts], figure: impl Fn(&Facts) -> f64) -> f64 {
    median(facts.iter().map(figure).collect()).unwrap_or(0.0)
}

fn of_scans(facts: &[Facts], figure: impl Fn(Scans) -> f64) -> f64 {
    of(facts, |one| figure(one.scans.unwrap_or_default()))
}

/// Loads a store, runs the work, and removes the store.
fn one(runner: &SuiteRunner<'_>, options: &Options, name: &str, load: &Load, round: u64) -> Result<Facts> {
    let role = Role { store: format!("deletes-{name}"), ..runner.loading_role(BITS) };
    let spec = runner.spec(name, &role)?;
    if spec.directory.exists() {
        fs::remove_dir_all(&spec.directory)?;
    }
    let cap = role.cap_bytes.unwrap_or(512 << 20);
    runner.load(&spec, cap, Safety::Bulk)?;
    let mut peer = Peer::open(&spec, Some(cap))?;
    let (keys, turn) = (runner.scale.keys(), load.creates + load.reads + load.deletes);
    let turns = (keys as f64 * load.per_key / f64::from(turn)) as u64;
    let (value_bytes, safety) = (runner.scale.value, Safety::Bulk);
    let worked = peer.ask(&if load.draws == Draws::Queue {
        Request::Queue { waiting: WAITING, turns, value_bytes, safety }
    } else {
        Request::Churn(Churn {
            keys,
            creates: load.creates,
            reads: load.reads,
            deletes: load.deletes,
            blind: load.draws == Draws::Blind,
            value_bytes,
            turns,
            safety,
            seed: 11 + round,
        })
    })?;
    let flushed = peer.ask(&Request::Flush)?;
    let parts = [worked.clone(), flushed, peer.ask(&Request::AwaitMerges)?];
    let mut facts = Facts::default();
    let entry = (runner.scale.value + KEY_BYTES) as f64;
    let waiting = if load.draws == Draws::Queue { WAITING } else { 0 };
    let user = waiting as f64 * entry
        + turns as f64 * (f64::from(load.creates) * entry + f64::from(load.deletes) * KEY_BYTES as f64);
    facts.written = parts.iter().map(|part| part.traffic.write_bytes as f64).sum::<f64>() / user;
    facts.cpu_seconds = parts.iter().map(|part| part.answer.cpu_seconds).sum();
    facts.per_second = worked.answer.per_second();
    facts.held = held_bytes(&spec, &mut peer)? / entry / living(load, keys + waiting, turns);
    if load.draws == Draws::Queue {
        let cpu = worked.answer.cpu;
        facts.looks = Some((cpu.p50, cpu.p99, worked.reads_per_op()));
    }
    peer.close()?;
    if load.creates == 0 {
        let role = runner.reading_role(BITS, options.cap, true, role.store);
        let mut peer = Peer::open(&runner.spec(name, &role)?, role.cap_bytes)?;
        facts.scans = Some(scans(runner, options, &mut peer)?);
        peer.close()?;
    }
    fs::remove_dir_all(&spec.directory)?;
    Ok(facts)
}

/// Number of existing keys after that many turns; an estimate for blind draws.
fn living(load: &Load, keys: u64, turns: u64) -> f64 {
    let (creates, deletes) = (f64::from(load.creates), f64::from(load.deletes));
    let (keys, turns) = (keys as f64, turns as f64);
    if load.draws != Draws::Blind {
        return keys + turns * (creates - deletes);
    }
    // The last write of a key is a create or a delete; untouched keys exist.
    let untouched = (-turns * (creates + deletes) / keys).exp();
    keys * (untouched + (1.0 - untouched) * creates / (creates + deletes))
}

/// Scans for three slices.
fn scans(runner: &SuiteRunner<'_>, options: &Options, peer: &mut Peer) -> Result<Scans> {
    let (mut found, mut seconds, mut sums) = (0.0, 0.0, Scans::default());
    for seed in 1..=3 {
        let scanned: Outcome = peer.ask(&Request::Scans {
            keys: runner.scale.keys(),
            skew: Skew::Uniform,
            entries: options.entries,
            seconds: runner.scale.slice_seconds(),
            seed,
        })?;
        found += scanned.answer.found as f64;
        seconds += scanned.answer.seconds;
        sums.reads += scanned.traffic.reads as f64;
        sums.read_bytes += scanned.traffic.read_bytes as f64;
        sums.cpu_micros += scanned.answer.cpu_seconds * 1e6;
        sums.written += scanned.traffic.write_bytes as f64;
    }
    let (found, thousands) = (f64::max(found, 1.0), f64::max(found, 1.0) / 1e3);
    Ok(Scans {
        entries_per_second: found / f64::max(seconds, 1e-9),
        reads: sums.reads / thousands,
        read_bytes: sums.read_bytes / thousands,
        cpu_micros: sums.cpu_micros / thousands,
        written: sums.written / (found * (runner.scale.value + KEY_BYTES) as f64),
    })
}

/// Space that the engine occupies: files of the peers, for copal the allocated bytes of its one file.
fn held_bytes(spec: &Spec, peer: &mut Peer) -> Result<f64> {
    if spec.kind == Kind::Copal {
        return Ok(peer.ask(&Request::Facts)?.answer.counter("live_bytes_now"));
    }
    let mut bytes = 0;
    let mut directories = vec![spec.directory.clone()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory)? {
            let entry = entry?;
            // A merge may remove the file meanwhile.
            let Ok(meta) = entry.metadata() else { continue };
            if meta.is_dir() {
                directories.push(entry.path());
            } else {
                bytes += meta.blocks() * 512;
            }
        }
    }
    Ok(bytes as f64)
}

fn tell(runner: &mut SuiteRunner<'_>, name: &str, load: &Load, facts: &[Facts]) {
    let label = format!("{name}: {}", load.name);
    let report = &mut runner.report;
    report.fact(format!("{label}: bytes written / user bytes"), of(facts, |one| one.written), "x");
    report.fact(format!("{label}: bytes held / living bytes"), of(facts, |one| one.held), "x");
    report.detail(format!("{label}: speed"), of(facts, |one| one.per_second), "ops/s");
    report.detail(format!("{label}: processor time"), of(facts, |one| one.cpu_seconds), "s");
    if facts.iter().all(|one| one.looks.is_some()) {
        let row = |figure: fn((f64, f64, f64)) -> f64| of(facts, |one| one.looks.map_or(0.0, figure));
        let label = |what| format!("{label}: {what}");
        report.fact(label("processor time of a look at the head, median"), row(|looks| looks.0), "us");
        report.fact(
            label("processor time of a look at the head, 99th percentile"),
            row(|looks| looks.1),
            "us",
        );
        report.detail(label("reads for a turn"), row(|looks| looks.2), "");
    }
    if facts.iter().all(|one| one.scans.is_some()) {
        let label = |what| format!("{name}: scans over what was deleted{what}");
        let row = |figure: fn(Scans) -> f64| of_scans(facts, figure);
        let speed = row(|scans| scans.entries_per_second) / 1e3;
        report.fact(label(""), speed, "k entries/s");
        let reads = row(|scans| scans.reads);
        report.fact(label(": reads for 1,000 entries"), reads, "");
        let read_kb = row(|scans| scans.read_bytes) / 1e3;
        report.detail(label(": kB read for 1,000 entries"), read_kb, "kB");
        let cpu = row(|scans| scans.cpu_micros);
        report.detail(label(": processor time for 1,000 entries"), cpu, "us");
        let written = row(|scans| scans.written);
        report.detail(label(": bytes written / bytes scanned"), written, "x");
    }
}
