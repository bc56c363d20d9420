//! The engine: steps groups, flushes and checkpoints forward.
//!
//! It has no thread of its own: callers that submit run it, and completions.

pub(crate) mod admission;
pub(crate) mod close;
pub(crate) mod pump;
pub(crate) mod steps;
