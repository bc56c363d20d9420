//! Decoders of the rows of volumes, by name, for the fuzz targets; a test runs each of them briefly.
//!
//! Random input does not pass a checksum. For a structure with a checksum, the list therefore also has a
//! decoder of the contents behind it. Built for tests and fuzzing only.

use crate::{
    format::{self, FileHead},
    keys,
};
use bytes::Bytes;
use copal_codec::Reader;
use copal_volume::{FileId, OpId};

/// Decoder of arbitrary bytes. It returns nothing and must not panic.
pub type Decoder = fn(&[u8]);

const KEY: &[u8] = b"key";
/// A valid key of a clock mark.
const MARK_KEY: &[u8] = b"mark/\0\0\0\0\0\0\0\x01";
const FLAG_CLASS: u16 = 1;
/// Length of the piece whose checksums are decoded.
const PIECE_LEN: u64 = 100_000;

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("file head", |bytes| {
        let _ = FileHead::parse(KEY, &Bytes::copy_from_slice(bytes));
    }),
    ("file head behind its sum", |bytes| {
        let mut input = Reader::new(bytes);
        let size = input.u64().unwrap_or_default();
        let metadata_len = usize::from(input.u16().unwrap_or_default()).min(input.remaining());
        let metadata = Bytes::copy_from_slice(input.bytes(metadata_len).unwrap_or_default());
        let body = Bytes::copy_from_slice(input.rest());
        let head = FileHead {
            fid: FileId(1),
            op: OpId(2),
            size,
            crc32c: 3,
            metadata,
            inline: Some(body).filter(|body| !body.is_empty()),
        };
        let _ = FileHead::parse(KEY, &head.row(KEY));
    }),
    ("upload", |bytes| {
        let _ = format::upload_started_ms(KEY, bytes);
        let row = Bytes::copy_from_slice(bytes);
        let _ = (format::UploadRow::parse(KEY, &row), format::StagedPieceRow::parse(KEY, bytes));
    }),
    ("sums", |bytes| {
        let _ = format::parse_sums(KEY, bytes, PIECE_LEN);
    }),
    ("member", |bytes| {
        let _ = format::MemberRow::parse(KEY, bytes);
    }),
    ("journal", |bytes| {
        let _ = format::JournalRow::parse(KEY, &Bytes::copy_from_slice(bytes));
    }),
    ("deleted file", |bytes| {
        let _ = format::TombstoneRow::parse(KEY, &Bytes::copy_from_slice(bytes));
    }),
    ("volume", |bytes| {
        let _ = format::VolumeRow::parse(KEY, bytes);
    }),
    ("name", |bytes| {
        let _ = format::parse_name_row(KEY, bytes);
    }),
    ("number", |bytes| {
        let _ = format::parse_number_row(KEY, bytes);
    }),
    ("mark", |bytes| {
        let _ = format::parse_mark(MARK_KEY, bytes);
    }),
    ("group", |bytes| {
        let _ = format::parse_group_row(KEY, bytes);
    }),
    ("rows behind their sums", |bytes| {
        let row = |kind| format::crafted(kind, 0, KEY, bytes);
        let _ = format::upload_started_ms(KEY, &row(b'U'));
        let _ = format::StagedPieceRow::parse(KEY, &row(b'P'));
        let _ = format::parse_sums(KEY, &row(b'S'), PIECE_LEN);
        let _ = format::VolumeRow::parse(KEY, &format::crafted(b'V', FLAG_CLASS, KEY, bytes));
        let _ = format::parse_name_row(KEY, &row(b'N'));
        let _ = format::parse_number_row(KEY, &row(b'X'));
        let _ = format::parse_group_row(KEY, &row(b'G'));
        // A mark stores everything in its key.
        let _ = format::parse_mark(bytes, &format::crafted(b'T', 0, bytes, &[]));
    }),
    ("identity", |bytes| {
        let _ = format::parse_identity(bytes);
    }),
    ("identity of a member", |bytes| {
        let _ = format::MemberIdentity::parse(bytes);
    }),
    ("identity behind its sum", |bytes| {
        let _ = format::parse_identity(&format::crafted_identity(bytes));
    }),
    ("keys", |bytes| {
        if let Some((_, rest)) = keys::split(bytes) {
            let _ = (keys::split_piece(rest), keys::split_upload(rest));
        }
        let _ = (keys::split_piece(bytes), keys::split_upload(bytes), keys::above(bytes));
    }),
];

#[cfg(test)]
mod tests {
    use super::{KEY, format};

    #[test]
    fn no_decoder_panics_on_any_bytes() {
        copal_testkit::decoders_survive(super::DECODERS, 4000);
    }

    #[test]
    fn crafted_sums_open_the_way_behind_them() {
        let row = format::crafted(b'X', 0, KEY, &9u64.to_le_bytes());
        assert_eq!(format::parse_number_row(KEY, &row), Ok(9));
        let mark = super::MARK_KEY;
        assert_eq!(format::parse_mark(mark, &format::crafted(b'T', 0, mark, &[])), Ok(1));
        assert_eq!(format::parse_identity(&format::crafted_identity(&[5; 24])).unwrap().uuid, [5; 16]);
    }
}
