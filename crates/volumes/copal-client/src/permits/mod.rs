//! Permits: statements of the masters that a client shows with its calls to data servers.

pub(crate) mod permit_cache;
pub(crate) mod permit_source;
