//! `copal-sim availability`: volumes that lose their last in-sync replica, simulated with the real rules and
//! computed by formulas.
//!
//! Paper:  beanfs §6
//! Servers fail at random; placement and recovery queue are those of `copal-volume`. Events belong to
//! servers, not to volumes, so two years of 200 servers take about 2,600 of them.
//! Not here: the failure detector and the copying itself (their times are inputs), failures of whole racks.

pub(crate) mod closed_form;
mod episode;
mod failures;
mod report;
#[cfg(test)]
mod tests;

use anyhow::{Result, ensure};
use closed_form::{DeathRates, Rates};
use episode::{Cluster, Dead};

const SECONDS_A_YEAR: f64 = 365.25 * 86_400.0;

/// Arguments of `copal-sim availability`; the defaults are the worst case of the paper's figure 7.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Arguments {
    /// Data servers, one disk each
    #[arg(long, default_value_t = 200)]
    pub(crate) servers: u32,
    /// Volumes
    #[arg(long, default_value_t = 9_000_000)]
    pub(crate) volumes: u64,
    /// Years of one run
    #[arg(long, default_value_t = 2.0)]
    pub(crate) years: f64,
    /// Transient failures of a server per second
    #[arg(long, default_value_t = 19e-8)]
    pub(crate) transient_rate: f64,
    /// Permanent failures of a server per second
    #[arg(long, default_value_t = 1.5e-8)]
    pub(crate) permanent_rate: f64,
    /// Seconds until a server is in sync again after a transient failure
    #[arg(long, default_value_t = 930.0)]
    pub(crate) transient_time: f64,
    /// Average seconds from a permanent failure until its groups have new in-sync replicas
    #[arg(long, default_value_t = 2400.0)]
    pub(crate) permanent_time: f64,
    /// Seconds until a failure is declared permanent and copying starts
    #[arg(long, default_value_t = 1800.0)]
    pub(crate) declared_after: f64,
    /// Replicas of each volume (the formulas support three)
    #[arg(long, default_value_t = 3)]
    pub(crate) replicas: u8,
    /// Groups that the volumes are divided into
    #[arg(long, default_value_t = 65_536)]
    pub(crate) groups: u32,
    /// Number of runs; lost volumes are their average
    #[arg(long, default_value_t = 400)]
    pub(crate) runs: u32,
    /// Seed of all random numbers
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Totals of the runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// Failures of servers.
    pub(crate) failures: u64,
    /// Number of times when as many servers were down as a group has replicas.
    pub(crate) coincidences: u64,
    /// Groups that lost their last in-sync replica, by the number of permanent failures (the last: all).
    pub(crate) dead_groups: Vec<u64>,
    /// Groups copied by the queue, and the sum of the seconds from the failure to the end of the copy.
    pub(crate) copied: u64,
    pub(crate) copied_after_s: f64,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let found = simulate(arguments)?;
    report::print(arguments, &found);
    Ok(())
}

impl Arguments {
    pub(crate) fn rates(&self) -> Rates {
        Rates {
            transient_per_s: self.transient_rate,
            permanent_per_s: self.permanent_rate,
            transient_s: self.transient_time,
            permanent_s: self.permanent_time,
        }
    }

    /// Volumes times seconds of one run: the factor of a rate per volume and second.
    pub(crate) fn volume_seconds(&self) -> f64 {
        self.volumes as f64 * self.years * SECONDS_A_YEAR
    }

    /// Results of the formulas, if they apply to the arguments.
    pub(crate) fn formulas(&self) -> Option<(DeathRates, DeathRates)> {
        (self.replicas == 3).then(|| (closed_form::paper(self.rates()), closed_form::exact(self.rates())))
    }

    fn check(&self) -> Result<()> {
        ensure!(
            (1..=u32::from(u16::MAX)).contains(&self.servers) && u32::from(self.replicas) < self.servers,
            "--servers must be above --replicas, so that a lost replica can be replaced, and at most 65535"
        );
        ensure!(self.replicas > 0, "--replicas must be at least 1");
        ensure!((1..1 << 20).contains(&self.groups), "--groups must be from 1 to 1048575");
        ensure!(self.runs > 0, "--runs must be at least 1");
        let times = [self.years, self.transient_time, self.permanent_time];
        let rates = [self.transient_rate, self.permanent_rate, self.declared_after];
        ensure!(
            times.iter().all(|time| time.is_finite() && *time > 0.0)
                && rates.iter().all(|rate| rate.is_finite() && *rate >= 0.0),
            "years and recovery times must be above 0, rates and --declared-after must not be negative"
        );
        ensure!(self.transient_rate + self.permanent_rate > 0.0, "with both rates 0 nothing ever fails");
        ensure!(
            self.declared_after < self.permanent_time,
            "--permanent-time counts from the failure, so it must be above --declared-after ({} s)",
            self.declared_after
        );
        let expected = f64::from(self.servers)
            * self.years
            * SECONDS_A_YEAR
            * (self.transient_rate + self.permanent_rate)
            * f64::from(self.runs);
        ensure!(
            expected < 1e9,
            "{expected:.0} failures are too many to simulate; use lower rates, fewer years or fewer runs"
        );
        Ok(())
    }
}

/// Runs the simulation. Equal arguments give equal figures on every machine.
pub(crate) fn simulate(arguments: &Arguments) -> Result<Found> {
    arguments.check()?;
    let mut cluster = Cluster::new(arguments)?;
    let mut found = Found { dead_groups: vec![0; usize::from(arguments.replicas) + 1], ..Found::default() };
    for run in 0..arguments.runs {
        let episodes = failures::episodes(arguments, run, &mut found);
        for episode in episodes {
            let Dead { by_permanent, coincidences } = cluster.play(&episode, &mut found);
            found.coincidences += coincidences;
            for (sum, dead) in found.dead_groups.iter_mut().zip(by_permanent) {
                *sum += dead;
            }
        }
    }
    Ok(found)
}

impl Found {
    /// Lost volumes of an average run, by the number of permanent failures.
    pub(crate) fn dead_volumes(&self, arguments: &Arguments) -> Vec<f64> {
        let volumes_a_group = arguments.volumes as f64 / f64::from(arguments.groups);
        let average = |&groups: &u64| groups as f64 * volumes_a_group / f64::from(arguments.runs);
        self.dead_groups.iter().map(average).collect()
    }
}
