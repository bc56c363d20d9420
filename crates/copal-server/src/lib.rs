//! The processes of a cluster.
//!
//! Invariants
//! - Before a certificate was seen a connection has ten seconds and as little memory as its handshake takes.
//! - What one connection sends ends that connection at most: nobody else notices.
//!
//! Not here: what calls mean (`copal-master`, `copal-data`), the other end (`copal-client`).

mod authority;
mod listener;

pub use authority::{Authority, AuthorityError};
pub use listener::{Handler, Listener, Peer, Refused, refused};
