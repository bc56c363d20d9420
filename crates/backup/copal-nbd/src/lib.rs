//! NBD, the network block device protocol: codec, blocking client and server.
//!
//! Copal implements a small part of the protocol itself, with a bound on every length: fixed newstyle
//! handshake, structured replies and block status. The main peer is QEMU (`qemu-nbd`, the storage daemon,
//! libvirt's pull mode). Any server that follows the public specification works (`doc/proto.md` of the NBD
//! project).
//!
//! Invariants
//! - No length sent by the peer sizes an allocation before it is checked against the request, or against a
//!   constant of [`limits`].
//! - A read completes only when every byte of it was covered exactly once.
//!
//! Not here: TLS, extended headers, starting `qemu-nbd` (`copal-disk`), snapshots as disks (`copal-export`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod assembly;
mod client;
mod connections;
mod error;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod handshake;
mod map;
mod receiver;
pub mod server;
mod stream;
mod uri;
pub mod wire;

pub use client::{Client, ConnectOptions, PendingChange, PendingRead, ReadReply};
pub use connections::ConnectionPool;
pub use error::NbdError;
pub use handshake::{ExportInfo, MetaContext};
pub use map::{ExtentMap, MapExtent};
pub use uri::{ServerAddress, Uri};
pub use wire::{BASE_ALLOCATION, STATE_DIRTY, STATE_HOLE, STATE_ZERO, export_flags, limits};
