//! Edge cases: one key, sizes at which partitions and blocks end, many versions, only tombstones.

use super::{
    super::{Scan, Table, TableBuilder},
    support::{ID, Model, Random, SEED, build, cache, open, options},
};
use crate::{
    format::{
        entry::{Entry, EntryKind, MAX_KEY_BYTES, MAX_SEQ, RangeTombstone},
        entry_cursor::Cursor,
    },
    table::{TableCursor, TableVerifier},
};
use bytes::Bytes;
use copal_device::IoClass;
use copal_filter::{KeyHash, Kind};
use std::cmp::Reverse;

fn put(value: Vec<u8>) -> (EntryKind, Vec<u8>) {
    (EntryKind::Put, value)
}

fn get(table: &Table, key: &[u8], seq: u64) -> Option<(u64, usize)> {
    let found = table.get(key, seq, &KeyHash::new(key, SEED)).unwrap();
    found.map(|found| (found.seq, found.value.len()))
}

#[test]
fn one_key_makes_a_table_of_six_kilobytes() {
    let model = Model::from([((b"only".to_vec(), Reverse(1)), put(b"value".to_vec()))]);
    let (bytes, meta) = build(&model, options(false, Kind::Ribbon));
    assert!(bytes.len() <= 6 << 10, "{}", bytes.len());
    assert_eq!((meta.partitions, meta.keys, &meta.smallest), (1, 1, &meta.largest));
    let table = open(bytes, &cache());
    assert_eq!(get(&table, b"only", MAX_SEQ), Some((1, 5)));
    assert_eq!(get(&table, b"only", 0), None);
    assert_eq!(get(&table, b"onl", MAX_SEQ), None);
    assert_eq!(get(&table, b"", MAX_SEQ), None);
}

#[test]
fn the_empty_key_and_the_longest_are_keys_like_others() {
    let long = vec![0xff; MAX_KEY_BYTES];
    let mut near = long.clone();
    near[MAX_KEY_BYTES - 1] = 0xfe;
    let mut model = Model::new();
    for (i, key) in [Vec::new(), vec![0], vec![0, 0], near, long].into_iter().enumerate() {
        model.insert((key, Reverse(i as u64)), put(vec![1; i]));
    }
    let (bytes, _) = build(&model, options(true, Kind::Ribbon));
    let table = open(bytes, &cache());
    for ((key, seq), (_, value)) in &model {
        assert_eq!(get(&table, key, MAX_SEQ), Some((seq.0, value.len())));
    }
}

#[test]
fn thousands_of_versions_of_one_key_stay_in_one_partition() {
    // 40 000 versions of 300 bytes: 12 MB, beyond the size at which a partition ends.
    let mut builder = TableBuilder::with_sink(Vec::new(), ID, options(false, Kind::Ribbon));
    let value = [7; 300];
    let versions = 40_000;
    for seq in (1..=versions).rev() {
        builder.add(Entry { key: b"hot", seq: seq * 2, kind: EntryKind::Put, value: &value }).unwrap();
    }
    builder.add(Entry { key: b"next", seq: 1, kind: EntryKind::Put, value: &value }).unwrap();
    let (bytes, meta) = builder.finish_sink().unwrap();
    assert_eq!((meta.partitions, meta.keys, meta.entries), (2, 2, versions + 1));
    let table = open(bytes.into(), &cache());
    for seq in [2, 3, 13_577, 13_578, 40_001, 80_000, MAX_SEQ] {
        assert_eq!(get(&table, b"hot", seq), Some(((seq / 2 * 2).min(80_000), 300)), "at {seq}");
    }
    assert_eq!(get(&table, b"hot", 1), None);
    // One read of a block, and at most its neighbour, however many versions there are.
    let before = table.cache.counts().data_block_reads;
    get(&table, b"hot", 55_555);
    assert!(table.cache.counts().data_block_reads - before <= 2);
    // A reader before the first version is no false positive of the filter.
    assert_eq!(table.cache.counts().false_positives, 0);
    let mut cursor = TableCursor::new(&table, Scan::default());
    cursor.seek(b"hot", 777).unwrap();
    assert_eq!(cursor.entry().unwrap().seq, 776);
    cursor.seek_for_prev(b"hot", 777).unwrap();
    assert_eq!(cursor.entry().unwrap().seq, 778);
}

#[test]
fn keys_without_gaps_are_their_own_separators_and_fences() {
    // Consecutive numbers differ only in the last byte, so separators and fences cannot be shortened, and
    // look-ups meet them exactly.
    let mut model = Model::new();
    for i in 0..5000u32 {
        model.insert((i.to_be_bytes().to_vec(), Reverse(u64::from(i))), put(vec![i as u8; 900]));
    }
    let (bytes, meta) = build(&model, options(false, Kind::Ribbon));
    let table = open(bytes, &cache());
    assert!(meta.partitions >= 3);
    let fence = table.fences.fence(1).to_vec();
    assert!(model.keys().any(|(key, _)| *key == fence));
    let mut cursor = TableCursor::new(&table, Scan::default());
    for (key, Reverse(seq)) in model.keys() {
        for at in [*seq, MAX_SEQ] {
            assert_eq!(get(&table, key, at), Some((*seq, 900)));
            cursor.seek(key, at).unwrap();
            assert_eq!(cursor.entry().unwrap().position(), (&key[..], *seq));
            cursor.seek_for_prev(key, *seq).unwrap();
            assert_eq!(cursor.entry().unwrap().position(), (&key[..], *seq));
        }
    }
}

#[test]
fn versions_without_gaps_are_found_across_blocks() {
    let mut model = Model::new();
    for seq in 1..=1000u64 {
        model.insert((b"key".to_vec(), Reverse(seq)), put(seq.to_le_bytes().repeat(100)));
    }
    let (bytes, _) = build(&model, options(false, Kind::Ribbon));
    let table = open(bytes, &cache());
    assert!(table.index(0, IoClass::Foreground).unwrap().blocks() > 100);
    for seq in 1..=1000 {
        let found = table.get(b"key", seq, &KeyHash::new(b"key", SEED)).unwrap().unwrap();
        assert_eq!((found.seq, &found.value[..8]), (seq, &seq.to_le_bytes()[..]));
    }
}

#[test]
fn a_block_has_a_full_key_every_sixteen_entries() {
    let mut model = Model::new();
    for i in 0..100u32 {
        model.insert((format!("a common prefix {i:03}").into_bytes(), Reverse(1)), put(Vec::new()));
    }
    let (bytes, _) = build(&model, options(false, Kind::Ribbon));
    let table = open(bytes.clone(), &cache());
    let data = &bytes[..table.partition(0).data_len as usize];
    // Before the trailer of 13 bytes: the number of restarts.
    assert_eq!(data[data.len() - 17..data.len() - 13], 7u32.to_le_bytes());
}

#[test]
fn partitions_end_at_eight_megabytes_and_at_a_full_filter() {
    let mut random = Random::new(11);
    let mut large = Model::new();
    for _ in 0..400 {
        large.insert((random.bytes(8), Reverse(1)), put(random.bytes(60_000)));
    }
    let (bytes, meta) = build(&large, options(false, Kind::Ribbon));
    assert_eq!(meta.partitions, 3, "24 MB");
    let table = open(bytes, &cache());
    assert!((0..3).all(|i| table.partition(i).data_len < (9 << 20)));

    let mut small = Model::new();
    for _ in 0..20_000 {
        small.insert((random.bytes(8), Reverse(1)), put(vec![1; 10]));
    }
    let (bytes, meta) = build(&small, options(false, Kind::Ribbon));
    let table = open(bytes, &cache());
    let full = (0..meta.partitions - 1).map(|i| table.partition(i).keys);
    assert!(full.clone().all(|keys| (1800..=2048).contains(&keys)), "{:?}", full.collect::<Vec<_>>());
    assert_eq!(meta.partitions, 10);
}

#[test]
fn a_table_may_hold_range_tombstones_alone() {
    let mut builder = TableBuilder::with_sink(Vec::new(), ID, options(false, Kind::Ribbon));
    let tombstone = |start: &'static [u8], end: &'static [u8], seq| RangeTombstone {
        start: Bytes::from_static(start),
        end: Bytes::from_static(end),
        seq,
    };
    builder.add_range_tombstone(tombstone(b"m", b"z", 4));
    builder.add_range_tombstone(tombstone(b"c", b"d", 9));
    builder.add_range_tombstone(tombstone(b"x", b"a", 99));
    let (bytes, meta) = builder.finish_sink().unwrap();
    assert_eq!((&meta.smallest[..], &meta.largest[..]), (&b"c"[..], &b"z"[..]));
    assert!(meta.largest_is_exclusive && !meta.covers(b"z") && meta.covers(b"y"));
    assert_eq!((meta.entries, meta.range_tombstones, meta.min_seq, meta.max_seq), (0, 2, 4, 9));
    let table = open(bytes.into(), &cache());
    assert_eq!(get(&table, b"p", MAX_SEQ), None);
    let mut cursor = TableCursor::new(&table, Scan::default());
    cursor.first().unwrap();
    assert!(!cursor.valid());
    cursor.last().unwrap();
    cursor.seek(b"p", MAX_SEQ).unwrap();
    cursor.seek_for_prev(b"p", MAX_SEQ).unwrap();
    assert!(!cursor.valid());
    assert_eq!(table.range_tombstones(), [tombstone(b"c", b"d", 9), tombstone(b"m", b"z", 4)]);
    assert!(TableVerifier::new(&table).verify(IoClass::Background).unwrap().is_clean());
}

#[test]
fn entries_out_of_order_are_refused() {
    for (first, second) in [((b"k", 5), (b"k", 6)), ((b"k", 5), (b"k", 5)), ((b"k", 5), (b"j", 5))] {
        let mut builder = TableBuilder::with_sink(Vec::new(), ID, options(false, Kind::Ribbon));
        let entry =
            |(key, seq): (&'static [u8; 1], u64)| Entry { key, seq, kind: EntryKind::Put, value: b"" };
        builder.add(entry(first)).unwrap();
        assert!(builder.add(entry(second)).unwrap_err().is_corruption());
    }
}

#[test]
fn compression_shrinks_only_compressible_blocks() {
    let mut random = Random::new(13);
    let (mut text, mut noise) = (Model::new(), Model::new());
    for i in 0..500u32 {
        let key = i.to_be_bytes().to_vec();
        text.insert((key.clone(), Reverse(1)), put(b"all work and no play ".repeat(10)));
        noise.insert((key, Reverse(1)), put(random.bytes(200)));
    }
    let size = |model: &Model, compress| build(model, options(compress, Kind::Ribbon)).0.len();
    assert!(size(&text, true) * 3 < size(&text, false));
    assert_eq!(size(&noise, true), size(&noise, false));
}
