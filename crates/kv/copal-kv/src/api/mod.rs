//! Public interface: stores, keyspaces, batches, options, counters.

pub(crate) mod approximate;
mod care;
pub(crate) mod keyspace;
pub(crate) mod repair;
pub(crate) mod shape;
pub(crate) mod stats;
pub(crate) mod store;
