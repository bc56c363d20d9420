//! Clusters of real sockets, TLS and engines in one process.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod accepting;
mod administration;
mod certificates;
mod chains;
mod clocks;
mod closing;
mod conformance;
mod harness;
mod members;
mod rights;
