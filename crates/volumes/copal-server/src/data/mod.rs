//! A data server: calls of clients, chained writes.

pub(crate) mod calls;
pub(crate) mod chain;
#[cfg(test)]
pub(crate) mod member_scene;
pub(crate) mod server;
