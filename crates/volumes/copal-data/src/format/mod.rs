//! Binary format of the data node's rows.
//!
//! Format: docs/formats/data-rows.md v1
//! Invariants
//! - Every row except a piece of a body begins with the same 8 bytes: version, kind, flags that a reader must
//!   understand, and a CRC32C. The checksum also covers the row's key, so a row that was read for another key
//!   is detected as damage.
//! - A reader refuses unknown versions, kinds, flags and lengths.

mod frame;
mod head;
mod member;
mod node;
mod sums;
mod upload;
mod volume;

pub(crate) use head::{FileHead, upload_row, upload_started_ms};
pub(crate) use member::{JournalAction, JournalRow, MemberRow, TombstoneRow};
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

/// Maximum length of a body in the row of its head.
pub(crate) const INLINE_BYTES: u64 = 4096;
/// Length of the pieces of a larger body; the last one may be shorter.
pub(crate) const PIECE_BYTES: u64 = 4 << 20;
/// Bodies above this size have one checksum per block of this size, so that parts can be read and checked
/// separately.
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
