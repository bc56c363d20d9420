//! Rows of the data node, byte by byte.
//!
//! Format: docs/formats/data-rows.md v1
//! Invariants
//! - Every row but a piece of a body begins with the same 8 bytes: version, kind, flags that must
//!   be understood, and a CRC32C that covers the row's key too, so a row read for another key is
//!   damage and not an answer.
//! - A reader refuses versions, kinds, flags and lengths it does not know.

mod frame;
mod head;
mod member;
mod node;
mod sums;
mod upload;
mod volume;

pub(crate) use head::{FileHead, upload_row, upload_started_ms};
pub(crate) use member::{Did, JournalRow, MemberRow, TombRow};
pub use node::MemberIdentity;
pub(crate) use node::{
    GROUP_KEY_LEN, IDENTITY_KEY, MARK_PREFIX, NEXT_VID_KEY, StoreIdentity, group_row, mark_key, mark_row,
    number_row, parse_group_row, parse_identity, parse_mark, parse_number_row,
};
pub(crate) use sums::{block_sum, parse_sums, sums_row};
pub(crate) use upload::{StagedPieceRow, UploadRow};
pub(crate) use volume::{VolumeRow, VolumeState, name_row, parse_name_row};
#[cfg(any(test, feature = "fuzz"))]
pub(crate) use {frame::crafted, node::crafted_identity};

/// Bodies up to here lie in the row of their head.
pub(crate) const INLINE_BYTES: u64 = 4096;
/// Larger bodies are cut into pieces of this size; the last may be shorter.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;
/// Bodies above this size carry one checksum per block of this size, so that a part can be read
/// and checked alone.
pub(crate) const BLOCK_BYTES: u64 = 64 << 10;

/// Number of pieces of a body that is not inline.
pub(crate) fn pieces_of(size: u64) -> u32 {
    size.div_ceil(PIECE_BYTES) as u32
}

/// Bytes of piece `index` of a body of `size` bytes.
pub(crate) fn piece_len(size: u64, index: u32) -> u64 {
    size.saturating_sub(u64::from(index) * PIECE_BYTES).min(PIECE_BYTES)
}

#[cfg(test)]
use frame::RowError;
#[cfg(test)]
mod tests;
