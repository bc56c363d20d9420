//! `copal-sim dedup` and `copal-sim deletion`: a cluster that backs up its VMs, or deletes snapshots, on a
//! virtual clock.
//!
//! Paper: low-profile-dedup §5 (tables 1, 2 and 3, figure 4). Design: docs/design/backup.md#the-simulator
//! Traces of ids replace bytes, events replace threads. Equal arguments give equal figures, byte for byte.
//! Copal's own scheme uses product code for its decisions ([`copal`] lists it); the compared schemes are step
//! functions.
//! Not here: memory of a real agent, cost of chunking (benches measure both).

mod collaborative;
mod copal;
pub(crate) mod deletion;
mod dirty_bit;
mod engine;
mod hosts;
mod inputs;
mod outcome;
mod popular_set;
mod report;
mod sizes;
mod synchronous;
#[cfg(test)]
mod tests;
mod trace;

use anyhow::{Result, ensure};
use copal_agent::rounds::RoundCount;
use hosts::Hosts;
use outcome::Outcome;
use sizes::{Fleet, Placement, Sizes};
use std::path::PathBuf;
use trace::Trace;

/// Default number of rounds of the paper's scheme.
const PAPER_ROUNDS: u32 = 12;
/// Directory of a file system in memory, used if there: detectors flush their files.
const SHARED_MEMORY: &str = "/dev/shm";

/// Simulated scheme.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scheme {
    /// Send dirty segments, without deduplication
    DirtyBit,
    /// Stages with a barrier after each
    Synchronous,
    /// The paper's rounds
    Collaborative,
    /// Copal's own
    Copal,
    /// All of them, one after the other
    All,
}

/// Arguments of `copal-sim dedup`; the defaults are the paper's cluster.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// Hosts that have VMs
    #[arg(long, default_value_t = 100)]
    pub(crate) hosts: usize,
    /// VMs, 36.5 GB on average
    #[arg(long, default_value_t = 2500)]
    pub(crate) vms: usize,
    /// The largest VM, times the average
    #[arg(long, default_value_t = 20.0)]
    pub(crate) skew: f64,
    /// Distribution of the sizes
    #[arg(long, value_enum, default_value_t = Sizes::Lognormal)]
    pub(crate) sizes: Sizes,
    /// Assignment of VMs to hosts
    #[arg(long, value_enum, default_value_t = Placement::Balanced)]
    pub(crate) placement: Placement,
    /// Scheme to run
    #[arg(long, value_enum, default_value_t = Scheme::All)]
    pub(crate) scheme: Scheme,
    /// Rounds of a job [default: 12 for the paper's scheme, the agents' own choice for Copal's]
    #[arg(long)]
    pub(crate) rounds: Option<u32>,
    /// Number of 4 KiB chunks for each id
    #[arg(long, default_value_t = 1000)]
    pub(crate) scale: u64,
    /// Days; only the last is shown, detectors learn from those before
    #[arg(long, default_value_t = 2)]
    pub(crate) days: u32,
    /// Number of slow hosts
    #[arg(long, default_value_t = 0)]
    pub(crate) slow: usize,
    /// Slowdown of the slow hosts
    #[arg(long, default_value_t = 10.0)]
    pub(crate) slowdown: f64,
    /// Divisor of a fleet's number of partitions
    #[arg(long, default_value_t = 4)]
    pub(crate) fewer_partitions: u32,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Directory for the detectors' files [default: /dev/shm, or the directory of temporary files]
    #[arg(long)]
    pub(crate) scratch: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// Result of a run.
pub(crate) struct Found {
    fleet: Fleet,
    outcomes: Vec<Outcome>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let found = simulate(arguments)?;
    report::print(arguments, &found);
    Ok(())
}

impl Arguments {
    fn check(&self) -> Result<()> {
        ensure!(
            (1..=65_535).contains(&self.hosts) && (self.hosts..1 << 24).contains(&self.vms),
            "--hosts must be from 1 to 65535, and --vms no less"
        );
        ensure!(self.skew >= 1.0, "--skew must be at least 1: the largest VM by the average");
        ensure!(self.scale >= 1, "--scale must be at least 1");
        ensure!(self.days >= 1, "--days must be at least 1");
        ensure!(self.fewer_partitions >= 1, "--fewer-partitions must be at least 1");
        ensure!(self.rounds != Some(0), "--rounds must be at least 1");
        ensure!(
            self.slow <= self.hosts && self.slowdown >= 1.0,
            "--slow must not exceed the number of hosts, and --slowdown must be at least 1"
        );
        Ok(())
    }

    fn has(&self, scheme: Scheme) -> bool {
        self.scheme == scheme || self.scheme == Scheme::All
    }
}

/// Simulates the schemes one after the other.
pub(crate) fn simulate(arguments: &Arguments) -> Result<Found> {
    arguments.check()?;
    let size = (arguments.hosts, arguments.vms);
    let fleet = Fleet::draw(size, arguments.sizes, arguments.skew, arguments.placement, arguments.seed);
    let trace = Trace::new(fleet.dirty_bytes(), arguments.scale, arguments.seed);
    let hosts = Hosts { fleet: &fleet, slow: arguments.slow, slowdown: arguments.slowdown };
    let mut outcomes = Vec::new();
    if arguments.has(Scheme::DirtyBit) {
        outcomes.push(dirty_bit::run(&hosts, &trace));
    }
    if arguments.has(Scheme::Synchronous) || arguments.has(Scheme::Collaborative) {
        let (stored, chunks) = popular_set::store(&hosts, &trace, arguments.days - 1);
        if arguments.has(Scheme::Synchronous) {
            outcomes.push(synchronous::run(&hosts, &trace, (&stored, chunks), false));
            outcomes.push(synchronous::run(&hosts, &trace, (&stored, chunks), true));
        }
        if arguments.has(Scheme::Collaborative) {
            let rounds = arguments.rounds.unwrap_or(PAPER_ROUNDS);
            outcomes.push(collaborative::run(&hosts, &trace, rounds, (&stored, chunks)));
        }
    }
    if arguments.has(Scheme::Copal) {
        outcomes.push(copal_days(arguments, &hosts, &trace)?);
    }
    Ok(Found { fleet, outcomes })
}

fn copal_days(arguments: &Arguments, hosts: &Hosts<'_>, trace: &Trace) -> Result<Outcome> {
    let scratch = match &arguments.scratch {
        Some(scratch) => scratch.clone(),
        None if PathBuf::from(SHARED_MEMORY).is_dir() => SHARED_MEMORY.into(),
        None => std::env::temp_dir(),
    };
    let rules = copal::Rules { rounds: arguments.rounds.map_or(RoundCount::Auto, RoundCount::Exactly) };
    let mut domain = copal::Domain::open(hosts.count(), trace, arguments.fewer_partitions, &scratch)?;
    let mut last = domain.job(hosts, trace, rules)?;
    for _ in 1..arguments.days {
        last = domain.job(hosts, trace, rules)?;
    }
    Ok(last)
}
