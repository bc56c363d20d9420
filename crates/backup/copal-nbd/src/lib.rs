//! NBD, the network block device protocol: a pure codec, a blocking client and a server.
//!
//! Written by hand because Copal needs a small part of it, bounded in every length: fixed
//! newstyle handshake, structured replies, block status. QEMU is the peer that matters
//! (`qemu-nbd`, the storage daemon, libvirt's pull mode), any server of the public specification
//! (`doc/proto.md` of the NBD project) is welcome.
//!
//! Invariants
//! - No length sent by the peer sizes an allocation before it is checked against what was asked
//!   for, or against a constant of [`limits`].
//! - A read is answered only when every byte of it was covered exactly once.
//!
//! Not here: TLS, extended headers, starting `qemu-nbd` and snapshots as disks (`copal-backup`,
//! `copal-doors`).

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod assemble;
mod client;
mod connections;
mod error;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod handshake;
mod map;
mod receive;
pub mod server;
mod stream;
mod uri;
pub mod wire;

pub use client::{Client, ConnectOptions, PendingChange, PendingRead, ReadReply};
pub use connections::Connections;
pub use error::NbdError;
pub use handshake::{Context, ExportInfo};
pub use map::{Extent, Map};
pub use uri::{Address, Uri};
pub use wire::{BASE_ALLOCATION, STATE_DIRTY, STATE_HOLE, STATE_ZERO, export_flags, limits};
