//! Objects: reads, and the writer of published ones.

mod answer;
pub(crate) mod command;
mod plan;
pub(crate) mod ranges;
pub(crate) mod read;
pub(crate) mod sums;
pub(crate) mod writer;
