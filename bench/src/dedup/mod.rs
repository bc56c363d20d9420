//! Measurements of the backup layer's paper, repeated with product code.
//!
//! Paper: low-profile-dedup §2, §5, §6

pub(crate) mod figure4;
pub(crate) mod fleet;
pub(crate) mod large;
mod real_agent;
mod simulator;
pub(crate) mod stragglers;
pub(crate) mod table1;
pub(crate) mod table2;
pub(crate) mod table3;
pub(crate) mod table4;
