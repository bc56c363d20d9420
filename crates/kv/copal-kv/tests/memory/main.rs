//! The memory budget against what the process really allocates, and against the kernel.
//!
//! A binary of its own: one allocator counts for all of it. What runs beside the heap test allocates little.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod cap;
mod capped;
mod classes;
mod counting;
mod heap;
mod opening;
mod world;

/// The heap test and the one of classes: what one writes would hold up the writes of the other, which count
/// as under way.
static ONE_AT_A_TIME: parking_lot::Mutex<()> = parking_lot::Mutex::new(());
