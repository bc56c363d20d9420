//! QMP: the control protocol of QEMU and its storage daemon, also used by the guest agent.
//!
//! One JSON object per line, over a unix socket. A client sends commands, each with an id. The server replies
//! to each, and sends events at any time.
//!
//! Invariants
//! - The length of a line is bounded before the line is kept (`line`), and no bytes of the peer make this
//!   module panic.
//! - A reply counts only with the id of the awaited command; a late reply is dropped.
//!
//! Not here: the purpose of the commands (the other modules of this crate).

mod client;
mod error;
mod guardian;
mod guest;
pub(crate) mod line;
pub(crate) mod message;

pub(crate) use client::QmpClient;
pub use error::QmpError;
pub(crate) use guardian::GuardianProcess;
pub(crate) use guest::GuestAgent;
pub use message::QemuVersion;
