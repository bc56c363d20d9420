//! The names of volumes and of clients, and the writer leases below paths.

pub(crate) mod clients;
pub(crate) mod path_leases;
pub(crate) mod removed_volumes;
pub(crate) mod volumes;
