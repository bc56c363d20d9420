//! Reads: from one replica, from all of them, and the choice of the replica.

pub(crate) mod available;
pub(crate) mod read_latency;
pub(crate) mod strict;
