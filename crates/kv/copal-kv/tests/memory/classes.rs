//! Each class of memory alone: its growth in the heap is charged, to a few pages.
//!
//! The check of all memory (`heap`) has to allow for the work in progress of the object layer, which is more
//! than some classes ever are. Here the heap is read while no work is in progress, so that a class without
//! charges, or with half of them, is found at any size.

use crate::{
    alone::run_alone,
    counting::live_bytes,
    world::{DEFERRED, MIB, key, objects, value},
};
use copal_device::AlignedBuf;
use copal_kv::{
    CacheMode, FilterKind, FilterMemory, FilterOptions, FilterRule, Keyspace, KeyspaceOptions, MemoryBudget,
    MemoryBytes, Options, Store,
};
use std::{ops::Bound, time::Duration};

/// Channels, rings of samples, and hash tables of the caches, which double.
const SLACK: u64 = 16 << 10;
/// Most readings of a heap that does not match the charges; a tenth of a second each.
const MOST_LOOKS: u32 = 50;
const KEYS: u64 = 60_000;
const ALONE: &str = "COPAL_TEST_MEMORY_CLASSES";

struct World {
    store: Store,
    budget: MemoryBudget,
}

impl World {
    /// Live bytes of the heap, and charged bytes.
    fn look(&self) -> (u64, MemoryBytes) {
        (live_bytes() - AlignedBuf::kept_bytes() as u64, self.budget.bytes())
    }

    /// The same once no work is in progress: five equal readings in a row.
    fn still(&self) -> (u64, MemoryBytes) {
        let (mut seen, mut times) = (self.look(), 0);
        while times < 5 {
            std::thread::park_timeout(Duration::from_millis(20));
            let now = self.look();
            times = if now == seen { times + 1 } else { 0 };
            seen = now;
        }
        seen
    }

    /// `act` makes `class` grow by at least `least` bytes, which is more than the slack.
    ///
    /// Symptom: beside fifty busy loops the heap had a few bytes more than were charged. Cause: a thread of
    /// the store that was not scheduled for a tenth of a second looked idle. Fix: the comparison waits until
    /// it holds; for a class without charges it never does.
    fn grows(&self, what: &str, class: fn(&MemoryBytes) -> u64, least: u64, act: impl FnOnce()) {
        assert!(least > 2 * SLACK);
        let (live_before, charged_before) = self.still();
        act();
        let mut looks = 0;
        loop {
            // Drains the samples: up to 64 KiB of them may wait.
            self.store.adjust_filters();
            let (live, charged) = self.still();
            let of_class = class(&charged).saturating_sub(class(&charged_before));
            let live = live.saturating_sub(live_before);
            let charged = charged.total().saturating_sub(charged_before.total());
            if of_class >= least && live <= charged + SLACK {
                return;
            }
            looks += 1;
            assert!(
                looks < MOST_LOOKS,
                "{what}: {live} bytes more in the heap, {charged} charged, {of_class} of them as such"
            );
        }
    }

    fn space(&self, name: &str, cache: CacheMode) -> Keyspace {
        let options = KeyspaceOptions { cache, ..KeyspaceOptions::default() };
        self.store.keyspace(name, options).unwrap()
    }

    /// In one run, with nothing of it in memory.
    fn load(&self, space: &Keyspace, keys: u64, len: usize) {
        for number in 0..keys {
            space.put(&key(number), &value(number, len), DEFERRED).unwrap();
        }
        self.store.flush().unwrap();
        space.compact_range((Bound::Unbounded, Bound::Unbounded)).unwrap();
    }
}

/// Symptom: range tombstones took a fifth more memory than was charged, entries of a memtable an eighth more.
/// Cause: a clone of a key or value of type `bytes` allocates a reference count of its own.
/// Fix: it is counted for tombstones; the memtable takes the keys and values of a write instead of clones.
#[test]
fn each_class_is_charged_for_its_bytes() {
    let _alone = crate::ONE_AT_A_TIME.lock();
    let output = run_alone("classes::alone", None, &[(ALONE, "1")]);
    let told = [output.stdout, output.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(output.status.success() && told.contains("1 passed"), "{told}");
}

#[test]
fn alone() {
    if std::env::var_os(ALONE).is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let objects = objects(dir.path(), "store", 256 * MIB);
    // Everything is loaded only on request.
    let filters = FilterOptions {
        kind: FilterKind::Bloom,
        rule: FilterRule::Paper,
        memory: FilterMemory::BitsPerKey(16.0),
        background: false,
    };
    let budget = MemoryBudget::with_filters(32 * MIB, filters);
    let options = Options { merge_for_reads: false, ..Options::default() };
    let store = Store::open_within(objects, options, &budget).unwrap();
    let world = World { store, budget };
    let plain = world.space("plain", CacheMode::Nothing);
    let blocks = world.space("blocks", CacheMode::Blocks);
    let rows = world.space("rows", CacheMode::Rows);
    world.load(&plain, KEYS, 500);
    world.load(&blocks, KEYS / 6, 400);
    world.load(&rows, KEYS / 6, 400);

    let all = |space: &Keyspace, keys: u64| {
        for number in 0..keys {
            assert!(space.get(&key(number)).unwrap().is_some());
        }
    };
    let index_pages = world.budget.bytes().index_pages;
    world.grows("filters and index pages", |of| of.filters, 64 << 10, || all(&plain, KEYS));
    let index_pages = world.budget.bytes().index_pages - index_pages;
    assert!(index_pages > 2 * SLACK, "{index_pages} bytes of index pages");
    world.grows("blocks", |of| of.blocks, MIB, || all(&blocks, KEYS / 6));
    world.grows("rows", |of| of.rows, MIB, || all(&rows, KEYS / 6));
    let mut iterators = Vec::new();
    world.grows(
        "scans",
        |of| of.scans,
        256 << 10,
        || {
            for number in 0..64 {
                let start = key(number);
                let mut iter = plain.iter((Bound::Included(&start[..]), Bound::Unbounded));
                assert!(iter.next().unwrap().is_ok());
                iterators.push(iter);
            }
        },
    );
    world.grows(
        "memtables",
        |of| of.memtables,
        512 << 10,
        || {
            for number in 0..2000 {
                plain.put(&key(number), &value(number, 300), DEFERRED).unwrap();
            }
        },
    );
    drop(iterators);
    world.store.flush().unwrap();
    // Otherwise they would be merged away.
    let _snapshot = world.store.snapshot();
    world.grows(
        "range tombstones",
        |of| of.range_tombstones,
        64 << 10,
        || {
            for number in 0..3000u64 {
                let (low, high) = (key(number), [&key(number)[..], &[0]].concat());
                let mut batch = world.store.batch();
                batch.delete_range(&plain, &low, &high);
                batch.commit(DEFERRED).unwrap();
            }
            world.store.flush().unwrap();
        },
    );
}
