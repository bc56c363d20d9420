//! Available reads: from one replica at a time, chosen by its latency, hedged by a second one.

pub(crate) mod available;
pub(crate) mod file_read;
pub(crate) mod read_latency;
