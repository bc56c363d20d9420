//! Why a command was not carried out.

use std::{io, path::PathBuf};

/// Why a command was not carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QmpError {
    /// Nobody listens there, or we may not connect.
    #[error("cannot connect to {}: {source}; check that QEMU runs, and its -qmp or --chardev option", path.display())]
    Connect {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A socket serves one program at a time, and the next one waits.
    #[error(
        "{} does not greet within {seconds} s: another program is connected to it, which serves one at a time, or it is no QMP \
         socket; wait for that program to end, or give QEMU a second QMP socket for copal",
        path.display()
    )]
    NoGreeting {
        /// The socket.
        path: PathBuf,
        /// How long it was waited for.
        seconds: u64,
    },
    /// The connection has ended.
    #[error("the connection ended while {command} waited for its answer; has QEMU ended?")]
    Closed {
        /// What was asked.
        command: String,
    },
    /// No answer in time; whether the command was carried out is not known.
    #[error("{command} was not answered within {seconds} s")]
    TimedOut {
        /// What was asked.
        command: String,
        /// How long it was waited for.
        seconds: u64,
    },
    /// All commands together took too long; whether the last one was carried out is not known.
    #[error(
        "QEMU took longer than {seconds} s for all that was asked of it, the last of which was {command}; is it stopped, or its disk \
             hanging?"
    )]
    Late {
        /// The last command.
        command: String,
        /// How long all of it may take.
        seconds: u64,
    },
    /// The other side said no.
    #[error("{command} was refused: {description}")]
    Refused {
        /// What was asked.
        command: String,
        /// The class of the error: `GenericError`, `CommandNotFound`.
        class: String,
        /// The other side's own words.
        description: String,
    },
    /// The other side does not keep to the protocol.
    #[error(
        "what answers there does not speak QMP: {reason}; name the socket of QEMU's -qmp or --chardev option"
    )]
    Protocol {
        /// What is wrong.
        reason: String,
    },
}

impl QmpError {
    /// Whether the other side does not know the command at all.
    #[must_use]
    pub fn is_unknown_command(&self) -> bool {
        matches!(self, QmpError::Refused { class, .. } if class == "CommandNotFound")
    }

    /// Whether the connection is of no use any more.
    #[must_use]
    pub fn is_disconnected(&self) -> bool {
        matches!(self, QmpError::Closed { .. } | QmpError::Protocol { .. })
    }
}
