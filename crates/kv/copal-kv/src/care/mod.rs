//! Care of stored data: verification, scrubbing, quarantine of damage, dumps.

pub mod dump;
pub(crate) mod quarantine;
pub(crate) mod scrub;
pub(crate) mod verify;
