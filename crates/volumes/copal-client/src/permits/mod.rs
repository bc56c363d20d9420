//! Permits and the writer lease: what a client shows to be served.

pub(crate) mod lease;
pub(crate) mod permit_cache;
pub(crate) mod permit_request;
