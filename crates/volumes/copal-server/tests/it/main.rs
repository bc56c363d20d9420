//! Clusters of real sockets, TLS and engines in one process.

mod accepting;
mod certificates;
mod chains;
mod clocks;
mod closing;
mod conformance;
mod harness;
mod members;
mod rights;
