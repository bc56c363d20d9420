//! What can go wrong between us and an NBD server, in sentences a person can act on.

use std::sync::Arc;

/// Error of the handshake, of a request, or of the connection as a whole.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// The address is not one we understand.
    #[error(
        "{uri:?} is not an NBD address: {reason}; write nbd://host[:port]/export or nbd+unix:///export?socket=/path"
    )]
    BadUri {
        /// What was given.
        uri: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The server could not be reached.
    #[error("no NBD server answers at {address}: {source}; check that it runs and that the address is right")]
    Connect {
        /// Where we tried.
        address: String,
        /// The system's answer.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// A server could not listen.
    #[error(
        "cannot listen at {address}: {source}; name another socket, or end what listens there, nothing was served"
    )]
    Listen {
        /// Where.
        address: String,
        /// The system's answer.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The connection broke.
    #[error("the connection to the NBD server broke: {source}")]
    Io {
        /// The system's answer.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The server closed the connection, or did so while a request was under way.
    #[error("the NBD server closed the connection")]
    Closed,
    /// No answer within the time limit.
    #[error("the NBD server did not answer within {seconds} s")]
    TimedOut {
        /// The limit.
        seconds: u64,
    },
    /// The server refused an option of the handshake.
    #[error("the NBD server refused {option}: {reason}")]
    Refused {
        /// Which option.
        option: &'static str,
        /// Name of the error, with the server's message when it sent one.
        reason: String,
    },
    /// The server broke the protocol; nothing it sent is used.
    #[error("the NBD server broke the protocol: {what}")]
    Protocol {
        /// Which rule.
        what: String,
    },
    /// The server answered a request with an error number.
    #[error("the NBD server failed {request} of {len} bytes at {offset}: error {errno}{message}")]
    Request {
        /// `read`, `write`, `zeroing`, `flush` or `block status`.
        request: &'static str,
        /// First byte of the request.
        offset: u64,
        /// Length of the request.
        len: u32,
        /// The protocol's error number (those of Linux: 5 is EIO, 28 is ENOSPC).
        errno: u32,
        /// The server's words, with a leading `": "`, or empty.
        message: String,
    },
    /// The caller asked for something outside the export, or of a size the server does not take.
    #[error("request of {len} bytes at {offset} does not fit the export of {size} bytes")]
    OutOfRange {
        /// First byte of the request.
        offset: u64,
        /// Length of the request.
        len: u64,
        /// Size of the export.
        size: u64,
    },
    /// Writes were asked of an export that takes none.
    #[error("the NBD export is read-only; start its server so that it may be written")]
    ReadOnly,
    /// The server does not offer this metadata context.
    #[error("the NBD export has no metadata context {name:?}")]
    NoContext {
        /// The context.
        name: String,
    },
}

impl NbdError {
    pub(crate) fn protocol(what: impl Into<String>) -> NbdError {
        NbdError::Protocol { what: what.into() }
    }

    /// The connection is of no more use.
    pub fn is_connection_lost(&self) -> bool {
        !matches!(
            self,
            NbdError::Request { .. }
                | NbdError::OutOfRange { .. }
                | NbdError::NoContext { .. }
                | NbdError::ReadOnly
        )
    }
}

impl From<std::io::Error> for NbdError {
    fn from(source: std::io::Error) -> NbdError {
        if source.kind() == std::io::ErrorKind::UnexpectedEof {
            NbdError::Closed
        } else {
            NbdError::Io { source: Arc::new(source) }
        }
    }
}
