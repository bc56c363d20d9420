//! QMP, the control protocol of QEMU and its storage daemon, and the same lines as the guest agent speaks
//! them.
//!
//! JSON objects, one a line, over a unix socket. A client sends commands, each with an id; the server answers
//! each, and tells events whenever it likes.
//!
//! Invariants
//! - A line is bounded before it is kept ([`MAX_LINE_BYTES`]), and no bytes of the peer make this crate
//!   panic.
//! - An answer counts only with the id of the command that waits for it: one that came too late is dropped.
//!
//! Not here: what the commands are for (`copal-live`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod client;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod guardian;
mod guest;
mod line;
mod message;

pub use client::Client;
pub use error::QmpError;
pub use guardian::Guardian;
pub use guest::GuestAgent;
pub use line::MAX_LINE_BYTES;
pub use message::{Event, Version};
