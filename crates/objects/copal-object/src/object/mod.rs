//! Objects: reads, the writer of published ones, and free ranges beside them.

mod answer;
pub(crate) mod command;
pub(crate) mod free_range;
pub(crate) mod placement_class;
mod plan;
pub(crate) mod ranges;
pub(crate) mod read;
pub(crate) mod writer;
