//! Truncated, changed or crafted tables: errors name the place; never a panic or a wrong answer.

use super::{
    super::{DamageAt, ReadOptions, Table, TableError, io::ReadAt},
    support::{ID, Model, Random, SEED, build, cache, cache_with, mixed, open, options},
};
use crate::{
    format::{
        block::DataBlock, block_cursor::BlockCursor, entry::MAX_SEQ, entry_cursor::Cursor,
        fences::PartitionFences, index::IndexPage, meta::TableMeta, tombstones,
    },
    table::{Scan, TableCursor, TableVerifier},
};
use bytes::Bytes;
use copal_codec::{Reader, crc32c};
use copal_device::IoClass;
use copal_filter::{KeyHash, Kind};
use copal_object::StoreError;
use std::{cmp::Reverse, ops::Range, sync::Mutex};

fn try_open(bytes: Vec<u8>) -> Result<std::sync::Arc<Table>, TableError> {
    Table::open_bytes(bytes.into(), ID, cache(), ReadOptions { store_seed: SEED })
}

/// Every answer of a damaged table is right, or an error that is corruption.
fn check_answers(table: &std::sync::Arc<Table>, model: &Model) -> usize {
    let mut errors = 0;
    let mut last: Option<&Vec<u8>> = None;
    for ((key, seq), (kind, value)) in model {
        if last == Some(key) {
            continue;
        }
        last = Some(key);
        match table.get(key, MAX_SEQ, &KeyHash::new(key, SEED)) {
            Ok(found) => {
                let found = found.expect("a damaged key is never an absent one");
                assert_eq!((found.seq, found.kind, &found.value[..]), (seq.0, *kind, &value[..]));
            }
            Err(error) => {
                assert!(error.is_corruption(), "{error}");
                errors += 1;
            }
        }
    }
    let mut cursor = TableCursor::new(table, Scan::default());
    let mut moved = cursor.first();
    let mut rows = model.iter();
    while moved.is_ok() && cursor.valid() {
        let ((key, seq), (kind, value)) = rows.next().unwrap();
        let entry = cursor.entry().unwrap();
        assert_eq!((entry.key, entry.seq, entry.kind, entry.value), (&key[..], seq.0, *kind, &value[..]));
        moved = cursor.next();
    }
    assert!(moved.is_err() || rows.next().is_none(), "a damaged table never ends early without an error");
    assert!(moved.is_ok() || !cursor.valid());
    errors
}

#[test]
fn any_changed_byte_gives_an_error_or_the_right_answer_and_verify_finds_it() {
    let mut random = Random::new(3);
    let model = mixed(&mut random, 500);
    let (bytes, _) = build(&model, options(true, Kind::Ribbon));
    for round in 0..250 {
        let mut changed = bytes.to_vec();
        let at = if round % 3 == 0 { bytes.len() - 2000 } else { 0 };
        let at = at + random.below((bytes.len() - at) as u64) as usize;
        changed[at] ^= 1 << random.below(8);
        let Ok(table) = try_open(changed) else { continue };
        check_answers(&table, &model);
        let report = TableVerifier::new(&table).verify(IoClass::Background).unwrap();
        assert!(!report.is_clean(), "byte {at} of {}", bytes.len());
    }
}

#[test]
fn one_footer_is_enough() {
    let model = mixed(&mut Random::new(4), 50);
    let (bytes, _) = build(&model, options(false, Kind::Ribbon));
    for copy in 0..2 {
        let mut changed = bytes.to_vec();
        let at = bytes.len() - 512 * (copy + 1);
        changed[at..at + 512].fill(0xee);
        check_answers(&try_open(changed).unwrap(), &model);
    }
    let mut changed = bytes.to_vec();
    changed[bytes.len() - 1024..].fill(0);
    let Err(TableError::Corrupt { object, place: DamageAt::Footer, .. }) = try_open(changed) else {
        panic!("a table without footers opened")
    };
    assert_eq!(object, ID);
    for len in [0, 1, 511, 1023, 1024, bytes.len() - 1] {
        assert!(try_open(bytes[..len].to_vec()).is_err(), "cut at {len}");
    }
}

#[test]
fn another_objects_table_is_damage_and_a_newer_one_is_not() {
    let model = mixed(&mut Random::new(5), 50);
    let (bytes, _) = build(&model, options(false, Kind::Ribbon));
    let other = copal_object::ObjectId(ID.0 + 1);
    let read = ReadOptions { store_seed: SEED };
    let error = Table::open_bytes(bytes.clone(), other, cache(), read).err().unwrap();
    assert!(error.is_corruption(), "{error}");

    let mut newer = bytes.to_vec();
    for copy in [bytes.len() - 1024, bytes.len() - 512] {
        newer[copy + 8] = 2;
        newer[copy + 24..copy + 28].fill(0);
        let sum = crc32c(0, &newer[copy..copy + 512]);
        newer[copy + 24..copy + 28].copy_from_slice(&sum.to_le_bytes());
    }
    let error = try_open(newer).err().unwrap();
    assert!(matches!(error, TableError::Unsupported { .. }), "{error}");
}

/// Places of the parts of each partition.
fn parts(table: &Table) -> Vec<(Range<u64>, Range<u64>, Range<u64>)> {
    (0..table.fences.len() as u32)
        .map(|i| {
            let at = table.partition(i);
            (at.data(), at.index(), at.filter())
        })
        .collect()
}

fn several_partitions() -> (Model, Bytes) {
    let mut random = Random::new(6);
    let mut model = Model::new();
    for i in 0..6000u64 {
        let value = random.bytes_up_to(59);
        model.insert((random.bytes(9), Reverse(i)), (crate::format::entry::EntryKind::Put, value));
    }
    let (bytes, meta) = build(&model, options(false, Kind::Ribbon));
    assert!(meta.partitions >= 3);
    (model, bytes)
}

#[test]
fn damaged_index_and_filter_pages_cost_speed_and_no_answer() {
    let (model, bytes) = several_partitions();
    let mut changed = bytes.to_vec();
    let whole = open(bytes, &cache());
    for (_, index, filter) in parts(&whole) {
        changed[index.start as usize + 5] ^= 1;
        changed[filter.start as usize + 300] ^= 1;
    }
    let table = try_open(changed).unwrap();
    assert_eq!(check_answers(&table, &model), 0);
    let counts = table.cache.counts();
    assert_eq!(counts.damaged_filters, u64::from(table.meta().partitions));
    assert!(counts.rebuilt_indexes >= u64::from(table.meta().partitions));
    assert_eq!(counts.filter_negatives, 0);
    let report = TableVerifier::new(&table).verify(IoClass::Background).unwrap();
    assert_eq!(report.damaged.len(), 2 * table.meta().partitions as usize);
    assert!(report.damaged.iter().all(|damaged| damaged.lost.is_none()));
    assert_eq!(report.entries, model.len() as u64);
}

#[test]
fn a_damaged_block_is_named_and_the_rest_is_read() {
    let (model, bytes) = several_partitions();
    let mut changed = bytes.to_vec();
    let whole = open(bytes, &cache());
    let at = whole.index(1, IoClass::Foreground).unwrap().block(3).unwrap();
    changed[(whole.partition(1).offset + at.offset) as usize + 10] ^= 0x40;
    let table = try_open(changed).unwrap();
    let errors = check_answers(&table, &model);
    assert!((1..200).contains(&errors), "{errors} keys of one block");
    let report = TableVerifier::new(&table).verify(IoClass::Background).unwrap();
    let [damaged] = &report.damaged[..] else { panic!("{:?}", report.damaged) };
    let place = DamageAt::Block { partition: 1, block: 3 };
    assert!(matches!(damaged.error, TableError::Corrupt { object: ID, place: p, .. } if p == place));
    let sentence = damaged.to_string();
    assert!(
        sentence.starts_with("table 7 is damaged at partition 1, block 3: its checksum is "),
        "{sentence}"
    );
    let (start, end) = damaged.lost.as_ref().unwrap();
    assert_eq!((&start[..], end.as_deref()), (whole.fences.fence(1), Some(whole.fences.fence(2))));
}

#[test]
fn a_block_in_another_blocks_place_is_damage() {
    let (_, bytes) = several_partitions();
    let table = open(bytes.clone(), &cache());
    let index = table.index(0, IoClass::Foreground).unwrap();
    let (a, uid) = (index.block(1).unwrap(), table.partition(0).uid);
    let stored = &bytes[a.offset as usize..a.range().end as usize];
    DataBlock::decode(stored, uid, 1).unwrap();
    assert!(DataBlock::decode(stored, uid, 2).is_err());
    assert!(DataBlock::decode(stored, uid + 1, 1).is_err());
}

/// Returns wrong bytes the first time a range is read, right ones afterwards.
struct Flaky {
    bytes: Bytes,
    seen: Mutex<std::collections::HashSet<u64>>,
}

impl ReadAt for Flaky {
    fn read_at(&self, range: Range<u64>, class: IoClass) -> Result<Bytes, StoreError> {
        let good = self.bytes.read_at(range.clone(), class)?;
        if !self.seen.lock().unwrap().insert(range.start) {
            return Ok(good);
        }
        let mut bad = good.to_vec();
        bad.iter_mut().for_each(|byte| *byte ^= 0x10);
        Ok(bad.into())
    }

    fn len(&self) -> Result<u64, StoreError> {
        Ok(self.bytes.len() as u64)
    }
}

#[test]
fn a_block_that_reads_right_the_second_time_is_not_damaged() {
    let (model, bytes) = several_partitions();
    // Checksums can be wrong once, after a bad transfer. The tail is read correctly here; the rest is not.
    let seen = Mutex::new(std::iter::once((bytes.len() as u64).saturating_sub(64 << 10)).collect());
    let source = Box::new(Flaky { bytes, seen });
    let cache = cache();
    let read = ReadOptions { store_seed: SEED };
    let table = Table::open_source(source, ID, cache.clone(), read).unwrap();
    assert_eq!(check_answers(&table, &model), 0);
    assert_eq!((cache.counts().damaged_filters, cache.counts().rebuilt_indexes), (0, 0));
}

/// Overwrites some bytes, then fixes the four-byte checksum at the end with `sum`.
fn crafted(random: &mut Random, stored: &[u8], sum: impl Fn(&[u8]) -> u32) -> Vec<u8> {
    let mut changed = stored.to_vec();
    let body = changed.len() - 4;
    for _ in 0..1 + random.below(4) {
        let at = random.below(body as u64) as usize;
        changed[at] = match random.below(3) {
            0 => 0xff,
            1 => 0,
            _ => random.next_u64() as u8,
        };
    }
    let sum = sum(&changed[..body]);
    changed[body..].copy_from_slice(&sum.to_le_bytes());
    changed
}

#[test]
fn crafted_blocks_and_index_pages_with_right_checksums_never_panic() {
    let mut random = Random::new(8);
    let model = mixed(&mut random, 400);
    for compress in [false, true] {
        let (bytes, _) = build(&model, options(compress, Kind::Ribbon));
        let table = open(bytes.clone(), &cache_with(4 << 20, 0, 0));
        let at = table.partition(0).clone();
        let index = table.index(0, IoClass::Foreground).unwrap();
        let page = &bytes[at.index().start as usize..at.index().end as usize];
        for round in 0..4000u64 {
            let number = (round % u64::from(index.blocks())) as u32;
            let block = index.block(number).unwrap();
            let stored = &bytes[block.offset as usize..block.range().end as usize];
            let seed = crate::format::block::seed(at.uid, number);
            let changed = crafted(&mut random, stored, |body| crc32c(seed, body));
            if let Ok(block) = DataBlock::decode(&changed, at.uid, number) {
                walk(block, &random.bytes(4));
            }
            let seed = crate::format::block::seed(at.uid, u32::MAX);
            let changed = crafted(&mut random, page, |body| crc32c(seed, body));
            if let Ok(page) = IndexPage::decode(&changed, at.uid, at.data_len) {
                for number in 0..page.blocks() {
                    assert!(page.block(number).unwrap().range().end <= at.data_len);
                }
                page.find(&random.bytes(4), MAX_SEQ).unwrap();
            }
        }
    }
}

/// Every kind of move over a crafted block, up to its first error.
fn walk(block: DataBlock, key: &[u8]) {
    let mut cursor = BlockCursor::new(block);
    let mut steps = 0;
    let mut moved = cursor.first();
    while moved.is_ok() && cursor.valid() && steps < 100_000 {
        moved = cursor.next();
        steps += 1;
    }
    let _ = cursor.seek(key, 5);
    let _ = cursor.seek_for_prev(key, 5);
    let mut moved = cursor.last();
    let mut steps = 0;
    while moved.is_ok() && cursor.valid() && steps < 200 {
        moved = cursor.prev();
        steps += 1;
    }
}

#[test]
fn crafted_sections_never_panic_nor_allocate_the_claimed_size() {
    let (_, bytes) = several_partitions();
    let table = open(bytes, &cache_with(4 << 20, 0, 0));
    let (mut fences, mut meta, mut section) = (Vec::new(), Vec::new(), Vec::new());
    table.fences.encode(&mut fences);
    table.meta().encode(&mut meta);
    let list = (0..20u8).map(|i| crate::format::entry::RangeTombstone {
        start: Bytes::from(vec![i]),
        end: Bytes::from(vec![i + 3]),
        seq: u64::from(i),
    });
    tombstones::encode(&list.collect::<Vec<_>>(), &mut section);
    let end = table.fences.partitions_end();
    let mut random = Random::new(9);
    for _ in 0..20_000 {
        let mut change = |section: &[u8]| {
            let mut changed = crafted(&mut random, section, crc32c_of);
            changed.truncate(1 + random.below(changed.len() as u64) as usize);
            changed
        };
        if let Ok(fences) = PartitionFences::decode(&change(&fences), end) {
            fences.find(b"abcdefghi");
        }
        if let Ok(tombstones) = tombstones::decode(&change(&section)) {
            assert!(tombstones.iter().all(|t| t.start < t.end && t.seq <= MAX_SEQ));
        }
        let _ = TableMeta::decode(&mut Reader::new(&change(&meta)));
    }
    assert!(PartitionFences::decode(&fences, end).is_ok());
    assert!(PartitionFences::decode(&fences, end + 1).is_err());
}

fn crc32c_of(bytes: &[u8]) -> u32 {
    crc32c(0, bytes)
}
