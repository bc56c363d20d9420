//! Object store: a hardware-neutral interface of objects with atomic, ordered transactions.
//!
//! Upper layers state requirements: these bytes belong together, this commit precedes that one, this must
//! survive power loss. The store chooses the means: places of bytes, writes, number of flushes. Layers above
//! see no page size, address, file name or sync.
//!
//! Design: docs/design/object.md#purpose
//! Formats: docs/formats/object-*.md
//! Invariants
//! - There is one commit order. After a crash a prefix of it survives, with every commit acknowledged as
//!   durable.
//! - A transaction over any number of objects is one journal record and one flush.
//! - Acknowledged bytes are never overwritten in place.
//! - The store has no thread: callers and completions drive it.
//!
//! Interface for libraries that the engine above does not use: [`Op::Write`], [`Op::Seal`],
//! [`Op::TrimStream`].
//!
//! Not here: keys, compression, replication, a cache; frequent readers cache for themselves.

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
    dump::{
        StoreDump,
        item::{DumpField, DumpItem, DumpSink},
    },
    fsck::{CheckOptions, StoreCheckReport, StoreDamage},
    scrub::{SCRUB_PLACE_ID, ScrubPace, StoreScrub, StoreScrubProgress},
};
pub use commit::operations::{Op, Txn};
pub use interface::{
    Ack, BackendKind, CreateOptions, DiscardMode, FramePos, LogSegments, Lsn, MkfsOptions, ObjectId,
    ObjectKind, ObjectLifetime, ObjectStat, OlderState, OpenOptions, ReadCheck, RecoveryReport,
    StoreDiscards, StoreSpace, WritableSpace,
    error::{StoreError, StoreOpenError},
};
pub use object::{
    free_range::FreeRange,
    ranges::ObjectRangeSink,
    writer::{ObjectWriter, StagedObject},
};
pub use resize::{grow::SystemLoan, reservation::SpaceReservation, shrink::ShrinkReport};
pub use store::{Store, owner::StoreOwnership};
pub use stream::{frame_reader::FrameReader, raw_extent::RawExtent, reserved_frame::ReservedFrame};
