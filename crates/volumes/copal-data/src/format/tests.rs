use super::*;
use crate::keys;
use bytes::Bytes;
use copal_volume::{FileId, OpId, VolumeId, VolumeOptions};

/// The hex blocks of the format page, in order: key, row, key, row, ...
fn examples() -> Vec<Vec<u8>> {
    let document = include_str!("../../../../../docs/formats/data-rows.md");
    document
        .split("```hex\n")
        .skip(1)
        .map(|rest| {
            let block = rest.split("```").next().expect("split gives one");
            block
                .lines()
                .flat_map(|line| line.split_whitespace().skip(1))
                .map(|byte| u8::from_str_radix(byte, 16).expect("hex"))
                .collect()
        })
        .collect()
}

fn example_head() -> (Vec<u8>, FileHead) {
    let head = FileHead {
        fid: FileId::new(1_000, 2, 0x0102_0304_0506_0708),
        op: OpId(FileId::new(1_005, 0, 0x0102_0304_0506_0708).0),
        size: 5,
        crc32c: copal_codec::crc32c(0, b"hello"),
        metadata: Bytes::from_static(b"md"),
        inline: Some(Bytes::from_static(b"hello")),
    };
    (keys::named(VolumeId(7), b"greeting"), head)
}

fn example_volume() -> (Vec<u8>, VolumeRow) {
    let options = VolumeOptions { quota_bytes: None, spare_copies: true };
    let row = VolumeRow::new(VolumeId(0), "mail", 1_000, &options);
    (keys::volume(VolumeId(7)).to_vec(), row)
}

fn example_upload() -> UploadRow {
    UploadRow {
        touched_ms: 1_000,
        bytes: 4_194_304,
        client: Bytes::from_static(b"nightly.client.copal"),
        incarnation: 3,
    }
}

fn example_staged_piece() -> StagedPieceRow {
    StagedPieceRow { len: 100_000, crc32c: copal_codec::crc32c(0, &[9; 100_000]) }
}

/// One row of each kind: (key, row).
fn all_rows() -> Vec<(Vec<u8>, Bytes)> {
    let (head_key, head) = example_head();
    let (volume_key, volume) = example_volume();
    let fid = FileId::new(1_000, 2, 3);
    let piece = keys::piece(VolumeId(7), fid, 1).to_vec();
    let upload = keys::upload(VolumeId(7), fid).to_vec();
    let name = keys::named(VolumeId(0), b"mail");
    let group = 0_u32.to_be_bytes().to_vec();
    let mark = mark_key(2_000).to_vec();
    let rows = [
        (head_key.clone(), head.row(&head_key)),
        (piece.clone(), sums_row(&piece, &[9; 100_000])),
        (upload.clone(), upload_row(&upload, 1_000)),
        (volume_key.clone(), volume.row(&volume_key)),
        (name.clone(), name_row(&name, VolumeId(7))),
        (group.clone(), group_row(&group, 1)),
        (NEXT_VID_KEY.to_vec(), number_row(NEXT_VID_KEY, 8)),
        (mark.clone(), mark_row(&mark)),
        (upload.clone(), example_upload().row(&upload)),
        (piece.clone(), example_staged_piece().row(&piece)),
    ];
    rows.to_vec()
}

/// Result of the decoder for each kind, in the order of [`all_rows`].
fn reads(kind: usize, key: &[u8], row: &Bytes) -> Result<(), RowError> {
    match kind {
        0 => FileHead::parse(key, row).map(drop),
        1 => parse_sums(key, row, 100_000).map(drop),
        2 => upload_started_ms(key, row).map(drop),
        3 => VolumeRow::parse(key, row).map(drop),
        4 => parse_name_row(key, row).map(drop),
        5 => parse_group_row(key, row).map(drop),
        6 => parse_number_row(key, row).map(drop),
        7 => parse_mark(key, row).map(drop),
        8 => UploadRow::parse(key, row).map(drop),
        _ => StagedPieceRow::parse(key, row).map(drop),
    }
}

#[test]
fn we_write_and_read_the_examples_of_the_document() {
    let mut written = Vec::new();
    for (key, row) in all_rows() {
        written.push(key);
        written.push(row.to_vec());
    }
    let identity = StoreIdentity { uuid: *b"0123456789abcdef", created_ms: 1_000 };
    written.push(IDENTITY_KEY.to_vec());
    written.push(identity.row().to_vec());
    let examples = examples();
    assert_eq!(examples.len(), written.len(), "one block per key and row");
    for (example, ours) in examples.iter().zip(&written) {
        assert_eq!(example, ours);
    }
    assert_eq!(parse_identity(&examples[21]), Ok(identity));
}

/// Rows from before 2026-11 may contain a number of replicas and a class of disk, which no store used. They
/// decode to the same volume without these.
#[test]
fn a_volume_with_the_reserved_fields_of_before_is_read() {
    let (key, volume) = example_volume();
    let mut row = b"\x01\x56\x03\x00\xf0\xb9\x3e\x2c\0\0\0\0\0\0\0\0\xe8\x03\0\0\0\0\0\0".to_vec();
    row.extend([0xff; 8]);
    row.extend(b"\x01\x03\x04\x03\0\0\0\0mailhdd");
    assert_eq!(VolumeRow::parse(&key, &row), Ok(volume));
}

#[test]
fn every_row_comes_back() {
    let (key, head) = example_head();
    assert_eq!(FileHead::parse(&key, &head.row(&key)), Ok(head.clone()));
    let large = FileHead { size: 100_000, inline: None, ..head };
    assert_eq!(FileHead::parse(&key, &large.row(&key)), Ok(large));
    let (key, volume) = example_volume();
    assert_eq!(VolumeRow::parse(&key, &volume.row(&key)), Ok(volume.clone()));
    let removing = VolumeRow { state: VolumeState::Removing, quota_bytes: Some(5), ..volume };
    assert_eq!(VolumeRow::parse(&key, &removing.row(&key)), Ok(removing.clone()));
    for (kind, (key, row)) in all_rows().iter().enumerate() {
        assert_eq!(reads(kind, key, row), Ok(()), "kind {kind}");
    }
}

#[test]
fn no_flipped_bit_is_read_as_another_row() {
    for (kind, (key, row)) in all_rows().iter().enumerate() {
        // An inline body is checked by its own checksum when it is read.
        let checked = if kind == 0 { row.len() - 5 } else { row.len() };
        for bit in 0..checked * 8 {
            let mut flipped = row.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let read = reads(kind, key, &Bytes::from(flipped));
            assert!(read.is_err(), "kind {kind}: bit {bit} went unnoticed");
        }
        for len in 0..row.len() {
            let read = reads(kind, key, &row.slice(..len));
            assert!(read.is_err(), "kind {kind}: cut to {len} bytes");
        }
        let longer = Bytes::from([row.as_ref(), &[0]].concat());
        assert!(reads(kind, key, &longer).is_err(), "kind {kind}: a byte more");
    }
}

#[test]
fn a_row_of_another_key_is_damage() {
    for (kind, (key, row)) in all_rows().iter().enumerate() {
        let mut other = key.clone();
        let last = other.len() - 1;
        other[last] ^= 1;
        let read = reads(kind, &other, row);
        assert!(matches!(read, Err(RowError::Checksum { .. })), "kind {kind}: {read:?}");
    }
    let piece = keys::piece(VolumeId(1), FileId(2), 3);
    assert_ne!(block_sum(&piece, 0, b"x"), block_sum(&piece, 1, b"x"));
}

#[test]
fn rows_of_other_kinds_and_versions_are_named() {
    let rows = all_rows();
    let (key, row) = &rows[4];
    let read = reads(3, key, row);
    assert_eq!(read, Err(RowError::RowKind { found: b'N', wanted: b'V' }));
    let mut newer = row.to_vec();
    newer[0] = 2;
    let read = reads(4, key, &Bytes::from(newer));
    assert_eq!(read, Err(RowError::Version { found: 2 }));
}

#[test]
fn pieces_of_a_body() {
    let piece = PIECE_BYTES;
    assert_eq!(pieces_of(INLINE_BYTES + 1), 1);
    assert_eq!(pieces_of(piece), 1);
    assert_eq!(pieces_of(piece + 1), 2);
    assert_eq!(piece_len(piece + 1, 0), piece);
    assert_eq!(piece_len(piece + 1, 1), 1);
    assert_eq!(piece_len(piece + 1, 2), 0);
    assert_eq!(u64::from(pieces_of(copal_volume::MAX_FILE_BYTES)), (64 << 30) / piece);
}
