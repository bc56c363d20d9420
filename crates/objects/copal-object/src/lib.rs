//! Object store: a hardware-neutral interface of objects with atomic, ordered transactions.
//!
//! Upper layers say *what*: these bytes belong together, this comes before that, this must survive power
//! loss. This layer decides *how*: where bytes go, in which writes, with how many flushes. Nothing above it
//! sees a page size, an address, a file name or a sync.
//!
//! Design: docs/design/object.md#purpose
//! Formats: docs/formats/object-*.md
//! Invariants
//! - One commit order. What survives a crash is a prefix of it that holds every commit acknowledged as
//!   durable.
//! - A transaction over any number of objects is one journal record and one flush.
//! - Acknowledged bytes are never overwritten in place.
//! - No thread of its own: callers and completions drive it.
//!
//! Promised to libraries, though the engine above does not use it: [`Op::Write`], [`Op::Seal`],
//! [`Op::TrimStream`].
//!
//! Not here: keys, compression, replication, a cache; who reads often keeps what it reads.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "a test without threads fails"))]

mod allocator;
mod broken;
mod checkpoint;
mod checkpointer;
mod clean_mark;
mod close;
mod coverage;
#[cfg(test)]
mod crashes;
mod engine;
mod entropy;
mod epoch;
mod error;
mod format;
mod frames;
mod fsck;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzz;
mod group;
mod grow;
mod hollow;
mod hostfs;
mod interface;
mod journal;
mod lenient;
mod map;
mod mkfs;
mod open;
mod operations;
mod owner;
mod owners;
mod pending_frames;
mod pins;
mod placement;
mod raw_extent;
mod read;
mod recent;
mod recovery;
mod reserved_frame;
mod run;
mod shared;
mod shrink;
mod snapshot;
mod space;
mod staged;
mod state;
mod store;
mod stream;
mod sums;
mod sync;
mod tables;
mod tail;
mod transaction;
mod walk;
mod write_clean_mark;

pub use coverage::{Covered, Summed, Unused};
pub use error::{OpenError, StoreError};
pub use frames::FrameReader;
pub use fsck::{CheckOptions, CheckReport, Damage};
pub use grow::{Reservation, SystemLoan};
pub use interface::{
    Ack, Check, CreateOptions, FramePos, Lifetime, Lsn, MkfsOptions, ObjectId, ObjectKind, OlderState,
    OpenOptions, RecoveryReport, Room, Space, Stat,
};
pub use operations::{Op, Txn};
pub use owner::Ownership;
pub use raw_extent::RawExtent;
pub use reserved_frame::ReservedFrame;
pub use shrink::Shrunk;
pub use staged::{ObjectWriter, Staged};
pub use store::Store;
