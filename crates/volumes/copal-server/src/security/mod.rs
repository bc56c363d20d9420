//! Identities and rights: the cluster's authority, join tokens, certificates, checks of each call.

pub(crate) mod access;
pub(crate) mod authority;
pub(crate) mod caller;
pub(crate) mod join;
pub(crate) mod token;
