//! What a process tells a monitor over HTTP: numbers, whether it is well, whether it serves.
//!
//! Invariants
//! - A monitor cannot make a server slow: few connections at a time, ten seconds and 8 KiB of headers each,
//!   one answer.
//! - Nothing can be changed here, and nothing secret is told: there is neither TLS nor a password.
//!
//! Not here: counting (`traffic`), how a whole cluster is (`copal status`).

mod families;
mod http;
mod of_data;
mod of_master;
mod of_traffic;

pub use http::HttpAt;
pub(crate) use http::{Pages, Said, bind, serve};
pub(crate) use of_data::OfData;
pub(crate) use of_master::OfMaster;

#[cfg(test)]
pub(crate) mod tests;
