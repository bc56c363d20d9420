//! Summary vectors: one Bloom filter per snapshot over all that it refers to and that belongs to its VM
//! alone.
//!
//! Whoever deletes a snapshot merges the vectors of those that stay, by a bitwise OR, and asks the result
//! about what the deleted one referred to. What it has not is referred to by nobody and goes at once, without
//! reading any recipe of the others. What it has may be there by chance: that is the leak, which a repair
//! finds.
//!
//! Paper:  low-profile-dedup §4 (summary comparison, error rate, Table 4)
//! Format: docs/formats/backup-summary.md v1
//! Invariants
//! - No answer "not there" is wrong: vectors are merged only where their geometries are equal, and each block
//!   is under a MAC.
//! - Memory is one block, of 8 MiB at most, whatever the size of the VM.
//!
//! Not here: which snapshots stay (`freeing`), walking recipes (`references`).

mod block;
pub(crate) mod format;
mod geometry;
pub(crate) mod store;

pub use block::Block;
pub use geometry::Geometry;
