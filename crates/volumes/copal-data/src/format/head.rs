//! Head of a file, and mark of an upload under way.
//!
//! Format: docs/formats/data-rows.md v1

use super::INLINE_BYTES;
use super::frame::{RowError, RowKind, open, set_checksum, start, verify};
use bytes::Bytes;
use copal_codec::{Put, Reader};
use copal_volume::{FileId, FileInfo, MAX_FILE_BYTES, MAX_METADATA_BYTES, OpId};

const FLAG_INLINE: u16 = 1;
const FIELDS_LEN: usize = 16 + 16 + 8 + 4 + 2 + 2;

/// A file without the pieces of its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileHead {
    pub(crate) fid: FileId,
    /// The create; its time is the creation time of the file.
    pub(crate) op: OpId,
    pub(crate) size: u64,
    pub(crate) crc32c: u32,
    pub(crate) metadata: Bytes,
    /// The body of a small file, not checked yet; `None`: the body is in pieces.
    pub(crate) inline: Option<Bytes>,
}

impl FileHead {
    /// Encodes the row under `key`.
    pub(crate) fn row(&self, key: &[u8]) -> Bytes {
        let body_len = self.inline.as_ref().map_or(0, Bytes::len);
        let flags = if self.inline.is_some() { FLAG_INLINE } else { 0 };
        let mut row = start(RowKind::Head, flags, FIELDS_LEN + self.metadata.len() + body_len);
        row.put_u128(self.fid.0);
        row.put_u128(self.op.0);
        row.put_u64(self.size);
        row.put_u32(self.crc32c);
        row.put_u16(self.metadata.len() as u16);
        row.put_zeros(2);
        row.put_bytes(&self.metadata);
        set_checksum(key, &mut row);
        if let Some(body) = &self.inline {
            row.put_bytes(body);
        }
        Bytes::from(row)
    }

    /// Decodes the row under `key`. Head and metadata are checked; of an inline body only the length.
    pub(crate) fn parse(key: &[u8], row: &Bytes) -> Result<FileHead, RowError> {
        let mut input = Reader::new(row);
        let frame = open(RowKind::Head, FLAG_INLINE, &mut input)?;
        let fid = FileId(input.u128()?);
        let op = OpId(input.u128()?);
        let size = input.u64()?;
        let crc32c = input.u32()?;
        let metadata_len = usize::from(input.u16()?);
        input.zeros(2)?;
        let metadata_at = input.position();
        input.bytes(metadata_len)?;
        let end = input.position();
        verify(&frame, key, &row[..end])?;
        if metadata_len > MAX_METADATA_BYTES {
            return Err(value("metadata length", metadata_len as u64));
        }
        let is_inline = frame.flags & FLAG_INLINE != 0;
        if size > MAX_FILE_BYTES || is_inline != (size <= INLINE_BYTES) {
            return Err(value("size", size));
        }
        let inline = if is_inline {
            input.bytes(size as usize)?;
            Some(row.slice(end..input.position()))
        } else {
            None
        };
        input.finish()?;
        Ok(FileHead { fid, op, size, crc32c, metadata: row.slice(metadata_at..end), inline })
    }

    /// The head in the form for callers of the store. The metadata is copied: a list of heads must not keep
    /// the adjacent bodies in memory.
    pub(crate) fn info(&self) -> FileInfo {
        FileInfo {
            fid: self.fid,
            size: self.size,
            crc32c: self.crc32c,
            created_ms: self.op.ms(),
            metadata: Bytes::copy_from_slice(&self.metadata),
        }
    }
}

fn value(field: &'static str, value: u64) -> RowError {
    RowError::Value { field, value }
}

/// Encodes the mark of an upload that began at `started_ms`.
pub(crate) fn upload_row(key: &[u8], started_ms: u64) -> Bytes {
    let mut row = start(RowKind::Upload, 0, 8);
    row.put_u64(started_ms);
    set_checksum(key, &mut row);
    Bytes::from(row)
}

/// Decodes the start time of the upload under `key`.
pub(crate) fn upload_started_ms(key: &[u8], row: &[u8]) -> Result<u64, RowError> {
    let mut input = Reader::new(row);
    let frame = open(RowKind::Upload, 0, &mut input)?;
    let started_ms = input.u64()?;
    input.finish()?;
    verify(&frame, key, row)?;
    Ok(started_ms)
}
