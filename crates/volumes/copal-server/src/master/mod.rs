//! A master server: calls of data servers and clients, leadership, administration.

pub(crate) mod administration;
pub(crate) mod calls;
pub(crate) mod leadership;
pub(crate) mod membership;
pub(crate) mod permits;
pub(crate) mod server;
pub(crate) mod server_clocks;
pub(crate) mod volumes;
