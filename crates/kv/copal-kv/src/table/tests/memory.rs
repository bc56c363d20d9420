//! The memory of a table is small, charged, and bounded.

use super::{
    super::Scan,
    support::{Model, Random, SEED, build, cache_with, open, open_cold, options},
};
use crate::{
    format::{
        entry::{EntryKind, MAX_SEQ},
        entry_cursor::Cursor,
    },
    table::TableCursor,
};
use bytes::Bytes;
use copal_filter::{KeyHash, Kind};
use std::cmp::Reverse;

const KEYS: u64 = 20_000;

/// 20 MB of 1 KB values.
fn large() -> (Vec<Vec<u8>>, Bytes) {
    let mut random = Random::new(20);
    let mut model = Model::new();
    for _ in 0..KEYS {
        model.insert((random.bytes(16), Reverse(1)), (EntryKind::Put, random.bytes(1000)));
    }
    let keys = model.keys().map(|(key, _)| key.clone()).collect();
    (keys, build(&model, options(false, Kind::Ribbon)).0)
}

#[test]
fn a_table_of_twenty_megabytes_costs_little_memory() {
    let (keys, bytes) = large();
    let cache = cache_with(64 << 20, 1 << 20, 4);
    let table = open(bytes, &cache);
    // Descriptors and fences: well below a bit per key besides the fixed part of the table.
    assert_eq!(cache.bytes().resident, table.resident_bytes());
    assert!(table.resident_bytes() < 2048 + KEYS / 8, "{}", table.resident_bytes());
    // Index pages: about 10 bits per key at 1 KB values.
    let mut index = 0;
    for i in 0..table.meta().partitions {
        index += table.index(i, copal_device::IoClass::Foreground).unwrap().heap_bytes() as u64;
    }
    let bits = index as f64 * 8.0 / KEYS as f64;
    assert!((7.0..13.0).contains(&bits), "{bits} bits of index per key");
    // Filters: four columns, 1.013 bits each, and a few words per partition.
    for key in &keys {
        assert!(table.get(key, MAX_SEQ, &KeyHash::new(key, SEED)).unwrap().is_some());
    }
    let bits = cache.bytes().filters as f64 * 8.0 / KEYS as f64;
    assert!((4.0..4.6).contains(&bits), "{bits} bits of filter per key");
    drop(table);
    assert_eq!((cache.bytes().resident, cache.bytes().filters), (0, 0));
}

#[test]
fn the_page_budget_holds_under_any_use() {
    let (keys, bytes) = large();
    let budget = 256 << 10;
    let cache = cache_with(budget, 1 << 20, 4);
    let table = open(bytes, &cache);
    let mut random = Random::new(21);
    let mut most = 0;
    for round in 0..5000 {
        let key = &keys[random.below(KEYS) as usize];
        assert!(table.get(key, MAX_SEQ, &KeyHash::new(key, SEED)).unwrap().is_some());
        if round % 100 == 0 {
            let mut cursor = TableCursor::new(&table, Scan::default());
            cursor.seek(key, MAX_SEQ).unwrap();
            for _ in 0..100 {
                cursor.next().unwrap();
            }
        }
        most = most.max(cache.bytes().pages);
        assert!(cache.bytes().pages <= budget);
    }
    assert!(most > budget / 2, "the cache was used: {most}");
}

#[test]
fn without_room_for_filters_look_ups_go_without_and_stay_right() {
    let (keys, bytes) = large();
    // Memory for one column of three of ten partitions.
    let cache = cache_with(64 << 20, 1000, 4);
    let table = open(bytes, &cache);
    for key in keys.iter().step_by(7) {
        let found = table.get(key, MAX_SEQ, &KeyHash::new(key, SEED)).unwrap();
        assert!(found.is_some());
    }
    assert!((600..=1000).contains(&cache.bytes().filters), "{}", cache.bytes().filters);
    let counts = cache.counts();
    assert_eq!(counts.filter_page_reads, 3, "a refused charge reads nothing");
    let mut random = Random::new(22);
    for _ in 0..1000 {
        let key = random.bytes(16);
        assert!(table.get(&key, MAX_SEQ, &KeyHash::new(&key, SEED)).unwrap().is_none());
    }
}

#[test]
fn a_small_filter_budget_is_shared_by_all_partitions() {
    let (keys, bytes) = large();
    // Memory for two columns of ten partitions, not for three.
    let cache = cache_with(64 << 20, 5200, 6);
    let table = open(bytes, &cache);
    for key in &keys {
        let found = table.get(key, MAX_SEQ, &KeyHash::new(key, SEED)).unwrap();
        assert!(found.is_some());
    }
    assert_eq!(cache.counts().filter_page_reads, u64::from(table.meta().partitions));
    assert!((5000..=5200).contains(&cache.bytes().filters), "{}", cache.bytes().filters);
    let mut random = Random::new(24);
    let before = cache.counts();
    let rounds = 20_000;
    for _ in 0..rounds {
        let key = random.bytes(16);
        assert!(table.get(&key, MAX_SEQ, &KeyHash::new(&key, SEED)).unwrap().is_none());
    }
    let passed = cache.counts().false_positives - before.false_positives;
    let rate = passed as f64 / f64::from(rounds);
    assert!((rate - 0.25).abs() < 0.02, "two columns everywhere: {rate}");
}

#[test]
fn a_miss_reads_nothing_but_false_positives_and_a_hit_one_block() {
    let (keys, bytes) = large();
    let cache = cache_with(64 << 20, 1 << 20, 4);
    let table = open_cold(bytes, &cache);
    let mut random = Random::new(23);
    for _ in 0..100 {
        // Loads filters and index pages; they are adjacent, so one read for each partition.
        let key = random.bytes(16);
        table.get(&key, MAX_SEQ, &KeyHash::new(&key, SEED)).unwrap();
    }
    let warm = cache.counts();
    assert_eq!(warm.filter_page_reads, u64::from(table.meta().partitions));
    assert_eq!(warm.index_page_reads, warm.filter_page_reads);
    let rounds = 20_000;
    for _ in 0..rounds {
        let key = random.bytes(16);
        assert!(table.get(&key, MAX_SEQ, &KeyHash::new(&key, SEED)).unwrap().is_none());
    }
    let cold = cache.counts();
    let (probes, false_positives) =
        (cold.filter_probes - warm.filter_probes, cold.false_positives - warm.false_positives);
    let rate = false_positives as f64 / probes as f64;
    assert!((rate - 1.0 / 16.0).abs() < 0.006, "four columns: {rate}");
    assert_eq!(probes - false_positives, cold.filter_negatives - warm.filter_negatives);
    assert!(cold.data_block_reads - warm.data_block_reads <= false_positives);
    assert_eq!(cold.index_page_reads, warm.index_page_reads);

    let small = cache_with(0, 1 << 20, 4);
    let table = open(large().1, &small);
    for key in keys.iter().step_by(97) {
        let before = small.counts();
        table.get(key, MAX_SEQ, &KeyHash::new(key, SEED)).unwrap().unwrap();
        assert_eq!(small.counts().data_block_reads, before.data_block_reads + 1);
    }
}

#[test]
fn threads_that_load_the_same_filters_charge_them_once() {
    let (keys, bytes) = large();
    let cache = cache_with(1 << 20, 1 << 20, 4);
    let table = open_cold(bytes, &cache);
    let alone = {
        let cache = cache_with(1 << 20, 1 << 20, 4);
        let table = open_cold(large().1, &cache);
        keys.iter().for_each(|key| drop(table.get(key, MAX_SEQ, &KeyHash::new(key, SEED)).unwrap().unwrap()));
        cache.bytes().filters
    };
    let start = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let (table, keys, start) = (&table, &keys, &start);
            scope.spawn(move || {
                let mut random = Random::new(50 + thread);
                start.wait();
                for (i, key) in keys.iter().enumerate() {
                    let found = table.get(key, MAX_SEQ, &KeyHash::new(key, SEED)).unwrap();
                    assert_eq!(found.unwrap().value.len(), 1000);
                    if i % 4 == 0 {
                        let key = random.bytes(16);
                        assert!(table.get(&key, MAX_SEQ, &KeyHash::new(&key, SEED)).unwrap().is_none());
                    }
                }
            });
        }
    });
    assert_eq!(cache.bytes().filters, alone);
    assert!(cache.counts().filter_probes - cache.counts().filter_negatives >= 4 * KEYS);
    drop(table);
    assert_eq!(cache.bytes().filters, 0);
}
