//! Clusters of real sockets, TLS and engines in one process.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

mod administration;
mod certificates;
mod chains;
mod clocks;
mod conformance;
mod force_accept;
mod harness;
mod members;
mod ranges;
mod rights;
mod seals;
