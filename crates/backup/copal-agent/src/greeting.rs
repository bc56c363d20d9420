//! Who the peer says it is: a [`Hello`] from each side, who connected first.
//!
//! The secret has shown that the peer is a member, not which one: members trust each other's names.

use crate::{
    channel::{Channel, ChannelError, ChannelReader, Secret, Timeouts, Traffic},
    wire::{Hello, Message, WireError},
};
use std::{
    sync::Arc,
    time::{Duration, Instant},
};

/// Why two agents do not talk.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GreetingError {
    /// No connection, or it ended.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The peer said something that is no message of this version.
    #[error("{address}: {source}")]
    Wire {
        /// The peer.
        address: String,
        /// What is wrong with it.
        #[source]
        source: WireError,
    },
    /// The peer takes no more connections, and says why.
    #[error("{address} takes no connection now: {reason}; try again in a moment")]
    Refused {
        /// The peer.
        address: String,
        /// What it says.
        reason: String,
    },
    /// The peer said something else first.
    #[error("{address} did not say who it is")]
    Silent {
        /// The peer.
        address: String,
    },
    /// Another member lives there.
    #[error("{address} is the agent {found:?}, not {wanted:?}: the addresses of the members are out of date")]
    Other {
        /// The peer.
        address: String,
        /// Who it says it is.
        found: String,
        /// Who was expected.
        wanted: String,
    },
}

impl GreetingError {
    /// Whether the peer has too many connections at the moment, so that a later try may succeed.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        matches!(self, GreetingError::Refused { .. } | GreetingError::Channel(ChannelError::Crowded { .. }))
    }
}

/// Pauses between tries while the peer has too many connections: doubled each time, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// As [`connect`]; tries again until `patience` is over while the peer has too many connections.
/// # Errors
/// As [`connect`].
pub fn connect_patiently(
    address: &str,
    secret: &Secret,
    hello: &Hello,
    timeouts: &Timeouts,
    traffic: &Arc<Traffic>,
    patience: Duration,
) -> Result<(Channel, Hello), GreetingError> {
    let deadline = Instant::now() + patience;
    let mut pause = FIRST_PAUSE;
    loop {
        match connect(address, secret, hello, timeouts, traffic) {
            Err(error) if error.is_crowded() && Instant::now() + pause < deadline => {
                std::thread::park_timeout(pause);
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            outcome => return outcome,
        }
    }
}

/// Connects and says who we are; returns the connection and who the peer is.
/// # Errors
/// `Channel` when nobody is there or secrets differ, `Refused` when it has too many connections, the others
/// when it is no agent of this version.
pub fn connect(
    address: &str,
    secret: &Secret,
    hello: &Hello,
    timeouts: &Timeouts,
    traffic: &Arc<Traffic>,
) -> Result<(Channel, Hello), GreetingError> {
    let mut channel = Channel::connect(address, secret, timeouts, traffic)?;
    channel.writer.send(&Message::Hello(hello.clone()).encode())?;
    let theirs = receive_hello(&mut channel.reader, timeouts.handshake)?;
    Ok((channel, theirs))
}

/// Waits for who the peer is.
pub(crate) fn receive_hello(reader: &mut ChannelReader, limit: Duration) -> Result<Hello, GreetingError> {
    let bytes = reader.receive(Some(limit))?;
    let address = || reader.address().to_owned();
    match Message::decode(&bytes) {
        Ok(Message::Hello(hello)) => Ok(hello),
        Ok(Message::Refused(refused)) => {
            Err(GreetingError::Refused { address: address(), reason: refused.reason })
        }
        Ok(_) => Err(GreetingError::Silent { address: address() }),
        Err(source) => Err(GreetingError::Wire { address: address(), source }),
    }
}
