//! Available space: quarantine drains, growth, reservations, and shrinking.

pub(crate) mod grow;
pub(crate) mod reservation;
pub(crate) mod shrink;
