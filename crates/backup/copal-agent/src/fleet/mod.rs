//! Members of a fleet: their partitions, messages, connections and commands.

pub mod control;
pub mod members;
pub mod messages;
pub mod network;
pub mod partition;
