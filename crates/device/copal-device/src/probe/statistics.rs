//! Medians, knees, cliffs and bursts, as pure functions of measured numbers.

use std::time::Duration;

/// The value below which `share` of the values lie; zero without values.
pub(super) fn quantile(values: &mut [Duration], share: f64) -> Duration {
    values.sort_unstable();
    let place = (values.len() as f64 * share) as usize;
    values.get(place.min(values.len().saturating_sub(1))).copied().unwrap_or_default()
}

/// The middle one of some numbers; 0 without numbers.
pub(super) fn median(numbers: &[f64]) -> f64 {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or_default()
}

/// Commands a second between the begins of two bursts, or of all commands if only one other burst began; `None` if the
/// commands, which ended at `ends`, were served evenly. A limit that lets so many commands pass in each window of time
/// serves them in bursts, and the rate within one says nothing.
pub(super) fn rate_of_bursts(ends: &[Duration]) -> Option<f64> {
    let gap = |place: usize| ends[place].saturating_sub(ends[place - 1]);
    let longest = (1..ends.len()).map(gap).max()?;
    let begins: Vec<usize> = (1..ends.len()).filter(|&place| gap(place) > longest / 2).collect();
    let (first, last) = (*begins.first()?, *begins.last()?);
    let time = ends[last].saturating_sub(ends[first]);
    // Most of the time no command ends, and each burst has several.
    let is_even = 4 * begins.len() > ends.len() || longest * begins.len() as u32 * 2 < *ends.last()?;
    match time.is_zero() {
        _ if is_even => None,
        true => Some(ends.len() as f64 / ends.last()?.as_secs_f64()),
        false => Some((last - first) as f64 / time.as_secs_f64()),
    }
}

/// The usual one of some times: the median; or the mean if it is three times as long, since then most are of bursts
/// (see [`rate_of_bursts`]). Single slow commands do not count: the slowest fiftieth part is left out of the mean.
pub(super) fn usual(times: &mut [Duration]) -> Duration {
    let median = quantile(times, 0.5);
    let kept = times.len() - (times.len() / 50).max(1).min(times.len());
    let mean = times[..kept].iter().sum::<Duration>() / u32::try_from(kept.max(1)).unwrap_or(u32::MAX);
    if mean > 3 * median { mean } else { median }
}

/// A cliff: the smallest size whose half takes at least 1.3 times as long, and whose double takes at most a
/// tenth longer. Returns the size and that quotient. `times` has ascending sizes, each twice the one before.
pub(super) fn cliff(times: &[(u32, Duration)]) -> Option<(u32, f64)> {
    times.windows(3).find_map(|part| {
        let [half, size, double] = [part[0], part[1], part[2]];
        let quotient = half.1.as_secs_f64() / size.1.as_secs_f64();
        let is_plateau = double.1.as_secs_f64() <= 1.1 * size.1.as_secs_f64();
        (quotient >= 1.3 && is_plateau).then_some((size.0, quotient))
    })
}

/// The knee: the depth behind the last doubling that gains a tenth over all smaller depths. `rates` has
/// ascending depths from 1 on.
pub(super) fn knee(rates: &[(u32, f64)]) -> u32 {
    let mut best = rates.first().map_or(0.0, |first| first.1);
    let mut knee = 1;
    for &(depth, rate) in rates.iter().skip(1) {
        if rate >= 1.1 * best {
            knee = depth;
        }
        best = best.max(rate);
    }
    knee
}

/// The number of first windows that a burst took: those before the last run of windows whose rates are within
/// half of the last one. 0: no burst.
pub(super) fn burst(rates: &[f64]) -> usize {
    let last = rates.last().copied().unwrap_or_default();
    let is_steady = |rate: &f64| *rate <= 1.5 * last && *rate >= last / 1.5;
    rates.len() - rates.iter().rev().take_while(|rate| is_steady(rate)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(times: &[(u32, u64)]) -> Vec<(u32, Duration)> {
        times.iter().map(|&(size, time)| (size, Duration::from_micros(time))).collect()
    }

    #[test]
    fn a_cliff_takes_a_drop_and_a_plateau() {
        let page = micros(&[(512, 98), (1024, 98), (2048, 98), (4096, 23), (8192, 23), (16384, 24)]);
        assert_eq!(cliff(&page).map(|found| found.0), Some(4096));
        assert_eq!(cliff(&micros(&[(512, 40), (1024, 39), (2048, 40), (4096, 41), (8192, 44)])), None);
        // Noise of one size: the next one is slow again.
        assert_eq!(cliff(&micros(&[(512, 98), (1024, 50), (2048, 97), (4096, 96)])), None);
        assert_eq!(cliff(&[]), None);
    }

    #[test]
    fn a_knee_is_the_last_doubling_that_gains_a_tenth() {
        assert_eq!(knee(&[(1, 23.0), (2, 47.0), (4, 93.0), (8, 176.0), (16, 176.0), (32, 180.0)]), 8);
        assert_eq!(knee(&[(1, 120.0), (2, 121.0), (4, 120.0)]), 1);
        // A dip makes no new knee.
        assert_eq!(knee(&[(1, 100.0), (2, 200.0), (4, 150.0), (8, 205.0)]), 2);
        assert_eq!(knee(&[]), 1);
    }

    #[test]
    fn a_burst_is_the_fast_windows_at_the_begin() {
        assert_eq!(burst(&[3000.0, 3000.0, 120.0, 120.0]), 2);
        assert_eq!(burst(&[120.0, 130.0, 110.0, 120.0]), 0);
        assert_eq!(burst(&[]), 0);
    }

    #[test]
    fn bursts_show_in_the_mean_and_one_slow_command_does_not() {
        let times = |of: &[(usize, u64)]| -> Vec<Duration> {
            of.iter().flat_map(|&(count, micros)| vec![Duration::from_micros(micros); count]).collect()
        };
        assert_eq!(usual(&mut times(&[(99, 100), (1, 90_000)])), Duration::from_micros(100));
        let bursts = usual(&mut times(&[(220, 100), (20, 98_000)]));
        assert!((6_000..9_000).contains(&(bursts.as_micros() as u64)), "{bursts:?}");
        assert_eq!(usual(&mut []), Duration::ZERO);
        // Five at once in each window of 100 ms, from the middle of a burst to the middle of another one.
        let ends: Vec<Duration> =
            (3..29).map(|command| Duration::from_millis(command / 5 * 100 + 1)).collect();
        assert_eq!(rate_of_bursts(&ends), Some(50.0));
        let even: Vec<Duration> = (1..30).map(|command| Duration::from_millis(command * 8)).collect();
        assert_eq!(
            (rate_of_bursts(&even), rate_of_bursts(&ends[..2]), rate_of_bursts(&[])),
            (None, None, None)
        );
    }

    #[test]
    fn quantiles_of_few_values() {
        let mut values: Vec<Duration> = [5, 1, 3].map(Duration::from_secs).into();
        assert_eq!(quantile(&mut values, 0.5), Duration::from_secs(3));
        assert_eq!(quantile(&mut values, 1.0), Duration::from_secs(5));
        assert_eq!(quantile(&mut [], 0.5), Duration::ZERO);
        assert_eq!((median(&[3.0, 1.0, 2.0]), median(&[])), (2.0, 0.0));
    }
}
