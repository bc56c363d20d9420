//! A fleet: partitions of its ids, messages, connections and commands.

pub mod control;
pub mod messages;
pub mod network;
pub mod partition;
