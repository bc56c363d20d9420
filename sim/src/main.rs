//! Simulators: the real rules of the layers, driven without a disk by synthetic or recorded work.
//!
//! - `copal-sim rules` runs adjusting rules and filter units of `copal-filter` over the shape of an LSM tree
//!   and counts reads.
//! - `copal-sim availability` lets servers fail and counts lost volumes.
//! - `copal-sim dedup` and `deletion` back up the VMs of a cluster and delete their snapshots.
//! - `copal-sim market` compares plans of an engine's memory, and holds the market to its gate.
//! - `copal-sim cluster` runs whole clusters under faults.
//!
//! All random numbers come from one seed; equal arguments give equal figures on every machine.
//! Not here: the engine (`copal-kv`), whose benches measure the same rules on a device.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool prints its results, and its errors on standard error"
)]

mod availability;
mod cluster;
mod dedup;
mod market;
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
    /// Count reads per Get of filter units and adjusting rules over an LSM tree
    Rules(rules::Arguments),
    /// Simulate the paper's table 1: a million Gets on 50,000 tables, beside the paper's figures
    Table1(rules::table1::TableArguments),
    /// Count volumes that lose their last in-sync replica, by simulation and by the paper's formulas
    Availability(availability::Arguments),
    /// Compare plans of an engine's memory: shares, single changes, and the market
    Market(market::MarketArguments),
    /// Run whole clusters in one thread with faults of all kinds, and check their invariants
    Cluster(cluster::Arguments),
    /// Simulate a day's backup of all VMs of a cluster by scheme, beside the paper's tables 1 and 2
    Dedup(dedup::Arguments),
    /// Simulate the deletion of snapshots of all VMs by method, beside the paper's table 3
    Deletion(dedup::deletion::Arguments),
    /// Write a synthetic trace of Gets for `rules --trace`; `Store::record_gets` writes real ones
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
        Simulator::Market(arguments) => market::run(&arguments),
        Simulator::Availability(arguments) => availability::run(&arguments),
        Simulator::Cluster(arguments) => cluster::run(&arguments),
        Simulator::Dedup(arguments) => dedup::run(&arguments),
        Simulator::Deletion(arguments) => dedup::deletion::run(&arguments),
        Simulator::Record(arguments) => rules::record(&arguments),
    }
}
