//! The handler of calls: one trait for masters, data servers and agents.

use crate::net::chain_frames::{ChainAcks, ChainParts};
use crate::net::peer::PeerIdentity;
use crate::net::status::Status;
use bytes::Bytes;
use copal_proto::{Method, messages::failure::Code};
use std::{future::Future, sync::Arc};

/// Answers the calls of a listener.
pub trait CallHandler: Send + Sync + 'static {
    /// Calls that a peer without a certificate may make, one per connection.
    const UNAUTHENTICATED_CALLS: &'static [Method] = &[];

    /// The cluster's clock, ms since 1970; certificates expire by it. `None`: it is not known.
    fn clock_ms(&self) -> Option<u64> {
        None
    }

    /// Answers one call with an encoded message.
    fn call(
        self: Arc<Self>,
        peer: PeerIdentity,
        method: Method,
        message: Bytes,
    ) -> impl Future<Output = Result<Bytes, Status>> + Send;

    /// Answers a chain. Its parts arrive while it runs, and each hop's answer goes to `acks`; the last answer
    /// is returned.
    fn chain(
        self: Arc<Self>,
        _peer: PeerIdentity,
        _message: Bytes,
        _parts: ChainParts,
        _acks: ChainAcks,
    ) -> impl Future<Output = Result<Bytes, Status>> + Send {
        async { Err(Status::new(Code::Invalid, "this process takes no chains")) }
    }
}
