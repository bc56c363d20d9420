//! Bodies of files: their division into rows, and checked reads of their parts.
//!
//! Invariants
//! - A whole body is checked against the CRC32C of the file. A part is checked against the checksums of all
//!   blocks that it touches.
//! - Writing slices the caller's bytes without a copy; reading one piece makes no copy either.

use crate::error::{corrupt, of_engine};
use crate::format::{
    BLOCK_BYTES, FileHead, INLINE_BYTES, PIECE_BYTES, block_sum, parse_sums, piece_len, pieces_of, sums_row,
};
use crate::keys;
use crate::keyspaces::DataKeyspaces;
use bytes::Bytes;
use copal_codec::crc32c;
use copal_kv::Batch;
use copal_volume::{FileId, VolumeError, VolumeId};
use std::ops::Range;

/// Adds one piece of a body to a batch, with the checksums of its blocks unless `single_block`: the file's own
/// checksum covers a body of one block.
pub(crate) fn add_piece(
    spaces: &DataKeyspaces,
    batch: &mut Batch,
    vid: VolumeId,
    fid: FileId,
    index: u32,
    bytes: Bytes,
    single_block: bool,
) {
    let key = keys::piece(vid, fid, index);
    if !single_block {
        batch.put(&spaces.sums, &key, sums_row(&key, &bytes));
    }
    batch.put(&spaces.extents, &key, bytes);
}

/// Whether a body of this size has no checksums of blocks.
pub(crate) fn is_single_block(size: u64) -> bool {
    size <= BLOCK_BYTES
}

/// Bodies with more pieces are deleted as a range, so that the deletion of any body fits into a batch, even
/// with little memory. A range stays in memory until merges drop it; few pieces are therefore deleted one by
/// one.
const MANY_PIECES: u32 = 256;

/// Adds the deletion of all pieces of a body to a batch.
pub(crate) fn delete_pieces(
    spaces: &DataKeyspaces,
    batch: &mut Batch,
    vid: VolumeId,
    fid: FileId,
    size: u64,
) {
    if size <= INLINE_BYTES {
        return;
    }
    delete_first_pieces(spaces, batch, vid, fid, pieces_of(size), !is_single_block(size));
}

/// Adds the deletion of the first `count` pieces of a body to a batch, and of their checksums if `has_sums`.
pub(super) fn delete_first_pieces(
    spaces: &DataKeyspaces,
    batch: &mut Batch,
    vid: VolumeId,
    fid: FileId,
    count: u32,
    has_sums: bool,
) {
    let of_sums = has_sums.then_some(&spaces.sums);
    for space in std::iter::once(&spaces.extents).chain(of_sums) {
        if count > MANY_PIECES {
            batch.delete_range(space, &keys::piece(vid, fid, 0), &keys::piece(vid, fid, count));
            continue;
        }
        for index in 0..count {
            batch.delete(space, &keys::piece(vid, fid, index));
        }
    }
}

/// Reads and checks `range` of a body. It must lie inside the body.
/// # Errors
/// `Corrupt`, also if a piece is missing: the file may have been deleted in the meantime.
pub(crate) fn read(
    spaces: &DataKeyspaces,
    vid: VolumeId,
    head: &FileHead,
    range: Range<u64>,
) -> Result<Bytes, VolumeError> {
    debug_assert!(range.start <= range.end && range.end <= head.size);
    let cut = |whole: Bytes| whole.slice(range.start as usize..range.end as usize);
    if let Some(body) = &head.inline {
        check_whole(head, crc32c(0, body))?;
        return Ok(cut(body.clone()));
    }
    if range.is_empty() {
        return Ok(Bytes::new());
    }
    if is_single_block(head.size) {
        let body = piece(spaces, vid, head, 0)?;
        check_whole(head, crc32c(0, &body))?;
        return Ok(cut(body));
    }
    if range == (0..head.size) {
        return read_whole(spaces, vid, head);
    }
    let first = (range.start / PIECE_BYTES) as u32;
    let last = ((range.end - 1) / PIECE_BYTES) as u32;
    let part = |index: u32| {
        let at = u64::from(index) * PIECE_BYTES;
        let start = range.start.saturating_sub(at);
        let end = (range.end - at).min(PIECE_BYTES);
        read_part(spaces, vid, head, index, start..end)
    };
    if first == last {
        return part(first);
    }
    let mut parts = Vec::with_capacity((range.end - range.start) as usize);
    for index in first..=last {
        parts.extend_from_slice(&part(index)?);
    }
    Ok(Bytes::from(parts))
}

fn read_whole(spaces: &DataKeyspaces, vid: VolumeId, head: &FileHead) -> Result<Bytes, VolumeError> {
    let pieces = pieces_of(head.size);
    let first = piece(spaces, vid, head, 0)?;
    let mut sum = crc32c(0, &first);
    if pieces == 1 {
        check_whole(head, sum)?;
        return Ok(first);
    }
    // It grows piece by piece: the size is not verified against the existing pieces yet.
    let mut body = Vec::from(first.as_ref());
    drop(first);
    for index in 1..pieces {
        let piece = piece(spaces, vid, head, index)?;
        sum = crc32c(sum, &piece);
        body.extend_from_slice(&piece);
    }
    check_whole(head, sum)?;
    Ok(Bytes::from(body))
}

fn check_whole(head: &FileHead, sum: u32) -> Result<(), VolumeError> {
    if sum == head.crc32c {
        return Ok(());
    }
    Err(corrupt(format!(
        "the body of file {}: its checksum is {:08x}, its bytes give {sum:08x}",
        head.fid, head.crc32c
    )))
}

/// Reads one whole piece and checks its length.
fn piece(spaces: &DataKeyspaces, vid: VolumeId, head: &FileHead, index: u32) -> Result<Bytes, VolumeError> {
    let key = keys::piece(vid, head.fid, index);
    let bytes = spaces.extents.get(&key).map_err(|e| of_engine(&e))?.ok_or_else(|| missing(head, index))?;
    let wanted = piece_len(head.size, index);
    if bytes.len() as u64 != wanted {
        return Err(wrong_length(head, index, bytes.len(), wanted));
    }
    Ok(bytes)
}

/// Reads a part of one piece and checks it by the checksums of the blocks that it touches.
fn read_part(
    spaces: &DataKeyspaces,
    vid: VolumeId,
    head: &FileHead,
    index: u32,
    range: Range<u64>,
) -> Result<Bytes, VolumeError> {
    let key = keys::piece(vid, head.fid, index);
    let len = piece_len(head.size, index);
    let sums = piece_sums(spaces, head, index, &key)?;
    let first = range.start / BLOCK_BYTES;
    let cover = first * BLOCK_BYTES..range.end.next_multiple_of(BLOCK_BYTES).min(len);
    let bytes = spaces
        .extents
        .get_range(&key, cover.clone())
        .map_err(|e| of_engine(&e))?
        .ok_or_else(|| missing(head, index))?;
    if bytes.len() as u64 != cover.end - cover.start {
        return Err(wrong_length(head, index, bytes.len(), cover.end - cover.start));
    }
    check_blocks(head, index, &key, &sums, cover.start, &bytes)?;
    let start = (range.start - cover.start) as usize;
    Ok(bytes.slice(start..start + (range.end - range.start) as usize))
}

/// Checks `bytes`, which are whole blocks of a piece from `start` on.
pub(super) fn check_blocks(
    head: &FileHead,
    index: u32,
    key: &[u8],
    sums: &[u32],
    start: u64,
    bytes: &[u8],
) -> Result<(), VolumeError> {
    for (block, bytes) in (start / BLOCK_BYTES..).zip(bytes.chunks(BLOCK_BYTES as usize)) {
        if sums.get(block as usize) != Some(&block_sum(key, block as u32, bytes)) {
            return Err(corrupt(format!(
                "file {}, piece {index}, block {block}: its checksum differs",
                head.fid
            )));
        }
    }
    Ok(())
}

/// Reads the checksums of the blocks of one piece.
pub(crate) fn piece_sums(
    spaces: &DataKeyspaces,
    head: &FileHead,
    index: u32,
    key: &[u8],
) -> Result<Vec<u32>, VolumeError> {
    let row = spaces.sums.get(key).map_err(|e| of_engine(&e))?.ok_or_else(|| missing(head, index))?;
    parse_sums(key, &row, piece_len(head.size, index))
        .map_err(|error| corrupt(format!("the checksums of piece {index} of file {}: {error}", head.fid)))
}

fn missing(head: &FileHead, index: u32) -> VolumeError {
    corrupt(format!("piece {index} of file {} is missing", head.fid))
}

fn wrong_length(head: &FileHead, index: u32, found: usize, wanted: u64) -> VolumeError {
    corrupt(format!("piece {index} of file {} gave {found} bytes, not {wanted}", head.fid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_device::{Device, MemoryDevice};
    use copal_kv::{Durability, Options, Store};
    use copal_volume::MAX_FILE_BYTES;
    use std::sync::Arc;

    /// Symptom: with little engine memory, a file of tens of gigabytes could not be deleted. Cause: the
    /// deletion named each piece twice, and one batch has no memory for so many. Fix: many pieces are deleted
    /// as a range.
    #[test]
    fn the_longest_file_is_deleted_with_the_least_memory() {
        let device: Arc<dyn Device> = MemoryDevice::new(64 << 20);
        copal_object::Store::mkfs(&device, &copal_object::MkfsOptions::default()).unwrap();
        let (objects, _) = copal_object::Store::open(device, &copal_object::OpenOptions::default()).unwrap();
        let options = Options { memory_bytes: 4 << 20, ..Options::default() };
        let kv = Store::open(objects, options).unwrap();
        let spaces = DataKeyspaces::open(&kv).unwrap();
        let (vid, fid, next) = (VolumeId(3), FileId(7), FileId(8));
        let last = pieces_of(MAX_FILE_BYTES) - 1;
        let mut batch = kv.batch();
        for (fid, index) in [(fid, 0), (fid, 300), (fid, last), (next, 0)] {
            add_piece(&spaces, &mut batch, vid, fid, index, Bytes::from(vec![1; 9000]), false);
        }
        batch.commit(Durability::Process).unwrap();
        let mut batch = kv.batch();
        delete_pieces(&spaces, &mut batch, vid, fid, MAX_FILE_BYTES);
        batch.commit(Durability::Process).unwrap();
        for space in [&spaces.extents, &spaces.sums] {
            let left: Vec<_> = space.prefix(&[]).map(|row| row.unwrap().0).collect();
            assert_eq!(left, [&keys::piece(vid, next, 0)[..]]);
        }
    }
}
