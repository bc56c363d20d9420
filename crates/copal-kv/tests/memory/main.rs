//! The memory budget against what the process really allocates, and against the kernel.
//!
//! A binary of its own: one allocator counts for all of it. What runs beside the heap test allocates little.

mod cap;
mod capped;
mod classes;
mod counting;
mod heap;
mod opening;
mod world;
