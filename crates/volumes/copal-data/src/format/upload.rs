//! Rows of an upload on a data server: its origin, and the checksum of each piece until the file exists.
//!
//! Format: docs/formats/data-rows.md v1
//! Not here: the mark of an upload in an embedded store, which has one writer (`head`).

use super::{
    PIECE_BYTES,
    frame::{RowError, RowKind, open, set_checksum, start, verify},
};
use bytes::Bytes;
use copal_codec::{Put, Reader};

/// The row names the client that began the upload; earlier releases wrote rows without it.
const HAS_ORIGIN: u16 = 1;
/// Maximum length of a name in a certificate, bytes.
const MOST_CLIENT_BYTES: usize = 255;

/// An upload without a file yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UploadRow {
    /// Arrival time of its last piece, ms since 1970.
    pub(crate) touched_ms: u64,
    /// Bytes of its pieces.
    pub(crate) bytes: u64,
    /// Name in the certificate of the client that began it; empty: this server.
    pub(crate) client: Bytes,
    /// Incarnation of that client.
    pub(crate) incarnation: u64,
}

impl UploadRow {
    /// Encodes the row under `key`.
    pub(crate) fn row(&self, key: &[u8]) -> Bytes {
        let mut row = start(RowKind::Upload, HAS_ORIGIN, 25 + self.client.len());
        row.put_u64(self.touched_ms);
        row.put_u64(self.bytes);
        row.put_u64(self.incarnation);
        row.put_u8(self.client.len().min(MOST_CLIENT_BYTES) as u8);
        row.put_bytes(&self.client[..self.client.len().min(MOST_CLIENT_BYTES)]);
        set_checksum(key, &mut row);
        Bytes::from(row)
    }

    /// Decodes the row under `key`; `None`: an earlier release wrote it.
    pub(crate) fn parse(key: &[u8], row: &Bytes) -> Result<Option<UploadRow>, RowError> {
        let mut input = Reader::new(row);
        let frame = open(RowKind::Upload, HAS_ORIGIN, &mut input)?;
        verify(&frame, key, row)?;
        let touched_ms = input.u64()?;
        if frame.flags & HAS_ORIGIN == 0 {
            input.finish()?;
            return Ok(None);
        }
        let bytes = input.u64()?;
        let incarnation = input.u64()?;
        let len = usize::from(input.u8()?);
        let at = input.position();
        let client = row.slice(at..);
        if client.len() != len {
            return Err(RowError::Value { field: "length of a client's name", value: len as u64 });
        }
        Ok(Some(UploadRow { touched_ms, bytes, client, incarnation }))
    }
}

/// One piece of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StagedPieceRow {
    /// Its length in bytes.
    pub(crate) len: u32,
    /// CRC32C of its bytes.
    pub(crate) crc32c: u32,
}

impl StagedPieceRow {
    /// Encodes the row under `key`.
    pub(crate) fn row(&self, key: &[u8]) -> Bytes {
        let mut row = start(RowKind::Piece, 0, 8);
        row.put_u32(self.len);
        row.put_u32(self.crc32c);
        set_checksum(key, &mut row);
        Bytes::from(row)
    }

    /// Decodes the row under `key`.
    pub(crate) fn parse(key: &[u8], row: &[u8]) -> Result<StagedPieceRow, RowError> {
        let mut input = Reader::new(row);
        let frame = open(RowKind::Piece, 0, &mut input)?;
        verify(&frame, key, row)?;
        let (len, crc32c) = (input.u32()?, input.u32()?);
        input.finish()?;
        if len == 0 || u64::from(len) > PIECE_BYTES {
            return Err(RowError::Value { field: "length of a piece", value: len.into() });
        }
        Ok(StagedPieceRow { len, crc32c })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::upload_row;

    #[test]
    fn rows_of_uploads_come_back_and_crafted_ones_do_not() {
        let upload = UploadRow {
            touched_ms: 7,
            bytes: 9,
            client: Bytes::from_static(b"nightly.client.copal"),
            incarnation: 11,
        };
        let row = upload.row(b"k");
        assert_eq!(UploadRow::parse(b"k", &row), Ok(Some(upload)));
        assert!(UploadRow::parse(b"l", &row).is_err());
        assert!(UploadRow::parse(b"k", &row.slice(..row.len() - 1)).is_err());
        assert_eq!(UploadRow::parse(b"k", &upload_row(b"k", 7)), Ok(None), "of an earlier release");
        let piece = StagedPieceRow { len: 5, crc32c: 6 };
        assert_eq!(StagedPieceRow::parse(b"k", &piece.row(b"k")), Ok(piece));
        let none = StagedPieceRow { len: 0, ..piece };
        assert!(StagedPieceRow::parse(b"k", &none.row(b"k")).is_err());
    }
}
