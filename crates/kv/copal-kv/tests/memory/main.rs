//! The memory budget against the real allocations of the process, and against the kernel.
//!
//! A binary of its own: one allocator counts for all of it. Tests that run beside the heap test allocate
//! little.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod alone;
mod capped;
mod classes;
mod counting;
mod heap;
mod opening;
mod world;

/// Serialises the heap test and the one of classes: the writes of one would delay those of the other, which
/// count as in flight.
static ONE_AT_A_TIME: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
