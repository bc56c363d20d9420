//! The backup layer from end to end, on stores in memory.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod backups;
mod beginnings;
mod bit_flips;
mod clocks;
mod concurrent_consolidate;
mod consolidate;
mod copies;
mod costs;
mod damage;
mod engine;
mod errors;
mod fleet;
mod fleet_store;
mod gate;
mod handles;
mod held_lists;
mod histories;
mod hostile_network;
mod incremental;
mod isolation;
mod leases;
mod logs;
mod mortal_store;
mod overtaken;
mod popular;
mod popular_gc;
mod progress;
mod reads;
mod roles;
mod serving;
mod snapshot_copies;
mod workers;
mod world;
