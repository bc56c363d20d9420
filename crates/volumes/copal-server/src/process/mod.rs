//! The two processes of a cluster, and the files that they need at a restart.

pub(crate) mod home;
pub(crate) mod processes;
pub(crate) mod renewal;
