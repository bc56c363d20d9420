//! The calls of users: volumes and files of a cluster, asynchronous and blocking.

pub(crate) mod cluster;
pub(crate) mod files;
pub(crate) mod store;
pub(crate) mod volumes;
