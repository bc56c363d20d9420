//! Connections and requests: accept loop, framing, admission by memory, traffic counters, status replies.

pub(crate) mod admission;
pub(crate) mod call;
pub(crate) mod chain_frames;
pub(crate) mod connection;
pub(crate) mod handler;
pub(crate) mod listener;
pub(crate) mod messages;
pub(crate) mod peer;
pub(crate) mod request;
pub(crate) mod status;
pub(crate) mod traffic;
pub(crate) mod unauthenticated;
pub(crate) mod validity;
