//! Summary vectors: one Bloom filter per snapshot over all its references to private frames of its VM.
//!
//! A deletion merges the vectors of the snapshots that stay, by a bitwise OR, and looks up the references of
//! the deleted one. A reference that the result does not contain is dead, and no recipe of other snapshots is
//! read for that. A reference that it contains may be there by chance: such frames are the leak, which a
//! repair finds.
//!
//! Paper:  low-profile-dedup §4 (summary comparison, error rate, Table 4)
//! Format: docs/formats/backup-summary.md v1
//! Invariants
//! - The answer "not contained" is never wrong: vectors are merged only if their geometries are equal, and
//!   each block has a MAC.
//! - Memory is one block of at most 8 MiB, for a VM of any size.
//!
//! Not here: the snapshots that stay (`dead_search`), walking recipes (`references`).

mod block;
pub(crate) mod format;
mod geometry;
pub(crate) mod store;

pub use block::Block;
pub use geometry::Geometry;
