//! Monitoring over HTTP: metrics, health and readiness of a process.
//!
//! Invariants
//! - Monitors cannot slow a server down: few connections at a time, ten seconds and 8 KiB of headers each,
//!   one reply.
//! - Read-only and without secrets, since there is neither TLS nor a password.
//!
//! Not here: the counters (`traffic`), the state of the cluster (`copal status`).

mod data_metrics;
mod families;
mod http;
mod master_metrics;
mod traffic_metrics;

pub(crate) use data_metrics::DataMetrics;
pub use http::HttpEndpoint;
pub(crate) use http::{HealthReply, MonitorPages, bind, serve};
pub(crate) use master_metrics::MasterMetrics;

#[cfg(test)]
pub(crate) mod tests;
