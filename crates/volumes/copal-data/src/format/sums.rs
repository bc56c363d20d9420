//! Checksums of the blocks of one piece.
//!
//! Format: docs/formats/data-rows.md v1
//! Paper:  beanfs §3.4.4 (payload checksums; here kept on disk too)

use super::frame::{FRAME_LEN, RowError, RowKind, open, set_checksum, start, verify};
use super::{BLOCK_BYTES, PIECE_BYTES};
use bytes::Bytes;
use copal_codec::{Put, Reader, crc32c};

/// Checksum of block `index` of the piece under `key`. It covers the place as well as the bytes: bytes of
/// another place do not match.
pub(crate) fn block_sum(key: &[u8], index: u32, block: &[u8]) -> u32 {
    let place = crc32c(crc32c(0, key), &index.to_le_bytes());
    crc32c(place, block)
}

/// Encodes the row under `key` for a piece with these bytes.
pub(crate) fn sums_row(key: &[u8], piece: &[u8]) -> Bytes {
    let blocks = piece.chunks(BLOCK_BYTES as usize);
    let mut row = start(RowKind::Sums, 0, blocks.len() * 4);
    for (index, block) in blocks.enumerate() {
        row.put_u32(block_sum(key, index as u32, block));
    }
    set_checksum(key, &mut row);
    Bytes::from(row)
}

/// Decodes the checksums under `key` of a piece of `len` bytes, one per block.
pub(crate) fn parse_sums(key: &[u8], row: &[u8], len: u64) -> Result<Vec<u32>, RowError> {
    debug_assert!(len <= PIECE_BYTES);
    let mut input = Reader::new(row);
    let frame = open(RowKind::Sums, 0, &mut input)?;
    verify(&frame, key, row)?;
    let blocks = len.div_ceil(BLOCK_BYTES);
    let found = (row.len() - FRAME_LEN) as u64;
    if found != blocks * 4 {
        return Err(RowError::Value { field: "length", value: found });
    }
    (0..blocks).map(|_| Ok(input.u32()?)).collect()
}
