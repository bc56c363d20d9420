//! How long flusher and worker wait before they look, or try, again.

use std::time::Duration;

/// Between two looks at what a full store could free.
pub(super) const LOOK_WHEN_FULL: Duration = Duration::from_millis(500);
/// Longest pause after failures that repeat: a damaged table stays damaged.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(60);
