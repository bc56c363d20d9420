//! Golden bytes: the store writes and reads the examples of docs/formats. Arbitrary and damaged bytes never
//! panic.

use super::{
    checkpoint, frame, group, hash128, ops::*, record, scrub_place::ScrubPlace, segment::SegmentHeader,
    sum_rule::SumRule, superblock::*,
};
use crate::{
    MkfsOptions, ObjectKind, ObjectLifetime, ReadCheck, Store,
    format::{moved_part::MovedPart, run::PageRun},
    tables::{ObjectTables, OpEffect, snapshot},
};
use copal_codec::{DecodeError, Reader};
use copal_device::{Device, MemoryDevice};
use std::sync::Arc;

/// Bytes of the hex example of a document: an offset, then bytes. Bytes that are not listed are zero.
fn example(document: &str, len: usize) -> Vec<u8> {
    let block = document.split("```hex\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let mut bytes = vec![0; len];
    for line in block.lines() {
        let mut words = line.split_whitespace();
        let at = usize::from_str_radix(words.next().unwrap(), 16).unwrap();
        for (index, byte) in words.enumerate() {
            bytes[at + index] = u8::from_str_radix(byte, 16).unwrap();
        }
    }
    bytes
}

/// Prints bytes as the documents do: lines of zeros are left out.
fn print(bytes: &[u8]) -> String {
    let lines = bytes.chunks(16).enumerate().filter(|(_, line)| line.iter().any(|&byte| byte != 0));
    let text = |(index, line): (usize, &[u8])| {
        let hex: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{:04x} {}\n", index * 16, hex.join(" "))
    };
    lines.map(text).collect()
}

fn assert_golden(bytes: &[u8], document: &str) {
    assert!(bytes == example(document, bytes.len()), "we write\n{}", print(bytes));
}

const SUPERBLOCK: &str = include_str!("../../../../../docs/formats/object-superblock.md");
const RECORD: &str = include_str!("../../../../../docs/formats/object-record.md");
const FRAME: &str = include_str!("../../../../../docs/formats/object-frame.md");
const SEGMENT: &str = include_str!("../../../../../docs/formats/object-segment.md");
const SCRUB_PLACE: &str = include_str!("../../../../../docs/formats/object-scrub-place.md");
const CHECKPOINT: &str = include_str!("../../../../../docs/formats/object-checkpoint.md");

fn superblock() -> Superblock {
    Superblock {
        uuid: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
        generation: 6,
        backend: BACKEND_COW,
        logical_block: 512,
        page_bytes: 4096,
        segment_bytes: 0,
        size_bytes: 64 << 20,
        journal_at: 272,
        journal_pages: 2048,
        checkpoint_at: 2320,
        checkpoint_bytes: 4096,
        checkpoint_lsn: 77,
        checkpoint_hash: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
        checkpoint_copy_at: 9000,
        chain_seed: 0x1111_2222_3333_4444,
        mount: 0x5555_6666_7777_8888,
        profile: String::new(),
    }
}

fn traits(kind: ObjectKind) -> ObjectTraits {
    ObjectTraits {
        kind,
        lifetime: ObjectLifetime::Long,
        check: ReadCheck::Caller,
        sums: SumRule::Hashes,
        expected_log2: 26,
        label: *b"value-log\0\0\0\0\0\0\0",
    }
}

fn record_header() -> record::RecordHeader {
    record::RecordHeader {
        store: 0x8899_aabb_ccdd_eeff,
        mount: 0x5555_6666_7777_8888,
        seq: 9,
        previous: 0x1111_2222_3333_4444,
        transactions: 1,
        epoch: 5,
        flushed_epoch: 4,
        first_lsn: 78,
        flushed_seq: 8,
    }
}

/// One of each operation.
fn all_ops() -> Vec<RecordOp> {
    let run = PageRun::new(3000, 2);
    vec![
        RecordOp::Create { id: 7, what: traits(ObjectKind::Plain) },
        RecordOp::Map { id: 7, at: 0, run, epoch: 0, rule: SumRule::Hashes, sums: vec![0xdead_beef] },
        RecordOp::Publish {
            id: 8,
            what: traits(ObjectKind::Sealed),
            len: 4096,
            runs: vec![run],
            trailer: 1 << 100,
            epoch: 4,
        },
        RecordOp::Unmap { id: 7, at: 1, pages: 1 },
        RecordOp::Resum { id: 7, at: 0, pages: 1, sum: 5 },
        RecordOp::Length { id: 7, len: 5000 },
        RecordOp::Clone { from: 7, to: 9 },
        RecordOp::Seal { id: 9 },
        RecordOp::Delete { id: 9 },
        RecordOp::StreamExtent { id: 10, run, first: 3, incarnation: 99 },
        RecordOp::StreamTrim { id: 10, upto: 3 },
        RecordOp::StreamTruncate { id: 10, cut: TailCut { from: 3, kept: 0, used: 1, incarnation: 98 } },
        RecordOp::Dep { id: 10, frame: 2 },
        RecordOp::Inline { run, bytes: vec![5; 4096].into() },
        RecordOp::InlinePlaced { upto: 76 },
        RecordOp::Durable { streams: vec![(10, 3), (11, 0)] },
        RecordOp::Mount {
            mount: 12,
            cuts: vec![StreamCut { id: 10, piece: 1, kept: 2, next: 3, incarnation: 4 }],
        },
        RecordOp::Grow { pages: 1 << 20 },
        RecordOp::StreamFrame { id: 10, run, frame: 4 },
        RecordOp::Move {
            to: PageRun::new(5000, 3),
            sum: 9,
            epoch: 4,
            parts: vec![
                MovedPart { id: 7, at: 0, from: run, offset: 0 },
                MovedPart { id: 8, at: 4, from: PageRun::new(3002, 1), offset: 2 },
            ],
        },
        RecordOp::Frames {
            streams: vec![
                StreamFrames { id: 10, durable: DurableFrames { next: 3, last: Some(4) }, pages_max: 8 },
                StreamFrames { id: 11, durable: DurableFrames::default(), pages_max: 7 },
            ],
        },
    ]
}

#[test]
fn the_place_of_a_scrub_is_encoded_as_documented() {
    let place = ScrubPlace { page: 3000, damages: 1 };
    assert_golden(&place.encode(), SCRUB_PLACE);
    assert_eq!(ScrubPlace::decode(&place.encode()).unwrap(), place);
}

/// The part of a document from its hex example number `index` on.
fn from_example(document: &str, index: usize) -> String {
    let begin = "```hex\n";
    let at = document.match_indices(begin).nth(index).map_or(0, |(at, _)| at);
    document[at..].to_owned()
}

#[test]
fn the_move_of_the_document_is_written_and_read() {
    let parts = vec![
        MovedPart { id: 7, at: 10, from: PageRun::new(3000, 3), offset: 0 },
        MovedPart { id: 8, at: 4, from: PageRun::new(3100, 2), offset: 3 },
    ];
    let op = RecordOp::Move { to: PageRun::new(5000, 5), sum: 0xdead_beef, epoch: 9, parts };
    let bytes = encoded(std::slice::from_ref(&op));
    assert_golden(&bytes, &from_example(SEGMENT, 2));
    assert_eq!(RecordOp::decode(&mut Reader::new(&bytes)).unwrap(), op);
}

#[test]
fn the_segment_header_of_the_document_is_written_and_read() {
    let header = SegmentHeader { store: 0x8899_aabb_ccdd_eeff, segment: 3, number: 1, next: 4 };
    let mut page = vec![7; 4096];
    header.encode(&mut page);
    assert_golden(&page, SEGMENT);
    assert_eq!(SegmentHeader::decode(&page).unwrap(), header);
    for at in 0..4096 {
        let mut damaged = page.clone();
        damaged[at] ^= 1;
        assert!(SegmentHeader::decode(&damaged).is_err(), "byte {at} is under no checksum");
    }
}

#[test]
fn the_group_record_of_the_document_is_written_and_read() {
    let ops = vec![RecordOp::Create { id: 7, what: traits(ObjectKind::Plain) }];
    let header =
        group::GroupHeader { record: record_header(), at: 769, data_pages: 1, data_sum: 0xdead_beef };
    let mut first = vec![7; 4096];
    let hash = group::encode(&header, &encoded(&ops), &mut first, &mut []);
    assert_golden(&first, &from_example(SEGMENT, 1));
    assert_eq!(group::claimed_shape(&first, 769, 2).unwrap().pages(), 2);
    assert!(group::claimed_shape(&first, 770, 2).is_err(), "a record in another place is none");
    assert!(group::claimed_shape(&first, 769, 1).is_err(), "it is longer than its place");
    let found = group::decode(&first, &[]).unwrap();
    assert_eq!((found.header, found.ops, found.hash), (header, ops, hash));
    for at in 0..4096 {
        let mut damaged = first.clone();
        damaged[at] ^= 1;
        assert!(group::decode(&damaged, &[]).is_err(), "byte {at} is under no checksum");
    }
}

#[test]
fn a_group_record_with_many_operations_continues_behind_its_data() {
    let ops: Vec<RecordOp> = (0..100).flat_map(|_| all_ops()).collect();
    let encoded = encoded(&ops);
    let rest_pages = group::rest_pages(encoded.len(), 4096);
    assert!(rest_pages > 1);
    let header = group::GroupHeader { record: record_header(), at: 5, data_pages: 3, data_sum: 1 };
    let (mut first, mut rest) = (vec![7; 4096], vec![7; rest_pages as usize * 4096]);
    group::encode(&header, &encoded, &mut first, &mut rest);
    let shape = group::claimed_shape(&first, 5, 1000).unwrap();
    assert_eq!((shape.data_pages, shape.rest_pages), (3, rest_pages));
    assert_eq!(group::decode(&first, &rest).unwrap().ops, ops);
    assert!(group::decode(&first, &rest[4096..]).is_err());
    assert!(group::decode(&rest[..4096], &rest).is_err());
}

fn encoded(ops: &[RecordOp]) -> Vec<u8> {
    let mut out = Vec::new();
    ops.iter().for_each(|op| op.encode(&mut out));
    out
}

#[test]
fn the_superblock_of_the_document_is_written_and_read() {
    let bytes = superblock().encode(2);
    assert_golden(&bytes, SUPERBLOCK);
    assert_eq!(Superblock::decode(&bytes, 2).unwrap(), superblock());
    assert!(Superblock::decode(&bytes, 0).is_err(), "a copy in another's place is refused");
}

/// The second example of the document: version 3, since there is a profile.
#[test]
fn the_superblock_with_a_profile_of_the_document_is_written_and_read() {
    let with = Superblock { profile: "a profile of a device\n".to_owned(), ..superblock() };
    let bytes = with.encode(2);
    assert_eq!((superblock().encode(2)[8], bytes[8]), (2, 3), "only a profile takes the newer version");
    assert_golden(&bytes, SUPERBLOCK.split("## Example with a profile").nth(1).unwrap());
    assert_eq!(Superblock::decode(&bytes, 2).unwrap(), with);
    for at in [160, 164, 512, 530, 533, 534, 4095] {
        let mut broken = bytes;
        broken[at] ^= 1;
        assert!(Superblock::decode(&broken, 2).is_err(), "byte {at}");
    }
    for len in [512, 520, 534] {
        let _ = Superblock::decode(&bytes[..len], 2);
    }
    let longest = Superblock { profile: "x".repeat(3584), ..superblock() };
    assert_eq!(Superblock::decode(&longest.encode(2), 2).unwrap(), longest);
}

/// Symptom: a superblock with pages of 32 or 64 KiB was accepted, which its document does not allow and
/// `mkfs` does not make.
/// Cause: any power of two up to 64 KiB passed.
/// Fix: only the page sizes of `mkfs` are read.
#[test]
fn a_superblock_has_pages_of_a_size_that_stores_are_made_with() {
    for page_bytes in [512, 2048, 4095, 4096, 8192, 16_384, 32_768, 65_536, 1 << 31] {
        let bytes = Superblock { page_bytes, size_bytes: 1 << 30, checkpoint_bytes: 65_536, ..superblock() }
            .encode(2);
        let made = MkfsOptions { page_bytes: Some(page_bytes), ..MkfsOptions::default() };
        let device: Arc<dyn Device> = MemoryDevice::new(64 << 20);
        let is_made = Store::mkfs(&device, &made).is_ok();
        assert_eq!(Superblock::decode(&bytes, 2).is_ok(), is_made, "{page_bytes} bytes");
        assert_eq!(is_made, [4096, 8192, 16_384].contains(&page_bytes));
    }
}

/// The example of version 1 of the superblock.
const SUPERBLOCK_1: &str = "```hex
0000 43 4f 50 41 4c 53 55 50 01 00 00 00 00 00 00 00
0010 00 00 00 00 98 00 00 00 ae 80 fe f5 00 00 00 00
0020 ff ee dd cc bb aa 99 88 77 66 55 44 33 22 11 00
0030 06 00 00 00 00 00 00 00 01 02 00 00 00 02 00 00
0040 00 10 00 00 00 00 00 00 00 00 00 04 00 00 00 00
0050 10 01 00 00 00 00 00 00 00 08 00 00 00 00 00 00
0060 10 09 00 00 00 00 00 00 00 10 00 00 00 00 00 00
0070 4d 00 00 00 00 00 00 00 10 0f 0e 0d 0c 0b 0a 09
0080 08 07 06 05 04 03 02 01 44 44 33 33 22 22 11 11
0090 88 88 77 77 66 66 55 55 00 00 00 00 00 00 00 00
00a0 00 00 00 00 00 00 00 00 12 71 ec c6 9e a8 18 4b
00b0 ab 15 7a 33 68 3c 39 6c 00 00 00 00 00 00 00 00
```";

#[test]
fn a_superblock_of_version_1_has_one_copy_of_the_checkpoint() {
    let bytes = example(SUPERBLOCK_1, SUPERBLOCK_LEN);
    let before = Superblock { checkpoint_copy_at: 0, ..superblock() };
    assert_eq!(Superblock::decode(&bytes, 2).unwrap(), before);
}

/// Symptom: a superblock with a journal of 2^32 pages or more was accepted, and space was derived as if the
/// journal had that number modulo 2^32: its other pages were free.
/// Cause: a run counts its pages in 32 bits, and the journal was not bounded to a run.
/// Fix: such a superblock is refused.
#[test]
fn a_journal_longer_than_a_run_is_refused() {
    let longest = Superblock {
        size_bytes: 1 << 60,
        journal_pages: u32::MAX.into(),
        checkpoint_at: 1 << 40,
        ..superblock()
    };
    assert_eq!(Superblock::decode(&longest.encode(2), 2).unwrap(), longest);
    for journal_pages in [1 << 32, (1 << 32) + 2048] {
        let longer = Superblock { journal_pages, ..longest.clone() };
        let refused = Superblock::decode(&longer.encode(2), 2);
        assert!(
            matches!(refused, Err(SuperblockError::Field("journal"))),
            "{journal_pages} pages: {refused:?}"
        );
    }
}

#[test]
fn the_record_of_the_document_is_written_and_read() {
    let ops = &all_ops()[..2];
    let mut bytes = vec![0; 4096];
    record::encode(&record_header(), &encoded(ops), &mut bytes);
    assert_golden(&bytes, RECORD);
    let (header, read) = record::decode(&bytes).unwrap();
    assert_eq!((header, &read[..]), (record_header(), ops));
}

#[test]
fn the_record_of_a_cut_stream_of_the_document_is_written_and_read() {
    let cut = TailCut { from: 41, kept: 6, used: 9, incarnation: 0x9999_aaaa_bbbb_cccc };
    let ops = [RecordOp::StreamTruncate { id: 10, cut }];
    let mut bytes = vec![0; 4096];
    record::encode(&record_header(), &encoded(&ops), &mut bytes);
    assert_golden(&bytes, &from_example(RECORD, 1));
    assert_eq!(record::decode(&bytes).unwrap().1, ops);
}

#[test]
fn the_frames_of_the_document_are_written_and_read() {
    for (index, rule) in [SumRule::Hashes, SumRule::Crc32c].into_iter().enumerate() {
        let (incarnation, frame) = (0x9999_aaaa_bbbb_cccc, 41);
        let header = frame::FrameHeader { incarnation, frame, flushed_frame: 40, after: 78, rule };
        let mut bytes = vec![0; 4096];
        frame::encode(&header, b"put key value", &mut bytes);
        assert_golden(&bytes, &from_example(FRAME, index));
        assert_eq!(frame::decode(&bytes).unwrap(), (header, 13));
    }
}

// Symptom: after a power loss a frame of two pages with an old second page was valid. Cause: both second pages ended
// with a CRC32C of their own, so the CRC32C of the frame was the same. Fix: frames are summed over hashes.
#[test]
fn a_frame_with_an_old_page_is_refused_if_both_pages_end_with_their_own_sum() {
    let frame_with = |second: u8, rule| {
        let mut payload = vec![1; 8192 - frame::HEADER_LEN];
        let page = payload.len() - 4096;
        payload[page..].fill(second);
        let end = payload.len() - 4;
        let sum = copal_codec::crc32c(0, &payload[page..end]);
        payload[end..].copy_from_slice(&sum.to_le_bytes());
        let header = frame::FrameHeader { incarnation: 1, frame: 2, flushed_frame: 2, after: 0, rule };
        let mut bytes = vec![0; 8192];
        frame::encode(&header, &payload, &mut bytes);
        bytes
    };
    let mixed = |rule| [&frame_with(2, rule)[..4096], &frame_with(3, rule)[4096..]].concat();
    assert!(frame::decode(&mixed(SumRule::Hashes)).is_err());
    // The control: a sum of the bytes does not notice.
    assert!(frame::decode(&mixed(SumRule::Crc32c)).is_ok());
}

fn example_tables() -> ObjectTables {
    let mut tables = ObjectTables::new(4096, 16_384);
    for op in [
        RecordOp::Create { id: 7, what: traits(ObjectKind::Plain) },
        RecordOp::Map {
            id: 7,
            at: 0,
            run: PageRun::new(3000, 2),
            epoch: 0,
            rule: SumRule::Hashes,
            sums: vec![0xdead_beef],
        },
        RecordOp::Length { id: 7, len: 8192 },
        RecordOp::Create { id: 10, what: traits(ObjectKind::Stream) },
        RecordOp::StreamExtent { id: 10, run: PageRun::new(4096, 256), first: 0, incarnation: 99 },
    ] {
        tables.apply(&op, 1, &mut OpEffect::default()).unwrap();
    }
    tables
}

fn example_position() -> snapshot::CheckpointPosition {
    snapshot::CheckpointPosition {
        uuid: 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
        lsn: 77,
        next_seq: 9,
        journal_head: 8,
        epoch: 5,
        mount_pages: 2,
        segment: super::segment::ChainSegment { number: 3, next: 70 },
    }
}

#[test]
fn the_checkpoint_of_the_document_is_written_and_read() {
    let position = example_position();
    let mut tables = example_tables();
    tables.name_frames(10, DurableFrames { next: 3, last: Some(4) });
    let hollow = std::slice::from_ref(&(8192..12_288));
    let body = snapshot::encode(&tables, &position, &[(10, 16)], hollow);
    let mut page = vec![0; 4096];
    let hash = checkpoint::encode_page(77, 0, &checkpoint::ChainLink::default(), &body, &mut page);
    assert_golden(&page, CHECKPOINT);
    let read = checkpoint::decode_page(&page, hash, 77, 0).unwrap();
    assert_eq!((read.next, read.version), (checkpoint::ChainLink::default(), 5));
    let found = snapshot::decode(read.part, 4096, 5).unwrap();
    assert_eq!((found.position, found.zones), (position, vec![PageRun::new(2560, 4096)]));
    assert_eq!(found.hollow.first(), Some(&(8192..12_288)));
    let tables = found.tables;
    assert_eq!(tables.object(7).unwrap().map.sums_of(0, 16), [0xdead_beef]);
    let stream = tables.stream(10).unwrap();
    assert_eq!(stream.durable, DurableFrames { next: 3, last: Some(4) });
    assert_eq!((stream.frame_pages_max, tables.names_frames()), (7, true));
}

/// The example of version 3: the same tables.
const CHECKPOINT_3: &str = "```hex
0000 43 4f 50 41 4c 43 4b 50 03 00 00 00 00 00 00 00
0010 00 00 00 00 23 01 00 00 4e 6d cd 22 00 00 00 00
0020 4d 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
0050 ff ee dd cc bb aa 99 88 77 66 55 44 33 22 11 00
0060 4d 00 00 00 00 00 00 00 09 00 00 00 00 00 00 00
0070 08 00 00 00 00 00 00 00 05 00 00 00 00 00 00 00
0080 00 40 00 00 00 00 00 00 01 00 00 00 0a 00 00 00
0090 00 00 00 00 10 00 00 00 00 00 00 00 02 00 00 00
00a0 00 00 00 00 07 00 00 00 00 00 00 00 00 00 02 01
00b0 1a 76 61 6c 75 65 2d 6c 6f 67 00 00 00 00 00 00
00c0 00 00 00 20 00 00 00 00 00 00 01 00 00 00 00 00
00d0 00 00 b8 0b 00 00 00 00 00 00 02 00 00 00 ef be
00e0 ad de 0a 00 00 00 00 00 00 00 01 02 02 01 1a 76
00f0 61 6c 75 65 2d 6c 6f 67 00 00 00 00 00 00 00 00
0100 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 01
0110 00 00 00 00 10 00 00 00 00 00 00 00 01 00 00 00
0120 00 00 00 00 00 00 00 63 00 00 00 00 00 00 00 01
0130 00 00 00 00 20 00 00 00 00 00 00 00 10 00 00 00
```";

/// Such a stream has frames of any length, and no place is known.
#[test]
fn a_checkpoint_of_version_3_names_no_places_of_frames() {
    let page = example(CHECKPOINT_3, 4096);
    let read = checkpoint::decode_page(&page, hash128(&page), 77, 0).unwrap();
    assert_eq!(read.version, 3);
    let found = snapshot::decode(read.part, 4096, 3).unwrap();
    assert_eq!(
        found.position,
        snapshot::CheckpointPosition {
            mount_pages: 0,
            segment: super::segment::ChainSegment::default(),
            ..example_position()
        }
    );
    assert_eq!(found.hollow.first(), Some(&(8192..12_288)));
    let stream = found.tables.stream(10).unwrap();
    assert_eq!(stream.durable, DurableFrames { next: 3, last: None });
    assert_eq!((stream.frame_pages_max, found.tables.names_frames()), (256, false));
    // Versions before have no list of hollow runs.
    let older = snapshot::decode(&read.part[..read.part.len() - 20], 4096, 2).unwrap();
    assert!(older.hollow.is_empty());
}

/// A longest frame that no frame can have limits nothing.
#[test]
fn a_longest_frame_of_no_or_too_many_pages_is_any_frame() {
    for (claimed, pages) in [(0, 256), (1, 1), (256, 256), (257, 256), (u32::MAX, 256)] {
        let mut tables = example_tables();
        tables.stream_mut(10).unwrap().frame_pages_max = claimed;
        let body = snapshot::encode(&tables, &example_position(), &[], &[]);
        let found = snapshot::decode(&body, 4096, 5).unwrap();
        assert_eq!(found.tables.stream(10).unwrap().frame_pages_max, pages);
        let frames = StreamFrames { id: 10, durable: DurableFrames::default(), pages_max: claimed };
        let op = RecordOp::Frames { streams: vec![frames] };
        let mut tables = example_tables();
        tables.apply(&op, 2, &mut OpEffect::default()).unwrap();
        assert_eq!(tables.stream(10).unwrap().frame_pages_max, pages.max(7), "a record only raises it");
    }
}

#[test]
fn every_operation_round_trips_and_every_cut_is_an_error() {
    for op in all_ops() {
        let bytes = encoded(std::slice::from_ref(&op));
        assert_eq!(RecordOp::decode(&mut Reader::new(&bytes)).unwrap(), op);
        for cut in 0..bytes.len() {
            assert!(RecordOp::decode(&mut Reader::new(&bytes[..cut])).is_err(), "{op:?} cut at {cut}");
        }
    }
}

/// Symptom: an operation of a later build was refused with "the length at 0 is 200, at most 15 is allowed".
/// Cause: the decoder had no error for an unknown kind.
/// Fix: it has one.
#[test]
fn an_unknown_operation_is_called_one() {
    let error = RecordOp::decode(&mut Reader::new(&[200; 40])).unwrap_err();
    assert!(matches!(error, DecodeError::UnknownKind { at: 0, kind: 200, .. }), "{error}");
    assert!(error.to_string().contains("a later build"), "{error}");
}

#[test]
fn every_flipped_byte_of_every_structure_is_refused() {
    let mut record_bytes = vec![0; 8192];
    record::encode(&record_header(), &encoded(&all_ops()), &mut record_bytes);
    let mut frame_bytes = vec![0; 8192];
    let header =
        frame::FrameHeader { incarnation: 1, frame: 2, flushed_frame: 2, after: 0, rule: SumRule::Hashes };
    frame::encode(&header, &[7; 4500], &mut frame_bytes);
    let superblock_bytes = superblock().encode(1);
    for at in 0..4096 {
        let mut bytes = superblock_bytes;
        bytes[at] ^= 0x40;
        assert!(Superblock::decode(&bytes, 1).is_err(), "superblock byte {at}");
    }
    for at in 0..8192 {
        record_bytes[at] ^= 0x40;
        assert!(record::decode(&record_bytes).is_err(), "record byte {at}");
        record_bytes[at] ^= 0x40;
        frame_bytes[at] ^= 0x40;
        assert!(frame::decode(&frame_bytes).is_err(), "frame byte {at}");
        frame_bytes[at] ^= 0x40;
    }
}

/// Damaged bytes with a valid checksum, so that the decoder itself must reject them. Nothing may panic or
/// allocate memory without bound.
#[test]
fn decoders_survive_arbitrary_bytes() {
    let mut random = copal_testkit::Random::new(5);
    let mut next = move |below| random.index(below);
    let ops = encoded(&all_ops());
    let position = example_position();
    let body = snapshot::encode(&example_tables(), &position, &[(10, 16)], std::slice::from_ref(&(7..9)));
    for _ in 0..30_000 {
        let random: Vec<u8> = (0..next(300)).map(|_| next(256) as u8).collect();
        let mut input = Reader::new(&random);
        while RecordOp::decode(&mut input).is_ok() {}
        let _ = snapshot::decode(&random, 4096, 4);
        let _ = record::decode(&random);
        let _ = frame::decode(&random);
        let _ = Superblock::decode(&random, 0);

        let mut damaged = ops.clone();
        for _ in 0..1 + next(3) {
            let at = next(damaged.len());
            damaged[at] = next(256) as u8;
        }
        // Operations that still decode are applied: each either fits or is refused.
        let mut input = Reader::new(&damaged);
        let mut tables = example_tables();
        while let Ok(op) = RecordOp::decode(&mut input) {
            let _ = tables.apply(&op, 2, &mut OpEffect::default());
        }
        let mut damaged = body.clone();
        let at = next(damaged.len());
        damaged[at] = next(256) as u8;
        if let Ok(found) = snapshot::decode(&damaged, 4096, 4) {
            let again = snapshot::encode(&found.tables, &position, &[], &[]);
            assert!(snapshot::decode(&again, 4096, 4).is_ok());
        }
    }
}
