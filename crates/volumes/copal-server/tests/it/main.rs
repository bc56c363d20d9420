//! Clusters of real sockets, TLS and engines in one process.

mod accepting;
mod chains;
mod closing;
mod conformance;
mod harness;
mod members;
