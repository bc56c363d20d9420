//! Sessions and locks: leases, and the context that all operations of a repository share.

pub(crate) mod lease;
pub(crate) mod parts;
pub(crate) mod repository_locks;
