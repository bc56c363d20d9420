//! A search and its result.

use crate::{
    moves::{EQUAL, HELD, TOLD},
    setup::SearchSetup,
};
use copal_volume::group::invariants::{check, check_equal};
use stateright::{Checker, HasDiscoveries, Model};
use std::time::Instant;

/// Result of a search.
pub(crate) struct SearchResult {
    /// The shortest sequence to a violation, and the violation.
    pub(crate) violation: Option<String>,
    /// Whether every state was visited.
    pub(crate) is_exhaustive: bool,
    /// Whether some create was reported as complete.
    pub(crate) was_complete: bool,
}

/// Number of states of a search: few among other tests, more if `COPAL_MODEL_STATES` is set.
pub(crate) fn limit() -> usize {
    let asked = std::env::var("COPAL_MODEL_STATES").ok();
    asked.and_then(|states| states.parse().ok()).unwrap_or(250_000)
}

/// Visits up to about `limit` states, the nearest first, and prints their number.
pub(crate) fn search(name: &str, setup: &SearchSetup, limit: usize) -> SearchResult {
    let started = Instant::now();
    let checker = setup
        .clone()
        .checker()
        .threads(2)
        .target_state_count(limit)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let path = checker.discovery(TOLD).or_else(|| checker.discovery(EQUAL));
    let is_exhaustive = path.is_none() && checker.state_count() < limit;
    let end = match (&path, is_exhaustive) {
        (Some(_), _) => "up to a violation",
        (None, true) => "which are all",
        (None, false) => "and there are more",
    };
    println!(
        "{name}: {} states, {} of them different, {} steps deep, {}, {:.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        end,
        started.elapsed().as_secs_f64(),
    );
    SearchResult {
        violation: path.map(|path| {
            let state = path.last_state();
            let (seen, files) = (state.seen(), state.files(setup));
            let told = check(&seen, &files).and_then(|()| check_equal(&seen, &files));
            let moves: Vec<String> = path.into_actions().iter().map(|step| format!("{step:?}")).collect();
            format!(
                "{}\n{}",
                moves.join("\n"),
                told.map_or_else(|error| error.to_string(), |()| String::new())
            )
        }),
        is_exhaustive,
        was_complete: checker.discovery(HELD).is_some(),
    }
}
