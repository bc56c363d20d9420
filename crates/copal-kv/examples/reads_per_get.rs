//! Loads an engine with hashed keys in random order and prints reads per Get, for keys that are there and keys
//! that are not, with 1 to 8 filter columns per partition.
//!
//! `cargo run --release -p copal-kv --example reads_per_get FILE [keys] [value bytes] [memory MiB]`
//!
//! FILE is created, 1.5 times the data large, and removed. Model (kv.md section 1): a miss costs the sum of
//! 2^-k over the runs that are asked, a hit one read more; index pages add what the budget does not hold.
#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use copal_device::{Device, FileOptions, open_file};
use copal_filter::KeyHash;
use copal_kv::{Durability, FilterMemory, FilterOptions, FilterRule, KeyspaceOptions, Options, Stats, Store};
use std::{path::Path, sync::Arc, time::Instant};

fn key(i: u64) -> [u8; 16] {
    KeyHash::new(&i.to_le_bytes(), 1).0.to_be_bytes()
}

type Failed = Box<dyn std::error::Error>;

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("FILE is missing")?;
    let mut number = |default| arguments.next().map_or(Ok(default), |n| n.parse::<u64>());
    let (keys, value_bytes, memory) = (number(1_000_000)?, number(100)? as usize, number(32)? << 20);
    let size = (keys * (value_bytes as u64 + 40) * 3 / 2 + (512 << 20)).next_multiple_of(1 << 20);
    let file = FileOptions {
        create_size: Some(size),
        allow_cow: true,
        ..FileOptions::default()
    };
    let device = open_file(Path::new(&path), &file)?;
    let measured = measure(&device, keys, value_bytes, memory);
    drop(device);
    std::fs::remove_file(&path)?;
    measured
}

fn open(device: &Arc<dyn Device>, memory_bytes: u64, units: u8) -> Result<Store, Failed> {
    let (objects, _) = copal_object::Store::open(device.clone(), &copal_object::OpenOptions::default())?;
    let options = Options {
        memory_bytes,
        filters: FilterOptions {
            rule: FilterRule::Fixed { units },
            memory: FilterMemory::Bytes(u64::MAX),
            ..FilterOptions::default()
        },
        ..Options::default()
    };
    Ok(Store::open(objects, options)?)
}

fn measure(device: &Arc<dyn Device>, keys: u64, value_bytes: usize, memory: u64) -> Result<(), Failed> {
    copal_object::Store::mkfs(device, &copal_object::MkfsOptions::default())?;
    let store = open(device, memory, 6)?;
    let space = store.keyspace("keys", KeyspaceOptions::default())?;
    let value = vec![7; value_bytes];
    let started = Instant::now();
    for chunk in 0..keys.div_ceil(100) {
        let mut batch = store.batch();
        for i in chunk * 100..((chunk + 1) * 100).min(keys) {
            batch.put(&space, &key(i), bytes::Bytes::copy_from_slice(&value));
        }
        batch.commit(Durability::Deferred)?;
    }
    store.flush()?;
    let (stats, time) = (store.stats(), started.elapsed());
    println!(
        "load: {keys} keys of {value_bytes} B in {:.1} s, {:.0} k/s; {} flushes, {} merge steps, write \
         amplification {:.1}",
        time.as_secs_f64(),
        keys as f64 / 1000.0 / time.as_secs_f64(),
        stats.flushes,
        stats.merges,
        device.counters().write_bytes as f64 / stats.user_bytes as f64,
    );
    store.close()?;
    store.objects().close()?;
    drop(space);
    drop(store);
    for columns in [0, 1, 2, 4, 6, 8] {
        let store = open(device, memory, columns)?;
        let space = store.open_keyspace("keys")?.ok_or("the keyspace is gone")?;
        let round = |name: &str, first: u64, rounds: u64| -> Result<(), Failed> {
            let (before, reads) = (store.stats(), device.counters().reads);
            let started = Instant::now();
            for i in 0..rounds {
                let i = first + (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) % keys;
                let found = space.get(&key(i))?;
                assert_eq!(found.is_some(), i < keys);
            }
            let reads = device.counters().reads - reads;
            print(
                name,
                columns,
                rounds,
                &before,
                &store.stats(),
                reads,
                started.elapsed().as_nanos() as u64,
            );
            Ok(())
        };
        round("warm-up", keys, 20_000)?;
        round("miss", keys, 50_000)?;
        round("hit", 0, 50_000)?;
        store.close()?;
        store.objects().close()?;
    }
    Ok(())
}

fn print(name: &str, columns: u8, rounds: u64, before: &Stats, after: &Stats, reads: u64, ns: u64) {
    let per_get = |count: fn(&Stats) -> u64| (count(after) - count(before)) as f64 / rounds as f64;
    println!(
        "{columns} columns, {name}: {:.3} device reads per Get, {:.2} filters asked, {:.3} false positives, \
         {:.3} blocks and {:.3} index pages read, {:.1} us, {:.1} MiB of memory",
        reads as f64 / rounds as f64,
        per_get(|s| s.filter_probes),
        per_get(|s| s.false_positives),
        per_get(|s| s.data_block_reads),
        per_get(|s| s.index_page_reads),
        ns as f64 / 1000.0 / rounds as f64,
        after.memory_bytes as f64 / f64::from(1 << 20),
    );
}
