//! Operations that change files: how they are run, sent, raced for, settled and verified.

pub(crate) mod chain;
pub(crate) mod create_race;
pub(crate) mod delivery;
pub(crate) mod run;
pub(crate) mod settle;
pub(crate) mod transfer;
pub(crate) mod upload;
pub(crate) mod verify;
