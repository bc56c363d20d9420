//! Prints what tables cost the processor: building, look-ups that hit and miss, scans. No device: the table
//! lies in memory, so that only our own work is measured.
//!
//! `cargo run --release -p copal-kv --example table_bench [keys] [value bytes]`
//! Target (T6): p99 of a look-up at most 5 us.
#![expect(clippy::print_stdout, reason = "a stopwatch that prints is its purpose")]

use copal_filter::{KeyHash, Kind};
use copal_kv::{
    FilterMemory, FilterOptions, FilterRule,
    cache::TableCache,
    cursor::Cursor,
    entry::{Entry, EntryKind, MAX_SEQ},
    table::{ReadOptions, Scan, Table, TableBuilder, TableOptions},
};
use copal_object::{Lifetime, ObjectId};
use std::{sync::Arc, time::Instant};

const SEED: u64 = 7;
const ID: ObjectId = ObjectId(1);

/// Key number `i`: hashed, as chunk ids are.
fn key(i: u64) -> [u8; 16] {
    KeyHash::new(&i.to_le_bytes(), 1).0.to_be_bytes()
}

fn argument(n: usize, default: u64) -> u64 {
    std::env::args().nth(n).and_then(|n| n.parse().ok()).unwrap_or(default)
}

fn main() {
    let (keys, value_bytes) = (argument(1, 200_000), argument(2, 100) as usize);
    let mut sorted: Vec<[u8; 16]> = (0..keys).map(key).collect();
    sorted.sort_unstable();
    let value = vec![7u8; value_bytes];
    let options = TableOptions {
        compress: false,
        filter: Kind::Ribbon,
        store_seed: SEED,
        lifetime: Lifetime::Long,
        expected_bytes: 0,
    };
    let started = Instant::now();
    let mut builder = TableBuilder::with_sink(Vec::new(), ID, options);
    for key in &sorted {
        let entry = Entry { key, seq: 1, kind: EntryKind::Put, value: &value };
        builder.add(entry).expect("a vector takes everything");
    }
    let (bytes, meta) = builder.finish_sink().expect("a vector takes everything");
    let ns = started.elapsed().as_nanos() as f64;
    println!(
        "build: {keys} keys of {value_bytes} B values, {} partitions, {} MB, {:.0} ns/key, {:.0} MB/s",
        meta.partitions,
        meta.bytes >> 20,
        ns / keys as f64,
        meta.bytes as f64 * 1000.0 / ns
    );
    let bytes = bytes::Bytes::from(bytes);
    for (name, cache_bytes) in [("all cached", 1 << 30), ("nothing cached", 0)] {
        let cache = TableCache::new(cache_bytes, 1 << 30, filters());
        let read = ReadOptions { store_seed: SEED };
        let table = Table::open_bytes(bytes.clone(), ID, cache, read).expect("a table just built opens");
        look_up(&table, &format!("hit, {name}"), |i| key(i % keys));
        look_up(&table, &format!("miss, {name}"), |i| key(keys + i));
    }
    scan(&bytes, keys);
}

/// Six columns everywhere.
fn filters() -> FilterOptions {
    FilterOptions {
        rule: FilterRule::Fixed { units: 6 },
        memory: FilterMemory::Bytes(u64::MAX),
        ..FilterOptions::default()
    }
}

fn look_up(table: &Table, name: &str, key: impl Fn(u64) -> [u8; 16]) {
    let mut times = Vec::new();
    for i in 0..100_000u64 {
        let key = key(copal_testkit::scattered(i) >> 20);
        let started = Instant::now();
        let found = table.get(&key, MAX_SEQ, &KeyHash::new(&key, SEED)).expect("intact");
        times.push(started.elapsed().as_nanos() as u64);
        std::hint::black_box(found);
    }
    times.sort_unstable();
    println!("get, {name}: p50 {} ns, p99 {} ns", times[times.len() / 2], times[times.len() * 99 / 100]);
}

fn scan(bytes: &bytes::Bytes, keys: u64) {
    let cache = TableCache::new(0, 1 << 20, filters());
    let read = ReadOptions { store_seed: SEED };
    let table: Arc<Table> = Table::open_bytes(bytes.clone(), ID, cache, read).expect("opens");
    let mut cursor = table.cursor(Scan { whole: true, ..Scan::default() });
    for (name, forward) in [("forward", true), ("backward", false)] {
        let started = Instant::now();
        if forward { cursor.first() } else { cursor.last() }.expect("intact");
        let mut seen = 0u64;
        while cursor.valid() {
            seen += 1;
            if forward { cursor.next() } else { cursor.prev() }.expect("intact");
        }
        assert_eq!(seen, keys);
        println!("scan {name}: {:.0} ns/entry", started.elapsed().as_nanos() as f64 / keys as f64);
    }
}
