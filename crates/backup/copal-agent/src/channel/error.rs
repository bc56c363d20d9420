//! Why a connection could not be made, or ended.

use std::io;

/// Why a connection could not be made, or ended. Each names the peer's address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// Nobody listens there, or the name is unknown.
    #[error("cannot reach {address}: {source}")]
    Connect {
        /// Whom we tried to reach.
        address: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The peer does not hold our secret.
    #[error("{address} does not hold the secret of this domain, or is not an agent; it ended the handshake")]
    Secret {
        /// The peer.
        address: String,
    },
    /// The peer has no place for another connection.
    #[error("{address} has too many connections; try again in a moment")]
    Crowded {
        /// The peer.
        address: String,
    },
    /// The peer took too long.
    #[error("{address} took longer than {seconds} s for {what}")]
    TimedOut {
        /// The peer.
        address: String,
        /// What it took long for.
        what: &'static str,
        /// The time limit.
        seconds: u64,
    },
    /// The peer ended the connection.
    #[error("{address} ended the connection")]
    Closed {
        /// The peer.
        address: String,
    },
    /// The peer announced a message that is longer than any may be.
    #[error("{address} announced a message of {len} bytes, at most {max} are allowed")]
    TooLong {
        /// The peer.
        address: String,
        /// Bytes announced.
        len: u64,
        /// The bound.
        max: u64,
    },
    /// The bytes are none that an agent sends.
    #[error("the {what} from {address} is not valid: the connection is not to be trusted any more")]
    Broken {
        /// The peer.
        address: String,
        /// What was not valid.
        what: &'static str,
    },
    /// The connection failed.
    #[error("the connection to {address} failed: {source}")]
    Io {
        /// The peer.
        address: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl ChannelError {
    /// The peer broke the rules of the protocol, not just the connection.
    #[must_use]
    pub fn is_violation(&self) -> bool {
        matches!(self, ChannelError::TooLong { .. } | ChannelError::Broken { .. })
    }

    /// An error while reading or writing `what`, within `seconds`.
    pub(super) fn of_io(source: io::Error, address: &str, what: &'static str, seconds: u64) -> ChannelError {
        let address = address.to_owned();
        match source.kind() {
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
                ChannelError::TimedOut { address, what, seconds }
            }
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => ChannelError::Closed { address },
            _ => ChannelError::Io { address, source },
        }
    }
}
