//! Every allocation that grows with the data is charged.
//!
//! Every checkpoint compares the live bytes of the heap with the budget's use. Bytes from before the engine,
//! and the I/O buffers that the process keeps, do not count. The live bytes may exceed the use by a slack for
//! the object layer, the queues and the handles.

use crate::{counting::live_bytes, world::*};
use bytes::Bytes;
use copal_device::AlignedBuf;
use copal_kv::{CacheMode, Error, Keyspace, KeyspaceOptions, MemoryBudget};
use std::ops::Bound;

const TOTAL: u64 = 8 * MIB;
/// Uncharged memory: the device's page of zeros (1 MiB), the object store's own tables, its writes in flight,
/// and a few requests. The budget always keeps 512 KiB free for these writes. `classes` checks single classes
/// more closely.
const SLACK: u64 = 3 * MIB;

/// Compares heap and budget.
struct Watch {
    budget: MemoryBudget,
    before: u64,
    worst: u64,
    most_charged: u64,
}

impl Watch {
    fn new(budget: &MemoryBudget) -> Watch {
        Watch { budget: budget.clone(), before: live_bytes(), worst: 0, most_charged: 0 }
    }

    /// Bytes in the heap that are not charged. Other threads work meanwhile, so the charges before and after
    /// the reading bound those at the reading.
    fn uncharged(&mut self) -> u64 {
        let first = self.budget.bytes().total();
        let live = live_bytes().saturating_sub(self.before + AlignedBuf::kept_bytes() as u64);
        let charged = first.max(self.budget.bytes().total());
        self.most_charged = self.most_charged.max(charged);
        assert!(charged <= TOTAL, "{charged} bytes are charged: {:?}", self.budget.bytes());
        live.saturating_sub(charged)
    }

    fn check(&mut self, what: &str) {
        let uncharged = self.uncharged();
        self.worst = self.worst.max(uncharged);
        let bytes = self.budget.bytes();
        assert!(uncharged <= SLACK, "{uncharged} bytes are not charged, {what}: {bytes:?}");
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "shown when the test fails: how near the slack it came")]
fn allocated_memory_is_charged() {
    let _alone = crate::ONE_AT_A_TIME.lock();
    let dir = tempfile::tempdir().unwrap();
    let objects = objects(dir.path(), "store", 512 * MIB);
    let budget = MemoryBudget::new(TOTAL);
    let mut watch = Watch::new(&budget);
    let (store, rows) = open(&objects, &budget);
    let blocks = KeyspaceOptions { cache: CacheMode::Blocks, compress: true, ..KeyspaceOptions::default() };
    let blocks = store.keyspace("blocks", blocks).unwrap();
    let mut random = Random::new(1);
    let keys = 40_000;
    for number in 0..keys {
        let len = [100, 1000, 1000, 1000, 1000, 1000, 3000, 9000][number as usize % 8];
        rows.put(&key(number), &value(number, len), DEFERRED).unwrap();
        if number % 4 == 0 {
            blocks.put(&key(number), &value(number, 60), DEFERRED).unwrap();
        }
        if number % 3 == 0 {
            rows.get(&key(random.below(2 * number + 1))).unwrap();
            blocks.get(&key(random.below(2 * number + 1))).unwrap();
        }
        if number % 32 == 0 {
            watch.check("loading");
        }
    }
    println!("loaded: {} bytes at most not charged", watch.worst);
    store.flush().unwrap();
    watch.check("flushed");
    for round in 0..20_000 {
        rows.get(&key(random.below(2 * keys))).unwrap();
        blocks.get(&key(random.below(2 * keys))).unwrap();
        if round % 32 == 0 {
            watch.check("reading");
        }
    }
    println!("read: {} bytes at most not charged", watch.worst);
    // Half of the budget in one batch: caches are evicted for it.
    let mut batch = store.batch();
    for number in 0..4000 {
        batch.put(&rows, &key(keys + number), value(number, 500).into());
    }
    let handed_over = live_bytes();
    batch.commit(DEFERRED).unwrap();
    assert!(live_bytes() < handed_over + 6 * MIB, "log, frames and memtable of 2 MB");
    watch.check("a large batch");
    scan(&rows, &mut watch, &mut random);
    println!("scanned: {} bytes at most not charged", watch.worst);
    let (low, high) = (key(1)[..1].to_vec(), [0xff]);
    let mut batch = store.batch();
    batch.delete_range(&rows, &low, &high);
    batch.commit(DEFERRED).unwrap();
    std::thread::scope(|scope| {
        let merge = scope.spawn(|| rows.compact_range((Bound::Unbounded, Bound::Unbounded)));
        while !merge.is_finished() {
            watch.check("merging");
            std::thread::yield_now();
        }
        merge.join().unwrap().unwrap();
    });
    watch.check("merged");
    println!("merged: {} bytes at most not charged", watch.worst);
    refill(&rows, &mut watch);
    println!("repaired: {} bytes at most not charged", watch.worst);
    println!("in the end: {} bytes at most not charged, {} charged", watch.worst, watch.most_charged);
    assert!(watch.most_charged > TOTAL / 2, "the budget was used: {} bytes", watch.most_charged);
    let report = store.stats();
    assert!(report.flushes > 20 && report.merges > 20, "{report:?}");

    // The check can fail: the same with an uncharged allocation.
    let hidden = vec![1u8; (SLACK + MIB) as usize];
    assert!(watch.uncharged() > SLACK, "an uncharged allocation must be seen");
    drop(hidden);
    watch.check("given back");
}

/// Many iterators at once, forward and backward, some of them kept open until there is no room for one more.
fn scan(space: &Keyspace, watch: &mut Watch, random: &mut Random) {
    let mut standing = Vec::new();
    let mut refused = 0;
    for round in 0..24 {
        let start = key(random.below(40_000));
        let mut iter = space.iter((Bound::Included(&start), Bound::Unbounded));
        for step in 0..1500 {
            let item = if round % 3 == 0 { iter.next_back() } else { iter.next() };
            match item {
                None => break,
                Some(Ok(_)) => {}
                Some(Err(Error::OverBudget { .. })) => {
                    refused += 1;
                    standing.clear();
                    break;
                }
                Some(Err(error)) => panic!("{error}"),
            }
            if step % 64 == 0 {
                watch.check("scanning");
            }
        }
        standing.push(iter);
    }
    assert!(refused <= 6, "{refused} of 24 iterators found no room");
}

/// Ascending keys that no other part of the test uses, after `first`.
fn ascending(first: u8, count: u32) -> impl Iterator<Item = Vec<u8>> {
    (0..count).map(move |number| [&[first][..], &number.to_be_bytes()].concat())
}

/// Replaces a range, entry by entry.
fn refill(space: &Keyspace, watch: &mut Watch) {
    let mut random = Random::new(9);
    let entries = ascending(0xfd, 12_000).map(|key| {
        let tag = random.below(u64::MAX);
        if tag.is_multiple_of(8) {
            watch.check("repairing");
        }
        let len = [100, 1000, 6000][tag as usize % 3];
        Ok((Bytes::from(key), Bytes::from(value(tag, len))))
    });
    let (start, end) = ([0xfd], [0xfe]);
    let range = (Bound::Included(&start[..]), Bound::Excluded(&end[..]));
    space.repair(range, entries).unwrap();
    watch.check("repaired");
}
