//! Options of a server: the comparing side, the address, its bounds.

use crate::{
    messages::{AnswerMessage, AskMessage, MarkerMessage},
    network::FleetNetwork,
};
use std::{
    io,
    time::{Duration, Instant},
};

/// Compares what hosts ask with what is known. Shared by the readers of all connections and the compare
/// thread.
pub trait BatchDetector: Send + Sync {
    /// Keeps a batch until its partition is compared. A batch that comes again (its host lost the connection)
    /// is kept once, and answered again if it was compared already.
    /// # Errors
    /// A sentence that the asker is told: this batch will not be answered here.
    fn take(&self, ask: &AskMessage, host: [u8; 16]) -> Result<(), String>;

    /// `host` has asked all it will ask in this round. May be said twice, and after a marker batches may
    /// still come from a host that did not get its answers elsewhere.
    fn mark(&self, marker: &MarkerMessage, host: [u8; 16]);

    /// A partition that should be compared now: all markers are in, or it waited long enough.
    fn due(&self, now: Instant) -> Option<u32>;

    /// Compares one partition, and replies to the hosts that asked. A reply waits while the outbox is full.
    /// # Errors
    /// When files fail; the asks stay unanswered.
    fn compare(&self, partition: u32, reply: &mut dyn FnMut([u8; 16], AnswerMessage)) -> io::Result<()>;
}

/// How a server listens, and its bounds.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where to listen, host:port; port 0 is any free one.
    pub listen: String,
    /// Our name among the members.
    pub name: String,
    /// Certificate of the server and its authority.
    pub network: FleetNetwork,
    /// Most bytes of answers that wait to be taken, over all askers.
    pub outbox_bytes: usize,
    /// Most of them for one asker.
    pub outbox_host_bytes: usize,
    /// How long a full outbox is waited for before the asker with the most bytes in it loses its answers.
    pub outbox_patience: Duration,
    /// Most commands under way.
    pub commands: usize,
}

impl ServerOptions {
    /// The usual bounds.
    #[must_use]
    pub fn new(listen: &str, name: &str, network: FleetNetwork) -> ServerOptions {
        ServerOptions {
            listen: listen.to_owned(),
            name: name.to_owned(),
            network,
            outbox_bytes: 4 << 20,
            outbox_host_bytes: 512 << 10,
            outbox_patience: Duration::from_secs(2),
            commands: 8,
        }
    }
}

/// Answers that a server has lost since it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Times that an asker lost its answers because it did not take them.
    pub slow: u64,
    /// Answers whose asker was not there.
    pub undeliverable: u64,
}
