//! Routing: from a volume to the replicas of its group, and from a disk to a connection with a permit.

pub(crate) mod known_volumes;
pub(crate) mod router;
