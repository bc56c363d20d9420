//! Decoders of tables, log, manifest and values, by name: the fuzz targets use them, and a short run of each
//! is a test here.
//!
//! A structure behind a checksum is listed separately without it, since random input does not get past a
//! checksum. Built for tests and fuzzing only.

use crate::{
    format::{
        block::{self, DataBlock},
        block_cursor::BlockCursor,
        fences::PartitionFences,
        footer::{self, TableFooter},
        index::{self, IndexPage},
        meta::TableMeta,
        range_tombstones::RangeTombstones,
        tombstones,
    },
    open::apply_groups,
    tree::{
        manifest::{format as manifest, parse_label, state::ManifestState},
        value::ValuePointer,
    },
    write::{
        log::{self as log, GroupAssembler},
        page_cache_log::format as page_cache_log,
    },
};
use bytes::Bytes;
use copal_codec::Reader;
use copal_object::ObjectId;

/// Decodes any bytes, discards the result and must not panic.
pub type Decoder = fn(&[u8]);

const UID: u64 = 7;
const GENERATION: u64 = 3;

/// Names and decoders.
pub const DECODERS: &[(&str, Decoder)] = &[
    ("data block", |bytes| {
        let _ = DataBlock::decode(bytes, UID, 1);
    }),
    ("packed data block behind its sum", |bytes| {
        let (raw_len, payload) = bytes.split_at(bytes.len().min(2));
        let raw_len = raw_len.iter().fold(0, |len, &byte| len << 8 | u32::from(byte));
        let _ = DataBlock::decode(&block::crafted(payload, block::CODEC_LZ4, raw_len, UID, 1), UID, 1);
    }),
    ("unpacked data block", |bytes| {
        if let Ok(block) = DataBlock::parse(Bytes::copy_from_slice(bytes)) {
            walk(block);
        }
    }),
    ("index page", |bytes| {
        let _ = IndexPage::decode(bytes, UID, 1 << 20);
    }),
    ("index page behind its sum", |bytes| {
        let (data_len, page) = bytes.split_at(bytes.len().min(2));
        let data_len = data_len.iter().fold(0, |len, &byte| len << 8 | u64::from(byte));
        if let Ok(page) = IndexPage::decode(&index::crafted(page, UID), UID, data_len) {
            let _ = page.find(bytes, 1);
            let _ = page.block(page.blocks());
        }
    }),
    ("fences", |bytes| {
        if let Ok(fences) = PartitionFences::decode(bytes, 1 << 30) {
            let _ = fences.find(bytes);
        }
    }),
    ("range tombstones", |bytes| {
        if let Ok(tombstones) = tombstones::decode(bytes) {
            let _ = RangeTombstones::new(&tombstones);
        }
    }),
    ("table properties", |bytes| {
        let _ = TableMeta::decode(&mut Reader::new(bytes));
    }),
    ("table footer", |bytes| {
        let _ = TableFooter::from_tail(bytes, ObjectId(UID), 1 << 30);
    }),
    ("table footer behind its sum", |bytes| {
        let _ = TableFooter::from_tail(&footer::crafted(bytes), ObjectId(UID), 1 << 30);
    }),
    ("manifest", |bytes| {
        let _ = manifest::parse_edits(&Bytes::copy_from_slice(bytes));
    }),
    ("manifest header", |bytes| {
        let _ = manifest::parse_header(bytes);
    }),
    ("manifest edit behind its sum", |bytes| {
        if let Ok(records) = manifest::parse_edits(&manifest::crafted(bytes)) {
            // Decoded records are applied, and the next rewrite writes them again.
            let mut state = ManifestState::default();
            records.iter().for_each(|record| state.apply(record));
            let _ = state.overlapping_table();
            let _ = manifest::encode_edit(0, &state.records().collect::<Vec<_>>());
        }
    }),
    ("log frame", |bytes| {
        let _ = GroupAssembler::new(GENERATION).push(0, &Bytes::copy_from_slice(bytes));
    }),
    ("log frames behind their sums", |bytes| {
        let mut assembler = GroupAssembler::new(GENERATION);
        let frames = log::crafted(GENERATION, bytes).into_iter().enumerate();
        let groups = frames.filter_map(|(position, frame)| assembler.push(position as u64, &frame).ok()?);
        let _ = apply_groups(groups);
    }),
    ("log operations", |bytes| {
        if let Some((&count, operations)) = bytes.split_first() {
            let _ = log::decode_ops(Bytes::copy_from_slice(operations), u32::from(count));
        }
    }),
    ("page-cache log", |bytes| {
        let _ = page_cache_log::CacheLogHeader::decode(bytes, 1 << 20);
        let header = page_cache_log::CacheLogHeader::new(UID, page_cache_log::FRONT_BYTES + 2 * 4096);
        let mut room = vec![0; (page_cache_log::FRONT_BYTES + 2 * 4096) as usize];
        room[..page_cache_log::HEADER_LEN].copy_from_slice(&header.encode());
        let len = bytes.len().min(4096);
        room[page_cache_log::FRONT_BYTES as usize..][..len].copy_from_slice(&bytes[..len]);
        let _ = page_cache_log::read_all(&room, 3);
    }),
    ("page-cache log behind its sums", |bytes| {
        let _ = page_cache_log::read_all(&page_cache_log::crafted(UID, bytes), 3);
    }),
    ("label", |bytes| {
        let _ = bytes.first_chunk().map(parse_label);
    }),
    ("value pointer", |bytes| {
        if let Ok(pointer) = ValuePointer::decode(bytes) {
            let _ = pointer.range();
            let _ = pointer.verify(0, bytes);
        }
    }),
];

/// Reads every entry of a block in both directions, then searches for keys from before the first to after the
/// last.
fn walk(block: DataBlock) {
    let mut cursor = BlockCursor::new(block);
    let mut moved = cursor.first();
    while moved.is_ok() && cursor.valid() {
        moved = cursor.next();
    }
    let mut moved = cursor.last();
    while moved.is_ok() && cursor.valid() {
        moved = cursor.prev();
    }
    for key in [&b""[..], b"\0\x01", b"\x02", b"\xff\xff"] {
        let _ = cursor.seek(key, 1);
        let _ = cursor.seek_for_prev(key, 1);
    }
}

#[cfg(test)]
mod tests {
    use super::{
        GroupAssembler, ObjectId, TableFooter, footer, log, manifest, manifest::ManifestRecord,
        page_cache_log,
    };

    #[test]
    fn no_decoder_panics_on_any_bytes() {
        copal_testkit::decoders_survive(super::DECODERS, 4000);
    }

    /// The entries named "behind their sums" reach the decoder: complete structures come out.
    #[test]
    fn crafted_sums_open_the_way_behind_them() {
        let record = ManifestRecord::Settled { below: 9 };
        let edit = manifest::encode_edit(0, std::slice::from_ref(&record));
        let crafted = manifest::crafted(&edit[8..]);
        assert_eq!(manifest::parse_edits(&crafted).unwrap(), [record]);

        let (first, last) = (1, 2);
        let mut assembler = GroupAssembler::new(super::GENERATION);
        // A delete of a key of 5 bytes, split into two frames.
        let bytes = [&[first, 4, 1, 3][..], &[2, 5, 0], &[last, 4, 1, 4], &[0, 0, 1, 7]].concat();
        let frames = log::crafted(super::GENERATION, &bytes);
        assert!(assembler.push(0, &frames[0]).unwrap().is_none());
        let group = assembler.push(1, &frames[1]).unwrap().unwrap();
        assert_eq!((group.first_seq, group.ops.len()), (4, 1));

        // Groups without operations, with a sequence beyond the tables' last, and at the maximum sequence.
        let groups = |bytes: &[u8]| {
            let frames = log::crafted(super::GENERATION, bytes);
            let mut assembler = GroupAssembler::new(super::GENERATION);
            let pushed = assembler.push(0, &frames[0]);
            pushed.map(|group| super::apply_groups(group.into_iter()).unwrap())
        };
        assert_eq!(groups(&[first | last, 4, 1, 7, 2, 5, 0, 0, 0, 1, 7]).unwrap(), 4);
        assert!(groups(&[first | last, 255, 0, 0]).is_err());

        // A delete of a key of 5 bytes in either half.
        let delete = [2, 5, 0, 0, 0, 1, 7];
        let room = [&[1, 4, 1, 7][..], &delete, &[0, 5, 1, 7], &delete].concat();
        let found = page_cache_log::read_all(&page_cache_log::crafted(super::UID, &room), 3);
        assert_eq!(found.iter().map(|found| found.first_seq).collect::<Vec<_>>(), [4, 5]);

        let mut body = super::UID.to_le_bytes().to_vec();
        body.resize(8 + 8 + 3 * 20, 0);
        let footer = TableFooter::from_tail(&footer::crafted(&body), ObjectId(super::UID), 1 << 20);
        assert_eq!(footer.unwrap().object, ObjectId(super::UID));
    }
}
