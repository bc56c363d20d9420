//! Objects: reads, and the writer of published ones.

pub(crate) mod read;
pub(crate) mod sums;
pub(crate) mod writer;
