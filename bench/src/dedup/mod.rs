//! What the paper of the backup layer measured, by the code that ships.
//!
//! Paper: low-profile-dedup §2, §5

pub(crate) mod fleet;
pub(crate) mod table4;
