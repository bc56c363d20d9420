//! Simulators: the real rules of the layers, driven without a disk by synthetic or recorded work.
//!
//! `copal-sim rules` runs adjusting rules and filter units of `copal-filter` over an LSM tree's shape and
//! counts reads; `copal-sim availability` fails servers and counts volumes that die; `copal-sim dedup` and
//! `deletion` back up and free the VMs of a cluster. Everything random comes from one seed; the same
//! arguments give the same figures on every machine.
//! Not here: the engine (`copal-kv`), whose benches measure the same rules on a device.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool prints, and says on standard error what went wrong"
)]

mod availability;
mod cluster;
mod dedup;
mod rules;

use anyhow::Result;
use clap::{Parser, Subcommand};
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "copal-sim", about = "Simulators of Copal's rules")]
struct Arguments {
    #[command(subcommand)]
    simulator: Simulator,
}

#[derive(Subcommand)]
enum Simulator {
    /// Filter units and adjusting rules over an LSM tree: reads per Get
    Rules(rules::Arguments),
    /// The paper's table 1: a million Gets on 50,000 tables, its figures beside ours
    Table1(rules::table1::TableArguments),
    /// Volumes that lose their last whole copy: events over placement and recovery queue, beside the paper's
    /// formulas
    Availability(availability::Arguments),
    /// A whole cluster in one thread, from one seed: faults of all kinds, and what must hold all the same
    Cluster(cluster::Arguments),
    /// A day's backup of all VMs of a cluster, by scheme: the paper's tables 1 and 2 beside ours
    Dedup(dedup::Arguments),
    /// Snapshots of all VMs that are deleted, by method: the paper's table 3 beside ours
    Deletion(dedup::deletion::Arguments),
    /// Write a synthetic trace of Gets, as `rules --trace` reads it; real ones come from `Store::record_gets`
    Record(rules::RecordArguments),
}

fn main() -> ExitCode {
    match run(Arguments::parse().simulator) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("copal-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(simulator: Simulator) -> Result<()> {
    match simulator {
        Simulator::Rules(arguments) => rules::run(&arguments),
        Simulator::Table1(arguments) => rules::table1::run(&arguments),
        Simulator::Availability(arguments) => availability::run(&arguments),
        Simulator::Cluster(arguments) => cluster::run(&arguments),
        Simulator::Dedup(arguments) => dedup::run(&arguments),
        Simulator::Deletion(arguments) => dedup::deletion::run(&arguments),
        Simulator::Record(arguments) => rules::record(&arguments),
    }
}
