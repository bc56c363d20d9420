//! Replicas on a data server's disk: store and epochs, heartbeats and views, clock, damage, gossip received.

pub(crate) mod damage;
pub(crate) mod file_head;
pub(crate) mod heartbeat;
pub(crate) mod host;
pub(crate) mod own_clock;
pub(crate) mod peer_status;
pub(crate) mod snapshots;
pub(crate) mod throttle;
