//! Commits: operations, their transactions, and waiting for durability.

pub(crate) mod clean_mark;
pub(crate) mod operations;
pub(crate) mod sync;
pub(crate) mod transaction;
