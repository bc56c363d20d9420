//! Search over the states of the model, and its output.

use super::invariants::check;
use super::moves::{PUBLISHED, SAFE};
use super::setup::ModelSetup;
use stateright::{Checker, HasDiscoveries, Model};
use std::time::Instant;

/// Result of a search.
pub(super) struct SearchResult {
    /// The shortest path to a violation, and its description.
    pub(super) violation: Option<String>,
    /// Whether a state with two snapshots was reached.
    pub(super) was_published: bool,
}

/// Number of states of a search: few among other tests, many if `COPAL_MODEL_STATES` asks for that.
pub(super) fn limit() -> usize {
    let asked = std::env::var("COPAL_MODEL_STATES").ok();
    asked.and_then(|states| states.parse().ok()).unwrap_or(1_000_000)
}

/// Visits up to about `limit` states, breadth first, and prints their number.
pub(super) fn search(name: &str, setup: &ModelSetup, limit: usize) -> SearchResult {
    let started = Instant::now();
    let checker = setup
        .clone()
        .checker()
        .threads(2)
        .target_state_count(limit)
        .finish_when(HasDiscoveries::AnyFailures)
        .spawn_bfs()
        .join();
    let path = checker.discovery(SAFE);
    let end = match (&path, checker.state_count() < limit) {
        (Some(_), _) => "up to a violation",
        (None, true) => "which are all",
        (None, false) => "and there are more",
    };
    println!(
        "{name}: {} states, {} of them different, {} steps deep, {end}, {:.1} s",
        checker.state_count(),
        checker.unique_state_count(),
        checker.max_depth(),
        started.elapsed().as_secs_f64(),
    );
    SearchResult {
        violation: path.map(|path| {
            let violation = check(path.last_state()).expect_err("it ends where it is wrong");
            let moves = path.into_actions();
            let moves: Vec<String> = moves.iter().map(|step| format!("{step:?}")).collect();
            format!("{}\n{violation}", moves.join("\n"))
        }),
        was_published: checker.discovery(PUBLISHED).is_some(),
    }
}
