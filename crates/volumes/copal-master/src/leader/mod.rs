//! State of the leader of one term: the map, its tables, and the reports of the data servers.

pub(crate) mod clock_state;
pub(crate) mod medium;
pub(crate) mod server_activity;
pub(crate) mod staleness;
