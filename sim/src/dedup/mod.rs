//! `copal-sim dedup` and `copal-sim deletion`: a cluster that backs up its VMs, or deletes snapshots, on a
//! virtual clock.
//!
//! Paper: low-profile-dedup §5 (tables 1, 2 and 3, figure 4). Design: docs/design/backup.md#the-simulator
//! Traces of ids instead of bytes, events instead of threads; the same arguments give the same figures, byte
//! for byte. Copal's own scheme decides by the code that ships ([`copal`] says what of it is), those it is
//! compared with are step functions.
//! Not here: memory of a real agent, and what chunking costs (benches measure both).

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

/// Rounds of the paper's scheme, unless told otherwise.
const PAPER_ROUNDS: u32 = 12;
/// Memory that is a file system, where there is one: detectors flush what they write.
const SHARED_MEMORY: &str = "/dev/shm";

/// Which scheme runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Scheme {
    /// Dirty segments are sent, nothing else
    DirtyBit,
    /// Stages with a barrier after each
    Synchronous,
    /// The paper's rounds
    Collaborative,
    /// Ours
    Copal,
    /// One after the other
    All,
}

/// What `copal-sim dedup` takes; the defaults are the paper's cluster.
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
    /// How sizes are distributed
    #[arg(long, value_enum, default_value_t = Sizes::Lognormal)]
    pub(crate) sizes: Sizes,
    /// Which host has which VM
    #[arg(long, value_enum, default_value_t = Placement::Balanced)]
    pub(crate) placement: Placement,
    /// Which scheme runs
    #[arg(long, value_enum, default_value_t = Scheme::All)]
    pub(crate) scheme: Scheme,
    /// Rounds of a job [default: 12 of the paper's; ours as its agents would choose]
    #[arg(long)]
    pub(crate) rounds: Option<u32>,
    /// Chunks of 4 KiB that one id stands for
    #[arg(long, default_value_t = 1000)]
    pub(crate) scale: u64,
    /// Days; the last is shown, those before are for what detectors learn
    #[arg(long, default_value_t = 2)]
    pub(crate) days: u32,
    /// Hosts that are slow
    #[arg(long, default_value_t = 0)]
    pub(crate) slow: usize,
    /// How many times slower they are
    #[arg(long, default_value_t = 10.0)]
    pub(crate) slowdown: f64,
    /// So many times fewer partitions than a fleet has
    #[arg(long, default_value_t = 4)]
    pub(crate) fewer_partitions: u32,
    /// Everything random comes from it
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// A directory for the detectors' files [default: /dev/shm, or where temporary files are]
    #[arg(long)]
    pub(crate) scratch: Option<PathBuf>,
    /// One JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a run came to.
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
            "--hosts is to be from 1 to 65535, and --vms no less"
        );
        ensure!(self.skew >= 1.0, "--skew is to be at least 1: the largest VM by the average");
        ensure!(self.scale >= 1, "--scale is to be at least 1");
        ensure!(self.days >= 1, "--days is to be at least 1");
        ensure!(self.fewer_partitions >= 1, "--fewer-partitions is to be at least 1");
        ensure!(self.rounds != Some(0), "--rounds is to be at least 1");
        ensure!(
            self.slow <= self.hosts && self.slowdown >= 1.0,
            "--slow is to be no more than there are hosts, and --slowdown at least 1"
        );
        Ok(())
    }

    fn has(&self, scheme: Scheme) -> bool {
        self.scheme == scheme || self.scheme == Scheme::All
    }
}

/// Plays the schemes one after the other.
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
