//! The engine: advances groups, flushes and checkpoints.
//!
//! It has no thread: submitting callers and completions run it.

pub(crate) mod admission;
pub(crate) mod cleaner;
pub(crate) mod close;
pub(crate) mod inline_batch;
pub(crate) mod pump;
pub(crate) mod shortage;
pub(crate) mod steps;
