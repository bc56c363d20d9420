//! Errors of a QMP command.

use std::{io, path::PathBuf};

/// Error of a QMP command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QmpError {
    /// No server listens there, or the connection is not permitted.
    #[error("cannot connect to {}: {source}; check that QEMU runs, and its -qmp or --chardev option", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A socket serves one client at a time, and the next one waits.
    #[error(
        "{} does not greet within {seconds} s: another program is connected to it, which serves one at a time, or it is no QMP \
         socket; wait for that program to end, or give QEMU a second QMP socket for copal",
        path.display()
    )]
    NoGreeting {
        /// The socket.
        path: PathBuf,
        /// The timeout.
        seconds: u64,
    },
    /// The connection has ended.
    #[error("the connection ended while {command} waited for its answer; has QEMU ended?")]
    Closed {
        /// The command.
        command: String,
    },
    /// No reply in time; the outcome of the command is unknown.
    #[error("{command} was not answered within {seconds} s")]
    TimedOut {
        /// The command.
        command: String,
        /// The timeout.
        seconds: u64,
    },
    /// All commands together took too long; the outcome of the last one is unknown.
    #[error(
        "QEMU took longer than {seconds} s for all that was asked of it, the last of which was {command}; is it stopped, or its disk \
             hanging?"
    )]
    Late {
        /// The last command.
        command: String,
        /// The time limit.
        seconds: u64,
    },
    /// The server refused the command.
    #[error("{command} was refused: {description}")]
    Refused {
        /// The command.
        command: String,
        /// The class of the error: `GenericError`, `CommandNotFound`.
        class: String,
        /// The description in the reply.
        description: String,
    },
    /// The server violates the protocol.
    #[error(
        "the server at this socket does not speak QMP: {reason}; name the socket of QEMU's -qmp or --chardev option"
    )]
    Protocol {
        /// The violation.
        reason: String,
    },
}

impl QmpError {
    /// Whether the server does not know the command.
    #[must_use]
    pub fn is_unknown_command(&self) -> bool {
        matches!(self, QmpError::Refused { class, .. } if class == "CommandNotFound")
    }

    /// Whether the connection is unusable.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        matches!(self, QmpError::Closed { .. } | QmpError::Protocol { .. })
    }
}
