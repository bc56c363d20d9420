//! A step of the probe: several loads that take turns in random order.

use super::{
    error::ProbeError,
    load::{LoadRunner, LoadSlice, ProbeLoad},
    statistics::{median, quantile},
};
use std::time::Duration;

/// Rounds of a step, and the least number when its time is over.
const ROUNDS: usize = 5;
const ROUNDS_LEAST: usize = 3;
/// Commands of a slice, as far as its time allows.
const SLICE_COMMANDS: u64 = 50;

/// Measured slices of one load.
#[derive(Debug, Default)]
pub(super) struct LoadSeries {
    /// Median time of a command in each round.
    medians: Vec<Duration>,
    /// Time of a lone command in each round.
    lone_times: Vec<Duration>,
    /// Commands a second in each round.
    rates: Vec<f64>,
}

impl LoadSeries {
    fn note(&mut self, mut slice: LoadSlice) {
        self.lone_times.push(slice.lone_time());
        self.medians.push(quantile(&mut slice.times, 0.5));
        self.rates.push(slice.rate);
    }

    /// Median over the rounds of the median time of a command.
    pub(super) fn time(&self) -> Duration {
        quantile(&mut self.medians.clone(), 0.5)
    }

    /// Median over the rounds of [`LoadSlice::lone_time`].
    pub(super) fn lone_time(&self) -> Duration {
        quantile(&mut self.lone_times.clone(), 0.5)
    }

    /// The same of the fast rounds: the tenth part of them. Other work on the machine slows some rounds down.
    pub(super) fn fast_time(&self) -> Duration {
        quantile(&mut self.medians.clone(), 0.1)
    }

    /// Median over the rounds of the commands a second.
    pub(super) fn rate(&self) -> f64 {
        median(&self.rates)
    }
}

/// Runs `loads` in turns within about `limit`; returns the series of each. `is_wanted` may drop loads after the
/// first round.
pub(super) fn take_turns(
    runner: &mut LoadRunner<'_>,
    loads: &[ProbeLoad],
    limit: Duration,
    is_wanted: impl Fn(&[LoadSeries], usize) -> bool,
) -> Result<Vec<LoadSeries>, ProbeError> {
    let begin = runner.now();
    let mut series: Vec<LoadSeries> = loads.iter().map(|_| LoadSeries::default()).collect();
    let slice_limit = limit / (ROUNDS * loads.len()) as u32;
    for round in 0..ROUNDS {
        if round >= ROUNDS_LEAST && runner.now().saturating_sub(begin) > limit {
            break;
        }
        let mut order: Vec<usize> = (0..loads.len()).collect();
        for place in (1..order.len()).rev() {
            order.swap(place, runner.random().below(place as u64 + 1) as usize);
        }
        for place in order {
            if round == 0 || is_wanted(&series, place) {
                let commands = SLICE_COMMANDS.max(4 * u64::from(loads[place].depth));
                let slice = runner.run(loads[place], commands, slice_limit)?;
                series[place].note(slice);
            }
        }
    }
    Ok(series)
}

/// Commands a second of a load once a burst is over. The load runs in windows of equal time, for twice the time
/// of the burst behind it, and at most for `limit`.
pub(super) fn steady_rate(
    runner: &mut LoadRunner<'_>,
    load: ProbeLoad,
    limit: Duration,
) -> Result<f64, ProbeError> {
    const WINDOWS: u32 = 12;
    const WINDOWS_LEAST: usize = 4;
    let begin = runner.now();
    let mut rates = Vec::new();
    loop {
        let commands = u64::MAX;
        rates.push(runner.run(load, commands, limit / WINDOWS)?.rate);
        let burst = super::statistics::burst(&rates);
        let is_steady = rates.len() >= WINDOWS_LEAST && rates.len() >= 3 * burst;
        if is_steady || runner.now().saturating_sub(begin) >= limit {
            return Ok(median(&rates[burst.min(rates.len() - 1)..]));
        }
    }
}
