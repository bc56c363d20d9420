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

mod backend;
mod check;
mod checkpoint;
mod commit;
#[cfg(test)]
mod crashes;
mod engine;
mod flaw;
mod format;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod interface;
mod object;
mod open;
mod recovery;
mod resize;
mod space;
mod state;
mod store;
mod stream;
mod tables;

pub use check::{
    coverage::{RangeCoverage, SummedData, UnusedSpace},
    fsck::{CheckOptions, StoreCheckReport, StoreDamage},
};
pub use commit::operations::{Op, Txn};
pub use interface::{
    Ack, CreateOptions, FramePos, Lsn, MkfsOptions, ObjectId, ObjectKind, ObjectLifetime, ObjectStat,
    OlderState, OpenOptions, ReadCheck, RecoveryReport, StoreSpace, WritableSpace,
    error::{StoreError, StoreOpenError},
};
pub use object::writer::{ObjectWriter, StagedObject};
pub use resize::{
    grow::{SpaceReservation, SystemLoan},
    shrink::ShrinkReport,
};
pub use store::{Store, owner::StoreOwnership};
pub use stream::{frame_reader::FrameReader, raw_extent::RawExtent, reserved_frame::ReservedFrame};
