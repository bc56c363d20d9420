//! The memory budget against what the process really allocates, and against the kernel.
//!
//! A binary of its own: one allocator counts for all of it, so one test at a time.

mod counting;
mod heap;
mod world;
