//! Operations that change files: run on all replicas, sent by chains, settled, verified, and the writer lease.

pub(crate) mod chain;
pub(crate) mod create_race;
pub(crate) mod delivery;
pub(crate) mod file_survey;
pub(crate) mod run;
pub(crate) mod settle;
pub(crate) mod transfer;
pub(crate) mod upload;
pub(crate) mod verify;
pub(crate) mod writer_lease;
