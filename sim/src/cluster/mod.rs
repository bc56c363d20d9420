//! A whole cluster in one thread, from one seed: what ships of clients, masters and data servers, over a network, disks and a
//! time that are simulated.
//!
//! Rows lie in real stores over fault devices; tasks, connections, clocks and threads come from a
//! [`Machine`](copal_client::machine::Machine) for each process. What goes wrong is drawn; what clients were told is kept, and
//! everything must follow from it.
//!
//! Design: docs/design/cluster.md#the-simulator
//!
//! Not here: rules without a network, searched in all orders (`cargo xtask cluster-model`); real processes (`cluster-chaos`).

mod checks;
mod database;
mod faults;
mod history;
mod hosts;
mod network;
mod process;
mod run;
mod workload;
mod world;

use anyhow::{Result, ensure};
use clap::Args;
use run::{Trial, check_met};
use std::collections::BTreeMap;

/// What a simulation of clusters takes.
#[derive(Args)]
pub(crate) struct Arguments {
    /// Runs, each of a seed of its own
    #[arg(long, default_value_t = 20)]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Virtual minutes in which things go wrong
    #[arg(long, default_value_t = 8)]
    minutes: u64,
    /// Nothing goes wrong
    #[arg(long)]
    calm: bool,
    /// Print all that happened
    #[arg(long)]
    lines: bool,
}

/// Runs seeds one after the other until one is violated.
#[expect(clippy::print_stdout, reason = "its figures are its output")]
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    for seed in arguments.seed..arguments.seed + arguments.seeds {
        let trial = Trial {
            seed,
            minutes: arguments.minutes,
            with_faults: !arguments.calm,
        };
        let began = std::time::Instant::now();
        let outcome = run::run(&trial)?;
        let took = began.elapsed().as_secs_f64();
        if arguments.lines {
            outcome.lines.iter().for_each(|line| println!("{line}"));
        }
        println!(
            "seed {seed}: hash {:016x}, {} operations, {took:.1} s",
            outcome.hash, outcome.operations
        );
        for violation in &outcome.violations {
            println!("  {violation}");
        }
        ensure!(
            outcome.violations.is_empty(),
            "seed {seed} breaks what must hold; `--seed {seed} --seeds 1 --lines` shows the way there"
        );
        for (what, times) in outcome.counts {
            *counts.entry(what).or_default() += times;
        }
    }
    for (what, times) in &counts {
        println!("{times:>8} {what}");
    }
    if arguments.seeds >= 20 && !arguments.calm {
        check_met(&counts, &faults::KINDS)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
