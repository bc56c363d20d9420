//! Limit of open descriptors of a process that has connections to many others.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the limit of open descriptors as far as the process may: systemd gives a process 1,024 by default. An
/// agent has two connections with each other agent, and a data server up to ten with each client.
pub(crate) fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::debug!(%error, "limit of open descriptors not raised");
    }
}
