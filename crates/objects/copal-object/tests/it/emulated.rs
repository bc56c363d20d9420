//! The store on a disk that turns: commits that wait together share a record and a turn.

use crate::basics::{bytes, open, plain};
use copal_device::emulated::{Hdd, HddProfile};
use copal_device::{Completion, Device};
use copal_object::*;
use std::sync::Arc;
use std::time::Duration;

type Answer = Completion<Result<Lsn, StoreError>>;

/// Runs `count` durable commits of one small object each, `clients` of them at any time, all on this thread.
/// Returns pages written per commit, commits per flush, and time per commit.
fn run(clients: usize, count: u64) -> (f64, f64, Duration) {
    let disk = Hdd::new(256 << 20, HddProfile { stroke_bytes: Some(1 << 40), ..HddProfile::default() });
    let device: Arc<dyn Device> = disk.clone();
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let store = open(&device);
    let commit = |id: u64| -> Answer {
        let id = ObjectId(id);
        let txn = Txn::new().create(id, plain(ReadCheck::Pages)).append(id, 0, bytes(500, 0));
        store.commit(txn, Ack::Durable)
    };
    let (before, begin) = (store.counters(), disk.now());
    let mut ids = 1..=count;
    let mut waiting: Vec<Answer> = ids.by_ref().take(clients).map(commit).collect();
    while !waiting.is_empty() {
        assert!(disk.drive(), "a commit waits for nothing");
        for mut answer in std::mem::take(&mut waiting) {
            match answer.try_take() {
                None => waiting.push(answer),
                Some(ended) => {
                    ended.unwrap();
                    waiting.extend(ids.next().map(commit));
                }
            }
        }
    }
    let done = store.counters() - before;
    let pages = done.write_bytes as f64 / 4096.0 / count as f64;
    let time = (disk.now() - begin) / count as u32;
    store.close().unwrap();
    (pages, count as f64 / done.flushes as f64, time)
}

/// A model that completes commands inside `submit` would close a group for each commit.
#[test]
fn commits_that_wait_for_the_disk_share_a_record() {
    let (pages, share, alone) = run(1, 200);
    assert!((1.99..2.02).contains(&pages) && (share - 1.0).abs() < 0.01, "{pages} pages, {share} a flush");
    // Too few for a checkpoint, which places the data that lies in records.
    let (pages, share, grouped) = run(16, 480);
    assert!((1.05..1.15).contains(&pages) && share > 7.0, "{pages} pages, {share} a flush");
    // Head and platter come back to the same places: a commit alone takes whole turns.
    let turns = alone.as_secs_f64() * 120.0;
    assert!((turns - 1.0).abs() < 0.01, "{turns} turns: data and record are one write");
    assert!(grouped * 5 < alone, "{grouped:?} of {alone:?}");
}
