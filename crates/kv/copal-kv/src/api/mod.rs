//! What a program calls: stores, keyspaces, batches, options, counters.

mod care;
pub(crate) mod keyspace;
pub(crate) mod shape;
pub(crate) mod stats;
pub(crate) mod store;
