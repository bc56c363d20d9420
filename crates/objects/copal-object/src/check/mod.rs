//! Checks of a store, and views of its structures.

pub(crate) mod coverage;
pub(crate) mod dump;
pub(crate) mod fsck;
pub(crate) mod piece_frames;
pub(crate) mod scrub;
