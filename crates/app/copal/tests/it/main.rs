//! The built `copal`, end to end: input, output and lost data of a user.
//!
//! Every run's standard error is scanned: an unexpected warning or error of the libraries fails the test, and
//! so does a panic.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod administration;
mod backends;
mod changes;
mod changing;
mod chaos;
mod cluster;
mod cluster_examples;
mod cluster_exports;
mod comparators;
mod copying;
mod credentials;
mod damage;
mod device_probe;
mod device_store;
mod disks;
mod doctor;
mod elsewhere;
mod engine;
mod errors;
mod examples;
mod exports;
mod fleet;
mod fleet_chaos;
mod full_cluster;
mod full_disk;
mod golden;
mod harness;
mod init;
mod interrupt;
mod json_lines;
mod keys;
mod kill;
mod language;
mod live;
mod loop_device;
mod manifest;
mod masters;
mod memory;
mod monitoring;
mod operating;
mod operating_a_cluster;
mod operating_a_fleet;
mod operating_elsewhere;
mod pages;
mod permits;
mod places;
mod probe_disks;
mod qemu;
mod racks;
mod read_only;
mod recovery;
mod requests;
mod rescue;
mod retention;
mod round_trip;
mod rounds;
mod sources;
mod starting;
mod terminal;
mod trust;
mod waiting;
