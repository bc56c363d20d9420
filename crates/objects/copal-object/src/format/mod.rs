//! Disk formats, by hand: superblock, journal record, group record, segment header, checkpoint page, frame.
//!
//! Format: docs/formats/object-superblock.md, object-record.md, object-checkpoint.md, object-frame.md,
//! object-segment.md
//! Invariants
//! - Little-endian. Reserved bytes are zero and checked. Every byte of every structure is under a checksum.
//! - A length or count is bounded by the existing bytes before it is used.
//!
//! Not here: meaning of the content (`tables`), its position (`journal`, `checkpoint`, `superblock`).

pub(crate) mod checkpoint;
pub(crate) mod frame;
pub(crate) mod group;
pub(crate) mod moved_part;
pub(crate) mod ops;
pub(crate) mod record;
pub(crate) mod run;
pub(crate) mod scrub_place;
pub(crate) mod segment;
pub(crate) mod sum_rule;
pub(crate) mod superblock;

use xxhash_rust::xxh3;

/// XXH3-64, for the hash chain of the journal.
pub(crate) fn hash64(bytes: &[u8]) -> u64 {
    xxh3::xxh3_64(bytes)
}

/// XXH3-128, kept in the parent of a checkpoint page or sum trailer.
pub(crate) fn hash128(bytes: &[u8]) -> u128 {
    xxh3::xxh3_128(bytes)
}

#[cfg(test)]
mod tests;
