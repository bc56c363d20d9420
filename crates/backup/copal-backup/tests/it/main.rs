//! The backup layer from end to end, on stores in memory.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod backups;
mod cleanup;
mod clocks;
mod copies;
mod costs;
mod damage;
mod engine;
mod errors;
mod failing;
mod fleet;
mod flips;
mod gate;
mod handles;
mod histories;
mod incremental;
mod isolation;
mod leases;
mod logs;
mod progress;
mod roles;
mod serving;
mod together;
mod unneeded;
mod world;
