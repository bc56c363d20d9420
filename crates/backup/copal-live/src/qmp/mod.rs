//! QMP, the control protocol of QEMU and its storage daemon, and the same lines as the guest agent speaks
//! them.
//!
//! JSON objects, one a line, over a unix socket. A client sends commands, each with an id; the server answers
//! each, and tells events whenever it likes.
//!
//! Invariants
//! - A line is bounded before it is kept (`line`), and no bytes of the peer make this module
//!   panic.
//! - An answer counts only with the id of the command that waits for it: one that came too late is dropped.
//!
//! Not here: what the commands are for (the rest of this crate).

mod client;
mod error;
mod guardian;
mod guest;
pub(crate) mod line;
pub(crate) mod message;

pub(crate) use client::Client;
pub use error::QmpError;
pub(crate) use guardian::Guardian;
pub(crate) use guest::GuestAgent;
pub use message::Version;
