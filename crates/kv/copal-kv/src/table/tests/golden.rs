//! The writer produces the example of docs/formats/kv-table.md, and the reader accepts it.

use super::{
    super::{ReadOptions, Table, TableBuilder, TableOptions, ValueUse},
    support::cache,
};
use crate::format::entry::{Entry, EntryKind, MAX_SEQ, RangeTombstone};
use bytes::Bytes;
use copal_codec::{Put, crc32c};
use copal_filter::{KeyHash, Kind};
use copal_object::{ObjectId, ObjectLifetime};

const DOCUMENT: &str = include_str!("../../../../../../docs/formats/kv-table.md");
const STORE_SEED: u64 = 1;

fn pointer() -> Vec<u8> {
    let mut pointer = Vec::new();
    pointer.put_u64(9);
    pointer.put_u64(4096);
    pointer.put_u32(70_000);
    pointer.put_u32(0xaaaa_aaaa);
    pointer.put_u32(0xbbbb_bbbb);
    pointer
}

fn example() -> Vec<u8> {
    let options = TableOptions {
        compress: false,
        filter: Kind::Ribbon,
        store_seed: STORE_SEED,
        lifetime: ObjectLifetime::Long,
        expected_bytes: 0,
    };
    let mut builder = TableBuilder::with_sink(Vec::new(), ObjectId(7), options);
    let pointer = pointer();
    let entries: [(&[u8], u64, EntryKind, &[u8]); 4] = [
        (b"apple", 300, EntryKind::Put, b"red"),
        (b"apple", 2, EntryKind::Delete, b""),
        (b"apricot", 3, EntryKind::Pointer, &pointer),
        (b"banana", 4, EntryKind::Put, b""),
    ];
    for (key, seq, kind, value) in entries {
        builder.add(Entry { key, seq, kind, value }).unwrap();
    }
    let (start, end) = (Bytes::from_static(b"b"), Bytes::from_static(b"c"));
    builder.add_range_tombstone(RangeTombstone { start, end, seq: 5 });
    builder.finish_sink().unwrap().0
}

/// The lines `offset byte byte ...` of the document's hex blocks.
fn documented() -> Vec<(usize, Vec<u8>)> {
    let blocks = DOCUMENT.split("```hex\n").skip(1).filter_map(|rest| rest.split("```").next());
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let offset = usize::from_str_radix(words.next().unwrap(), 16).unwrap();
        (offset, words.map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect())
    };
    blocks.flat_map(|block| block.lines().map(line).collect::<Vec<_>>()).collect()
}

#[test]
fn the_example_of_the_document_equals_our_bytes() {
    let bytes = example();
    let lines = documented();
    assert!(lines.len() >= 20);
    for (offset, expected) in lines {
        assert_eq!(bytes[offset..offset + expected.len()], expected, "at {offset:04x}");
    }
    let whole = format!("{} bytes, CRC32C {:08x}", bytes.len(), crc32c(0, &bytes));
    assert!(DOCUMENT.contains(&whole), "the example is {whole}");
}

#[test]
fn the_example_of_the_document_can_be_read() {
    let options = ReadOptions { store_seed: STORE_SEED };
    let table = Table::open_bytes(example().into(), ObjectId(7), cache(), options).unwrap();
    let get = |key: &[u8], seq| {
        let found = table.get(key, seq, &KeyHash::new(key, STORE_SEED)).unwrap();
        found.map(|found| (found.seq, found.kind, found.value))
    };
    assert_eq!(get(b"apple", MAX_SEQ), Some((300, EntryKind::Put, Bytes::from_static(b"red"))));
    assert_eq!(get(b"apple", 299), Some((2, EntryKind::Delete, Bytes::new())));
    assert_eq!(get(b"apple", 1), None);
    assert_eq!(get(b"apricot", 3), Some((3, EntryKind::Pointer, pointer().into())));
    assert_eq!(get(b"avocado", MAX_SEQ), None);
    let tombstone = RangeTombstone { start: Bytes::from_static(b"b"), end: Bytes::from_static(b"c"), seq: 5 };
    assert_eq!(table.range_tombstones(), [tombstone]);
    let meta = table.meta();
    assert_eq!((&meta.smallest[..], &meta.largest[..]), (&b"apple"[..], &b"c"[..]));
    assert!(meta.largest_is_exclusive);
    assert_eq!((meta.entries, meta.keys, meta.deletes, meta.range_tombstones), (4, 3, 1, 1));
    assert_eq!((meta.min_seq, meta.max_seq), (2, 300));
    let used = ValueUse { object: ObjectId(9), values: 1, bytes: 70_000, key_bytes: 7 };
    assert_eq!(meta.value_objects, [used]);
}
