//! How the bytes of a disk become chunks: segments, holes, content-defined and fixed cuts, ids.
//!
//! The paper (low-profile-dedup §1, §5) cuts segments of 2 MB into chunks of 4 KB on average; here they have
//! 16 KiB.
//! Design: docs/design/backup.md#chunks
//!
//! Invariants
//! - Pure: no clock, no randomness, no I/O. The same bytes and key give the same chunks for ever.
//! - The chunks of a segment depend on the bytes of that segment and on nothing else.
//! - An aligned 4 KiB block of zero bytes is always a hole, whether or not the source says so.
//! - Re-chunking what changed gives exactly what chunking from scratch gives ([`rechunk`]).
//!
//! Not here: compression, sealing, packs, and the decision what is a duplicate (`copal-backup`).

mod gear;
mod hole;
mod id;
mod profile;
mod rechunk;
mod segment;

pub use gear::Chunker;
pub use hole::{BLOCK_BYTES, is_zero};
pub use id::{ChunkId, IdKey};
pub use profile::Profile;
pub use rechunk::{Dirty, Fresh, rechunk};
pub use segment::{Piece, SEGMENT_BYTES, chunks_of, split};
