//! Sessions and locks of operations: leases, and the state that every operation of a repository shares.

pub(crate) mod lease;
pub(crate) mod parts;
pub(crate) mod repository_locks;
