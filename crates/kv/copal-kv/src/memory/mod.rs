//! Memory budget: accounts, caches, and filter units that move with the heat.

pub(crate) mod budget;
pub mod cache;
pub(crate) mod caches;
pub(crate) mod contents;
pub(crate) mod elastic;
pub(crate) mod recent_blocks;
pub(crate) mod rows;
pub(crate) mod shared;
