//! How long flusher and worker wait before they look, or try, again.

use std::time::Duration;

/// Longest time a `Deferred` write stays unlogged, and the first pause after a failure.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Between two looks at what a full store could free.
pub(super) const LOOK_WHEN_FULL: Duration = Duration::from_millis(500);
/// Longest pause after failures that repeat: a damaged table stays damaged.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);
