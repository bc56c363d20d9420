//! Agreement of replicas: resync from a donor, roll-forward, gossip, anti-entropy, repair, forced accept.

pub(crate) mod anti_entropy;
pub(crate) mod donor;
pub(crate) mod fetch;
pub(crate) mod force_accept;
pub(crate) mod gossip;
pub(crate) mod group_resync;
pub(crate) mod repair;
pub(crate) mod roll_forward;
