//! Errors of NBD connections, with advice for the user.

use std::sync::Arc;

/// Error of the handshake, of a request, or of the connection as a whole.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum NbdError {
    /// The address is malformed.
    #[error(
        "{uri:?} is not an NBD address: {reason}; write nbd://host[:port]/export or nbd+unix:///export?socket=/path"
    )]
    BadUri {
        /// The address as given.
        uri: String,
        /// The reason.
        reason: &'static str,
    },
    /// The server could not be reached.
    #[error("no NBD server answers at {address}: {source}; check that it runs and that the address is right")]
    Connect {
        /// The address of the server.
        address: String,
        /// The error of the system.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The server cannot listen.
    #[error(
        "cannot listen at {address}: {source}; name another socket, or end the program that listens there, nothing was served"
    )]
    Listen {
        /// The address.
        address: String,
        /// The error of the system.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The connection broke.
    #[error("the connection to the NBD server broke: {source}")]
    Io {
        /// The error of the system.
        #[source]
        source: Arc<std::io::Error>,
    },
    /// The server closed the connection, possibly during a request.
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
        /// Name of the option.
        option: &'static str,
        /// Name of the error, with the server's message when it sent one.
        reason: String,
    },
    /// The server violated the protocol; its data is discarded.
    #[error("the NBD server broke the protocol: {what}")]
    Protocol {
        /// The violation.
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
        /// The server's message, with a leading `": "`, or empty.
        message: String,
    },
    /// The request is outside the export, or exceeds the server's limit.
    #[error("request of {len} bytes at {offset} does not fit the export of {size} bytes")]
    OutOfRange {
        /// First byte of the request.
        offset: u64,
        /// Length of the request.
        len: u64,
        /// Size of the export.
        size: u64,
    },
    /// A write to a read-only export.
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

    /// Whether the connection is unusable.
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
