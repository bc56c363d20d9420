//! The object store through its public face, on devices in memory.

mod basics;
mod commands;
mod faults;
mod flips;
mod model;
mod space;
mod threads;
