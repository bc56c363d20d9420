//! Opening a store takes no more memory than its budget, for any state that the previous session left.
//!
//! Symptom: some engines were killed while opening under a limit that was enough for them once they were
//! open. It depended on the length of the manifest at the end of the last session. A store of 4.4 MB, killed
//! with a larger budget, took 45 MB to open. Then every flush, and so in the end every write, answered
//! `OverBudget`.
//! Cause: the manifest, up to 4 MiB, was read completely, and every record it ever had was in memory at once.
//! Logs were replayed into memtables of any size.
//! Fix: the manifest is read in pieces, edit by edit. Logs that leave no room for one more memtable are
//! flushed while the store is opened, one memtable after another. All of it is charged.
//!
//! Loads and openings run in processes of their own: buffers kept from a load would hide the memory of an
//! opening, and the allocator counts for a whole process.

use crate::{
    alone::run_alone,
    counting::{live_bytes, peak_bytes},
    world::*,
};
use copal_kv::{Durability, MemoryBudget, Store};
use copal_object::{Ack, CreateOptions, ObjectId, Op, OpenOptions, Store as Objects, Txn};
use std::{
    ops::Bound,
    path::{Path, PathBuf},
};

const TOTAL: u64 = 4 * MIB;
/// Besides the budget: the device's page of zeros (1 MiB), the object store's tables and its read buffers.
const FIXED: u64 = 2 * MIB;
/// Task of a process of its own, and its directory.
const LOAD: &str = "COPAL_TEST_MEMORY_LOAD";
const OPEN: &str = "COPAL_TEST_MEMORY_OPEN";
/// The store as a load left it.
const LEFT: &str = "left";
const ROUNDS: u64 = 120;
/// Enough for a journal, a log and tables; copied while it is open.
const SIZE: u64 = 96 * MIB;

/// Opens the store at `path` in a process of its own and waits until its flushes are done.
#[test]
#[expect(clippy::print_stdout, reason = "shown when a test fails: how near the bound it came")]
fn opened_alone() {
    let Some(path) = std::env::var_os(OPEN).map(PathBuf::from) else {
        return;
    };
    let before = live_bytes();
    let device = device(&path, None);
    let (objects, _) = Objects::open(device, &OpenOptions::default()).unwrap();
    let below = peak_bytes().saturating_sub(before);
    let budget = MemoryBudget::new(TOTAL);
    let (store, space) = open(&objects, &budget);
    let opened = peak_bytes().saturating_sub(before);
    store.flush().unwrap();
    let peak = peak_bytes().saturating_sub(before);
    println!("peak: {below} below, {opened} opened, {peak} flushed; {:?}", budget.bytes());
    assert!(peak <= TOTAL + FIXED, "{peak} bytes with a budget of {TOTAL}");
    for number in [0, 1, 17] {
        assert!(space.get(&key(number)).unwrap().is_some(), "key {number} is there");
    }
}

/// Checks the memory for opening the store that `load` leaves in a directory.
fn opens_in_its_budget(test: &str, load: impl FnOnce(&Path)) {
    if let Some(dir) = std::env::var_os(LOAD) {
        return load(Path::new(&dir));
    }
    let dir = tempfile::tempdir().unwrap();
    alone(test, LOAD, dir.path());
    alone("opening::opened_alone", OPEN, &dir.path().join(LEFT));
}

#[expect(clippy::print_stdout, reason = "shown when a test fails")]
fn alone(test: &str, variable: &str, path: &Path) {
    let output = run_alone(test, None, &[(variable, path.to_str().unwrap())]);
    let (told, why) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{told}{why}");
    assert!(told.contains("1 passed"), "{test} in a process of its own");
}

/// Leaves a store as a kill does: a copy of an open one, with all its writes on the device.
fn kill(dir: &Path, store: &Store) {
    store.sync().unwrap();
    std::fs::copy(dir.join("store"), dir.join(LEFT)).unwrap();
}

#[test]
fn after_a_load_that_made_the_manifest_long() {
    opens_in_its_budget("opening::after_a_load_that_made_the_manifest_long", |dir| {
        let objects = objects(dir, LEFT, SIZE);
        let (store, space) = open(&objects, &MemoryBudget::new(16 * MIB));
        // Edits of the manifest name the borders between tables: long ones, where tables begin with the same
        // bytes.
        let long = |number: u64| [&[7; 12_000][..], &number.to_be_bytes()].concat();
        let everything = (Bound::Unbounded, Bound::Unbounded);
        let manifest = || objects.stat(ObjectId(1)).unwrap().len;
        for number in [0, 1, 17] {
            space.put(&key(number), b"value", DEFERRED).unwrap();
        }
        'long: loop {
            for deletes in [false, true] {
                for number in 0..200 {
                    if deletes {
                        space.delete(&long(number), DEFERRED).unwrap();
                    } else {
                        space.put(&long(number), b"value", DEFERRED).unwrap();
                    }
                }
                // Nothing is left to merge when the length is read.
                space.compact_range(everything).unwrap();
                if manifest() > 7 * MIB / 2 {
                    break 'long;
                }
            }
        }
        store.close().unwrap();
        objects.close().unwrap();
        drop((space, store, objects));
    });
}

#[test]
fn after_a_load_that_was_killed() {
    opens_in_its_budget("opening::after_a_load_that_was_killed", |dir| {
        let objects = objects(dir, "store", SIZE);
        let (store, space) = open(&objects, &MemoryBudget::new(TOTAL));
        for number in 0..8000 {
            space.put(&key(number), &value(number, 1000), DEFERRED).unwrap();
        }
        kill(dir, &store);
    });
}

#[test]
fn after_a_load_with_a_larger_budget_that_was_killed() {
    let test = "opening::after_a_load_with_a_larger_budget_that_was_killed";
    opens_in_its_budget(test, |dir| {
        let objects = objects(dir, "store", SIZE);
        let (store, space) = open(&objects, &MemoryBudget::new(128 * MIB));
        // Not yet a full memtable, and three times the budget of the opening. Each write is a group of its
        // own, as writes logged together are one group, which is assembled in memory.
        for number in 0..4000 {
            space.put(&key(number), &value(number, 3000), Durability::Process).unwrap();
        }
        assert_eq!(store.stats().flushes, 0);
        kill(dir, &store);
    });
}

/// Symptom: an object store that was killed with many transactions after its last checkpoint took several
/// times the bytes of its journal to open. The journal may hold 64 MiB of records.
/// Cause: the operations of all records were in memory at once.
/// Fix: they are read again, record by record, when they are applied.
#[test]
fn after_many_transactions_of_the_object_store() {
    opens_in_its_budget("opening::after_many_transactions_of_the_object_store", |dir| {
        let objects = objects(dir, "store", SIZE);
        let (store, space) = open(&objects, &MemoryBudget::new(TOTAL));
        for number in [0, 1, 17] {
            space.put(&key(number), b"value", DEFERRED).unwrap();
        }
        let commit = |txn| objects.commit(txn, Ack::Durable).wait().unwrap();
        // Each is a record; almost half a journal, at which a checkpoint is taken.
        for _ in 0..ROUNDS {
            let ids = (0..250).map(|number| ObjectId((1 << 40) + number));
            let opts = CreateOptions::default();
            let create = |id| Op::Create { id, opts: opts.clone() };
            commit(Txn::new().ops(ids.clone().map(create)));
            commit(Txn::new().ops(ids.map(|id| Op::Delete { id })));
        }
        kill(dir, &store);
        let (_, report) = Objects::open(device(&dir.join(LEFT), None), &OpenOptions::default()).unwrap();
        assert!(report.records_replayed >= 2 * ROUNDS, "{report:?}");
        kill(dir, &store);
    });
}
