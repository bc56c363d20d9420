//! State of the leader of one term: the map, its tables, and the reports of the data servers.

pub(crate) mod cluster_clocks;
pub(crate) mod disk_medium;
pub(crate) mod leader_state;
pub(crate) mod map_message;
pub(crate) mod server_activity;
pub(crate) mod shared_state;
pub(crate) mod staleness;
