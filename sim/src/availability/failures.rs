//! Random failures of servers, one run at a time, split into episodes in which a group could be lost.

use super::{Arguments, Found, SECONDS_A_YEAR};
use crate::rules::random::Random;

/// One failure of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Failure {
    /// Seconds since the run began.
    pub(super) at_s: f64,
    pub(super) server: u32,
    pub(super) is_permanent: bool,
}

/// Failures of one run, split into episodes: an episode ends when all its failures have been repaired.
/// Returns only episodes in which as many failures overlapped as a group has replicas; in the others no group
/// can be lost.
///
/// Between episodes all replicas are in sync and lost servers are replaced, so each episode begins with the
/// first layout.
pub(super) fn episodes(arguments: &Arguments, run: u32, found: &mut Found) -> Vec<Vec<Failure>> {
    let mut random = Random(arguments.seed ^ (u64::from(run) + 1).wrapping_mul(0xd129_0cd4_3a5c_4b17));
    let rate = arguments.transient_rate + arguments.permanent_rate;
    let all_rate = rate * f64::from(arguments.servers);
    let end_s = arguments.years * SECONDS_A_YEAR;
    let (mut episodes, mut episode) = (Vec::new(), Vec::<Failure>::new());
    let (mut at_s, mut open_until_s) = (0.0, 0.0_f64);
    loop {
        // The draw is below 1, so this is never ln 0.
        at_s -= (1.0 - random.unit()).ln() / all_rate;
        if at_s > end_s || at_s > open_until_s {
            if most_open(arguments, &episode) >= usize::from(arguments.replicas) {
                episodes.push(std::mem::take(&mut episode));
            }
            episode.clear();
        }
        if at_s > end_s {
            return episodes;
        }
        let failure = Failure {
            at_s,
            server: random.below(u64::from(arguments.servers)) as u32,
            is_permanent: random.unit() * rate < arguments.permanent_rate,
        };
        found.failures += 1;
        open_until_s = open_until_s.max(at_s + longest_open_s(arguments, &failure));
        episode.push(failure);
    }
}

/// Upper bound of a failure's duration. Without other failures, all copies end within twice the average
/// copying time after the declaration; the bound is twice that.
fn longest_open_s(arguments: &Arguments, failure: &Failure) -> f64 {
    if failure.is_permanent {
        2.0 * (2.0 * arguments.permanent_time - arguments.declared_after)
    } else {
        arguments.transient_time
    }
}

fn most_open(arguments: &Arguments, episode: &[Failure]) -> usize {
    let open_at = |at_s: f64| {
        let began = episode.iter().filter(|failure| failure.at_s <= at_s);
        began.filter(|failure| failure.at_s + longest_open_s(arguments, failure) >= at_s).count()
    };
    episode.iter().map(|failure| open_at(failure.at_s)).max().unwrap_or(0)
}
