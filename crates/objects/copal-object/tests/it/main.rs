//! The object store through its public interface, on devices in memory and in directories.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod basics;
mod commands;
mod conformance;
mod draining;
mod emulated;
mod extents;
mod faults;
mod files;
mod flips;
mod golden;
mod groups;
mod hostfs;
mod long_tables;
mod model;
mod opening;
mod passing;
mod pipeline;
mod profile;
mod ranges;
mod shrink;
mod space;
mod stuck;
mod threads;
mod trims;
