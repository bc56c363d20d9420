//! A checkpoint of many objects beside commits: how many of its chain pages a commit waits for.

use crate::basics::{bytes, plain, stream};
use copal_device::{Device, MemoryDevice};
use copal_object::*;
use copal_testkit::GatedDevice;
use std::sync::Arc;

/// Objects of the store, and the chain pages of 64 KiB that their tables take at least.
const OBJECTS: u64 = 200_000;
const CHAIN_PAGES: usize = 128;
const PLAIN: ObjectId = ObjectId(1);
const LOG: ObjectId = ObjectId(2);

fn store(device: &Arc<dyn Device>) -> Store {
    let options = MkfsOptions { journal_bytes: Some(16 << 20), ..MkfsOptions::default() };
    Store::mkfs(device, &options).unwrap();
    let store = Store::open(Arc::clone(device), &OpenOptions::default()).unwrap().0;
    let txn = Txn::new().create(PLAIN, plain(ReadCheck::Caller)).create(LOG, stream());
    store.commit(txn, Ack::Ordered).wait().unwrap();
    let ids: Vec<u64> = (100..100 + OBJECTS).collect();
    for part in ids.chunks(4000) {
        let opts = plain(ReadCheck::Caller);
        let ops = part.iter().map(|&id| Op::Create { id: ObjectId(id), opts: opts.clone() });
        store.commit(Txn::new().ops(ops), Ack::Durable).wait().unwrap();
    }
    store.append_frame(LOG, bytes(500, 0), None, Ack::Durable).wait().unwrap();
    store.checkpoint().unwrap();
    store
}

/// An ordered commit, a durable one and a durable frame.
fn operations(store: &Store, round: u64) {
    for ack in [Ack::Ordered, Ack::Durable] {
        store.commit(Txn::new().write(PLAIN, 0, bytes(4096, round)), ack).wait().unwrap();
    }
    store.append_frame(LOG, bytes(500, round), None, Ack::Durable).wait().unwrap();
}

/// Symptom: a commit beside a checkpoint of 10^6 objects waited for all of it.
/// Cause: the whole body was encoded under the mutex, and twice in memory.
/// Fix: the checkpoint keeps the chunks of the tables, and encodes and writes one page after the other.
#[test]
fn a_commit_waits_for_no_chain_page_of_a_checkpoint() {
    let gate = GatedDevice::new(MemoryDevice::new(128 << 20));
    let device: Arc<dyn Device> = gate.clone();
    let store = store(&device);
    gate.hold_background(true);
    let opener = gate.open_at_end();
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| store.checkpoint().unwrap());
        gate.wait(|gate| gate.background > 0);
        (0..50).for_each(|round| operations(&store, round));
        let held = gate.look().background;
        assert!(held <= CHAIN_PAGES / 10, "{held} chain pages at a time");
        // The checkpoint goes on page by page; each operation comes between two of them.
        let mut pages = 0;
        while !worker.is_finished() {
            pages += gate.release_background(1);
            operations(&store, 100 + pages as u64);
        }
        assert!(pages >= CHAIN_PAGES, "{pages} chain pages and superblocks");
        worker.join().unwrap();
    });
    drop(opener);
    let report = store.check(&CheckOptions { data: true, repair: false }).unwrap();
    assert!(report.is_clean(), "{:?}", report.damages);
    drop(store);
    let (store, _) = Store::open(Arc::clone(gate.below()), &OpenOptions::default()).unwrap();
    assert_eq!(store.list(ObjectId(0), usize::MAX).len() as u64, OBJECTS + 2);
    assert!(store.check(&CheckOptions { data: true, repair: false }).unwrap().is_clean());
}

/// The device completes each command at once, so that no other thread encodes: then each of many commits carries
/// a few pages of the checkpoint.
#[test]
fn no_commit_encodes_more_than_a_tenth_of_a_checkpoint() {
    let device = MemoryDevice::new(256 << 20);
    let store = store(&device);
    let (mut most, mut all) = (0, 0);
    // Until the journal is half full, and until the checkpoint is done.
    for round in 0..6000 {
        let before = store.counters();
        store.commit(Txn::new().write(PLAIN, 0, bytes(4096, round)), Ack::Ordered).wait().unwrap();
        let written = (store.counters() - before).write_bytes;
        if written > 64 << 10 {
            most = most.max(written);
            all += written;
        }
    }
    // Both copies of every page.
    let chain_bytes = 2 * (CHAIN_PAGES as u64) * (64 << 10);
    assert!(all >= chain_bytes, "{all} bytes of a checkpoint");
    assert!(most <= chain_bytes / 10, "one commit wrote {most} of {chain_bytes} bytes");
}
