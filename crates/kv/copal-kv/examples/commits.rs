//! What a commit costs on a real file: durable operations per device flush, log bytes and rate, by writers.
//!
//! `cargo run --release -p copal-kv --example commits -- FILE [SECONDS]`. FILE is made, 1 GiB, and removed.
//! The counts repeat; a rate on a shared machine measures its scheduler.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

use bytes::Bytes;
use copal_device::{Device, FileOptions, open_file};
use copal_kv::{Commit, Durability, Keyspace, KeyspaceOptions, Options, Store};
use copal_object::{MkfsOptions, OpenOptions, Store as Objects};
use std::{
    collections::VecDeque,
    error::Error,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

const VALUE: [u8; 200] = [7; 200];

/// Spread over the key space, as hashes are.
fn key(i: u64) -> [u8; 16] {
    let mut out = [0; 16];
    out[..8].copy_from_slice(&copal_testkit::scattered(i).to_be_bytes());
    out[8..].copy_from_slice(&i.to_be_bytes());
    out
}

/// Runs `writers` threads for `time`; each calls `write` with numbers of its own. Returns the operations
/// done.
fn run(writers: u64, time: Duration, write: impl Fn(u64) + Sync) -> u64 {
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let (stop, done, write) = (&stop, &done, &write);
            scope.spawn(move || {
                let mut count = 0;
                while !stop.load(Relaxed) {
                    write(writer << 40 | count);
                    count += 1;
                }
                done.fetch_add(count, Relaxed);
            });
        }
        std::thread::park_timeout(time);
        stop.store(true, Relaxed);
    });
    done.load(Relaxed)
}

#[expect(clippy::print_stdout, reason = "an example that prints what it measured")]
fn row(what: &str, device: &dyn Device, store: &Store, run: impl FnOnce() -> u64) {
    let (commands, stats, began) = (device.counters(), store.stats(), Instant::now());
    let count = run();
    let seconds = began.elapsed().as_secs_f64();
    let (commands, now) = (device.counters() - commands, store.stats());
    let flushes = commands.flushes + commands.fua_writes;
    let per = |n: u64| n as f64 / count.max(1) as f64;
    println!(
        "{what:30} {:>9.0} /s  {:>6.1} op/flush  {:.3} writes/op  {:>6.0} B/op  {:>5.1} op/group",
        count as f64 / seconds,
        count as f64 / flushes.max(1) as f64,
        per(commands.writes),
        per(commands.write_bytes),
        count as f64 / (now.groups - stats.groups).max(1) as f64,
    );
}

/// One thread that hands commits in and waits for the oldest once `outstanding` are on their way.
fn submit(store: &Store, space: &Keyspace, outstanding: usize, time: Duration) -> u64 {
    let (began, mut number, mut waiting) = (Instant::now(), 0, VecDeque::new());
    let settle = |commit: Commit| {
        let committed = commit.wait();
        assert!(committed.is_ok(), "{committed:?}");
    };
    while began.elapsed() < time {
        let mut batch = store.batch();
        batch.put(space, &key(1 << 60 | number), Bytes::from_static(&VALUE));
        number += 1;
        match batch.commit_submit(Durability::Device) {
            Ok(commit) => waiting.push_back(commit),
            Err(error) => panic!("{error}"),
        }
        if waiting.len() >= outstanding
            && let Some(oldest) = waiting.pop_front()
        {
            settle(oldest);
        }
    }
    waiting.into_iter().for_each(settle);
    number
}

fn put(space: &Keyspace, number: u64, durability: Durability) {
    let written = space.put(&key(number), &VALUE, durability);
    assert!(written.is_ok(), "{written:?}");
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let path = args.next().ok_or("which file shall be made for the run?")?;
    let time = Duration::from_secs_f64(args.next().map_or(Ok(3.0), |text| text.parse())?);
    let path = Path::new(&path);
    let create = FileOptions { create_size: Some(1 << 30), ..FileOptions::default() };
    let device = open_file(path, &create)?;
    Objects::mkfs(&device, &MkfsOptions::default())?;
    let (objects, _) = Objects::open(Arc::clone(&device), &OpenOptions::default())?;
    let store = Store::open(objects, Options::default())?;
    let space = store.keyspace("commits", KeyspaceOptions::default())?;
    for writers in [1, 2, 4, 16, 64] {
        row(&format!("durable, {writers} threads"), &*device, &store, || {
            run(writers, time, |number| put(&space, number, Durability::Device))
        });
    }
    for outstanding in [16, 64, 256] {
        row(&format!("durable, {outstanding} outstanding"), &*device, &store, || {
            submit(&store, &space, outstanding, time)
        });
    }
    for writers in [1, 4, 16] {
        row(&format!("process, {writers} threads"), &*device, &store, || {
            run(writers, time, |number| put(&space, number, Durability::Process))
        });
    }
    for writers in [1, 4] {
        row(&format!("deferred, {writers} threads"), &*device, &store, || {
            run(writers, time, |number| put(&space, number, Durability::Deferred))
        });
    }
    store.close()?;
    drop((space, store, device));
    std::fs::remove_file(path)?;
    Ok(())
}
