//! Aged stores on models of disks: filled, overwritten for long, and then measured in virtual time. Beside them a new
//! store on a disk with a limit of commands, in real time.
//!
//! The store is the real one; the model gives the time of each command. One thread runs all clients: a client waits for
//! the answer to its operation and then begins the next one.

pub(crate) mod ageing;
mod clients;
pub(crate) mod crossover;
mod limited;
mod store;
