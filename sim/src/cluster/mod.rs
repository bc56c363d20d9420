//! A whole cluster in one thread, from one seed: product code of clients, masters and data servers over
//! simulated network, disks and time.
//!
//! Rows lie in real stores over fault devices; tasks, connections, clocks and threads come from a
//! [`Machine`](copal_client::machine::Machine) for each process. Faults are drawn at random. The history
//! keeps every result that a client received, and the end state must agree with it.
//!
//! Design: docs/design/cluster.md#the-simulator
//!
//! Not here: rules without a network, searched in all orders (`cargo xtask cluster-model`); real processes
//! (`cluster-chaos`).

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod checks;
mod database;
mod faults;
mod history;
mod hosts;
mod intruder;
mod network;
mod process;
mod run;
mod workload;
mod world;

use anyhow::{Result, bail, ensure};
use clap::Args;
use parking_lot::Mutex;
use run::{Faults, Outcome, Trial, check_met};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

/// Arguments of `copal-sim cluster`.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Number of runs, each with its own seed
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Virtual minutes with faults
    #[arg(long, default_value_t = 8)]
    minutes: u64,
    /// Inject no faults
    #[arg(long)]
    calm: bool,
    /// Inject only power cuts: of one server, of all, and in the middle of a write
    #[arg(long, conflicts_with = "calm")]
    power_cuts: bool,
    /// Inject only full disks, and kill and power-cut the servers on them
    #[arg(long, conflicts_with_all = ["calm", "power_cuts"])]
    full_disks: bool,
    /// Let disks lose flushed data at power cuts: a run must lose data, and a check must find it
    #[arg(long, conflicts_with = "calm")]
    lying_disks: bool,
    /// Print all events
    #[arg(long)]
    lines: bool,
    /// Parallel runs [default: one for each core]
    #[arg(long)]
    jobs: Option<usize>,
}

/// Runs seeds in parallel threads until one violates an invariant.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicU64::new(arguments.seed);
    let counts = Mutex::new(BTreeMap::new());
    let broken = Mutex::new(Vec::new());
    let until_broken = || -> Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= arguments.seed + arguments.seeds || !broken.lock().is_empty() {
                return Ok(());
            }
            let outcome = run_one(arguments, seed)?;
            if !outcome.violations.is_empty() {
                broken.lock().push(seed);
            }
            for (what, times) in outcome.counts {
                *counts.lock().entry(what).or_default() += times;
            }
        }
    };
    std::thread::scope(|scope| {
        let threads = (0..arguments.jobs.unwrap_or(cores).max(1)).map(|_| scope.spawn(until_broken));
        let threads: Vec<_> = threads.collect();
        let ended = threads.into_iter().map(|thread| match thread.join() {
            Ok(ended) => ended,
            Err(_) => bail!("a run has panicked"),
        });
        ended.collect::<Vec<_>>().into_iter().collect::<Result<()>>()
    })?;
    judge(arguments, &broken.into_inner(), &counts.into_inner())
}

#[expect(clippy::print_stdout, reason = "its output is its figures")]
fn run_one(arguments: &Arguments, seed: u64) -> Result<Outcome> {
    let trial = Trial {
        seed,
        minutes: arguments.minutes,
        faults: match (arguments.calm, arguments.power_cuts, arguments.full_disks) {
            (true, ..) => Faults::None,
            (_, true, _) => Faults::PowerCuts,
            (.., true) => Faults::FullDisks,
            _ => Faults::All,
        },
        with_lying_disks: arguments.lying_disks,
    };
    let began = std::time::Instant::now();
    let outcome = run::run(&trial)?;
    let took = began.elapsed().as_secs_f64();
    let mut told = String::new();
    if arguments.lines {
        outcome.lines.iter().for_each(|line| told.push_str(&format!("{line}\n")));
    }
    told.push_str(&format!(
        "seed {seed}: hash {:016x}, {} operations, {took:.1} s",
        outcome.hash, outcome.operations
    ));
    for violation in &outcome.violations {
        told.push_str(&format!("\n  {violation}"));
    }
    println!("{told}");
    Ok(outcome)
}

#[expect(clippy::print_stdout, reason = "its output is its figures")]
fn judge(arguments: &Arguments, broken: &[u64], counts: &BTreeMap<&'static str, u64>) -> Result<()> {
    for (what, times) in counts {
        println!("{times:>8} {what}");
    }
    if arguments.lying_disks {
        ensure!(!broken.is_empty(), "no check found that disks lost flushed data");
        return Ok(());
    }
    ensure!(
        broken.is_empty(),
        "seeds {broken:?} violate an invariant; `--seed S --seeds 1 --lines` shows the events before it"
    );
    if arguments.seeds >= 20 && !arguments.calm && !arguments.power_cuts && !arguments.full_disks {
        check_met(counts, &faults::KINDS)?;
        check_met(counts, &intruder::KINDS)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
