//! The calls of users: volumes and files of a cluster, as futures and as a blocking store.

pub(crate) mod cluster;
pub(crate) mod file_writer;
pub(crate) mod files;
mod ranges;
pub(crate) mod store;
pub(crate) mod volumes;
