//! Chunking: from the bytes of a disk to segments, holes, chunks and ids.
//!
//! The paper (low-profile-dedup §1, §5) cuts segments of 2 MB into chunks of 4 KB on average; here the
//! average is 16 KiB.
//! Design: docs/design/backup.md#chunks
//!
//! Invariants
//! - Pure: no clock, no randomness, no I/O. The same bytes and key give the same chunks for ever.
//! - The chunks of a segment depend on the bytes of that segment and on nothing else.
//! - An aligned 4 KiB block of zero bytes is always a hole, whether or not the source reports it.
//! - Re-chunking of changed blocks gives exactly the result of chunking from scratch ([`rechunk`]).
//!
//! Not here: compression, encryption, packs, detection of duplicates (`copal-backup`).

mod gear;
mod hole;
mod id;
mod profile;
mod rechunk;
mod segment;

pub use gear::Chunker;
pub use hole::{BLOCK_BYTES, is_zero};
pub use id::{ChunkId, IdKey};
pub use profile::ChunkProfile;
pub use rechunk::{BlockChange, NewPiece, rechunk};
pub use segment::{SEGMENT_BYTES, SegmentPiece, chunks_of, split};
