//! What a server is told: who compares, where it listens, its bounds.

use crate::{
    channel::{Secret, Timeouts},
    wire::{Answers, Ask, Marker},
};
use std::{
    io,
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, Instant},
};

/// Compares what hosts ask with what is known. Shared by the readers of all connections and the compare
/// thread.
pub trait Detect: Send + Sync {
    /// Keeps a batch until its partition is compared. A batch that comes again (its host lost the connection)
    /// is kept once, and answered again if it was compared already.
    /// # Errors
    /// A sentence that the asker is told: this batch will not be answered here.
    fn take(&self, ask: &Ask, host: [u8; 16]) -> Result<(), String>;

    /// `host` has asked all it will ask in this round. May be said twice, and after a marker batches may
    /// still come from a host that did not get its answers elsewhere.
    fn mark(&self, marker: &Marker, host: [u8; 16]);

    /// A partition that should be compared now: all markers are in, or it waited long enough.
    fn due(&self, now: Instant) -> Option<u32>;

    /// How many members the fleet has now, as far as is known; may ask the repository, and is called when the
    /// places that the server knows of are taken. `None`: it is not known.
    fn members(&self) -> Option<usize> {
        None
    }

    /// Compares one partition, and replies to the hosts that asked. A reply waits while the outbox is full.
    /// # Errors
    /// When files fail; the asks stay unanswered.
    fn compare(&self, partition: u32, reply: &mut dyn FnMut([u8; 16], Answers)) -> io::Result<()>;
}

/// How a server listens, and its bounds.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen, host:port; port 0 is any free one.
    pub listen: String,
    /// Our name among the members.
    pub name: String,
    /// What all members share.
    pub secret: Secret,
    /// Time limits of connections.
    pub timeouts: Timeouts,
    /// How many members the fleet has, as far as is known; places for connections follow from it. Whoever
    /// learns of more enters them here.
    pub members: Arc<AtomicUsize>,
    /// Most connections, whatever the number of members; `None`: twice the members and 32.
    pub connections: Option<usize>,
    /// Most bytes that wait to be sent, over all connections.
    pub outbox_bytes: usize,
    /// Most of them for one connection.
    pub outbox_peer_bytes: usize,
    /// How long a full outbox is waited for before the peer with the most bytes in it loses its connection.
    pub outbox_patience: Duration,
    /// Most commands under way.
    pub commands: usize,
}

impl ServerOptions {
    /// The usual bounds.
    #[must_use]
    pub fn new(listen: &str, name: &str, secret: Secret) -> ServerOptions {
        ServerOptions {
            listen: listen.to_owned(),
            name: name.to_owned(),
            secret,
            timeouts: Timeouts::default(),
            members: Arc::default(),
            connections: None,
            outbox_bytes: 4 << 20,
            outbox_peer_bytes: 512 << 10,
            outbox_patience: Duration::from_secs(2),
            commands: 8,
        }
    }
}

/// What a server has seen since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Connections that were ended before they had said who they are: other secrets, port scans, too slow.
    pub strangers: u64,
    /// Connections that were one too many: turned away before they had shaken hands, or refused behind that.
    pub crowded: u64,
    /// Connections that were ended because the peer broke the protocol.
    pub violations: u64,
    /// Connections that were ended because the peer did not take its answers.
    pub slow: u64,
    /// Answers whose host had no connection.
    pub undeliverable: u64,
}
