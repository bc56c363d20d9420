//! Options of a server: the detector, the address, its bounds.

use crate::fleet::messages::{AnswerMessage, AskMessage, MarkerMessage};
use crate::fleet::network::FleetNetwork;
use std::{
    io,
    time::{Duration, Instant},
};

/// Compares requests with the known ids. Shared by the readers of all connections and the compare thread.
pub trait BatchDetector: Send + Sync {
    /// Keeps a batch until its partition is compared. A repeated batch (its host lost the connection) is kept
    /// once, and answered again if it was compared already.
    /// # Errors
    /// A sentence for the asker: this batch will not be answered here.
    fn take(&self, ask: &AskMessage, host: [u8; 16]) -> Result<(), String>;

    /// `host` has sent all its questions of this round. May come twice. After a marker, batches may still
    /// come from a host that got no answers elsewhere.
    fn mark(&self, marker: &MarkerMessage, host: [u8; 16]);

    /// A partition to compare now: all markers have arrived, or it waited long enough.
    fn due(&self, now: Instant) -> Option<u32>;

    /// Compares one partition, and replies to the askers. A reply waits while the outbox is full.
    /// # Errors
    /// Errors of files; the questions stay unanswered.
    fn compare(&self, partition: u32, reply: &mut dyn FnMut([u8; 16], AnswerMessage)) -> io::Result<()>;
}

/// Address and bounds of a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Address to listen at, host:port; port 0 is any free port.
    pub listen: String,
    /// Our name among the members.
    pub name: String,
    /// Certificate of the server and its authority.
    pub network: FleetNetwork,
    /// Most bytes of answers that wait to be fetched, over all askers.
    pub outbox_bytes: usize,
    /// Most bytes for one asker.
    pub outbox_host_bytes: usize,
    /// Longest wait for space in a full outbox before the asker with the most bytes loses its answers.
    pub outbox_patience: Duration,
    /// Most commands in progress.
    pub commands: usize,
}

impl ServerOptions {
    /// The default bounds.
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

/// Answers that a server has lost since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Number of times that an asker lost its answers because it did not fetch them.
    pub slow: u64,
    /// Answers whose asker was unknown.
    pub undeliverable: u64,
}
