//! Network: connections, TLS, deadlines, the masters and the map of the cluster.

pub(crate) mod connection;
pub(crate) mod connection_pool;
pub(crate) mod deadline;
pub(crate) mod errors;
pub(crate) mod join_tls;
pub mod machine;
pub(crate) mod map_cache;
pub(crate) mod masters;
pub(crate) mod network_estimate;
pub(crate) mod probe;
pub(crate) mod profile;
pub(crate) mod threads;
pub(crate) mod tls;
pub(crate) mod tls_time;
pub(crate) mod trace;
