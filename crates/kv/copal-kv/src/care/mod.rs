//! Looking after stored data: verifying, scrubbing, setting damage apart, repairing, showing.

pub mod dump;
pub(crate) mod quarantine;
pub(crate) mod scrub;
pub(crate) mod verify;
