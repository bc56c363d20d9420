//! Pauses of flusher and worker before they check or retry.

use std::time::Duration;

/// Between two checks for space that a full store could free.
pub(super) const LOOK_WHEN_FULL: Duration = Duration::from_millis(500);
/// Longest pause after repeated failures: a damaged table stays damaged.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);
