//! The object store through its public interface, on devices in memory and in directories.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod basics;
mod cleaning;
mod commands;
mod conformance;
mod discards;
mod draining;
mod dump;
mod emulated;
mod extents;
mod faults;
mod files;
mod flips;
mod free_ranges;
mod full_store;
mod golden;
mod groups;
mod hostfs;
mod images;
mod inline;
mod kill;
mod long_tables;
mod model;
mod one_trace;
mod opening;
mod passing;
mod pipeline;
mod profile;
mod ranges;
mod reservations;
mod scrub;
mod searches;
mod shapes;
mod shrink;
mod space;
mod stuck;
mod threads;
mod trims;
mod truncations;
mod verified;
mod written_ahead;
