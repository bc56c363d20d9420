//! Merges that the worker starts without a full tier: for deleted data, and for partly dead value objects.

use super::{
    tests::{worker, worker_with_share},
    *,
};
use crate::{
    Durability,
    compact::{flusher, install, merge},
    format::entry::KeyspaceId,
    read::{get::WantedPart, iter::Iter},
    session::read_counters::ReadCount,
    tree::garbage::GarbageItem,
    write::{
        admission,
        commit::{WriteOp, WriteRequest, leader},
    },
};
use arc_swap::Guard;
use bytes::Bytes;
use copal_object::{Ack, CreateOptions, Op, Txn};

impl MergeWorker {
    pub(super) fn flush(&mut self) {
        let engine = self.engine.clone();
        admission::rotate(&engine, &mut engine.writes.writer.lock()).unwrap();
        assert!(flusher::flush_all(&engine).unwrap());
    }

    /// Commits one operation for each number and flushes them.
    pub(super) fn flush_all_of(&mut self, numbers: impl Iterator<Item = u64>, op: impl Fn(u64) -> WriteOp) {
        for i in numbers {
            let write = WriteRequest::new(vec![op(i)], Durability::Process);
            leader::commit(&self.engine, write).unwrap();
        }
        self.flush();
    }

    pub(super) fn entries(&self) -> u64 {
        let version = self.engine.super_version().version.clone();
        let slices = version.runs.iter().flat_map(|run| &run.slices);
        slices.map(|slice| slice.table.meta.entries).sum()
    }

    fn table_bytes(&self) -> u64 {
        self.engine.super_version().version.runs.iter().map(|run| run.bytes()).sum()
    }

    /// Bytes that flushes and merges have written.
    fn written(&self) -> u64 {
        self.engine.counters.write_bytes.load(Ordering::Relaxed)
    }

    /// Scans all keys from one end, and checks that there are `keys`.
    pub(super) fn walk_all(&self, backward: bool, keys: u64) {
        let (view, seq) = self.engine.super_version_now();
        let range = KeyspaceId(1).range();
        let mut walk =
            Iter::new(&self.engine, Guard::into_inner(view), None, seq, range, WantedPart::Presence);
        let mut found = 0;
        while let Some(item) = if backward { walk.next_back() } else { walk.next() } {
            item.unwrap();
            found += 1;
        }
        assert_eq!(found, keys);
    }

    /// A tree with this many keys of 700 bytes each in its bottom and nothing above.
    fn load(keys: u64) -> MergeWorker {
        let mut worker = worker_with_share(10);
        for from in (0..keys).step_by(500) {
            worker.flush_all_of(from..from + 500, |i| put(i, VALUE_BYTES));
            worker.job_steps();
        }
        let version = worker.engine.super_version().version.clone();
        let mut job = to_bottom(&version, KeyRange::all(), HashSet::new());
        drop(version);
        while merge::step_in_reserve(&worker.engine, &mut job).unwrap() {}
        assert_eq!((worker.all_runs(), worker.entries()), (1, keys));
        worker
    }
}

const VALUE_BYTES: usize = 700;
/// Key length of [`MergeWorker::key`].
const KEY_BYTES: u64 = 12;

fn put(i: u64, len: usize) -> WriteOp {
    WriteOp::Put { key: MergeWorker::key(i), value: Bytes::from(vec![i as u8; len]) }
}

fn delete(i: u64) -> WriteOp {
    WriteOp::Delete { key: MergeWorker::key(i) }
}

/// Design: docs/design/kv.md#the-tree
#[test]
fn a_table_of_deletions_is_merged_away_without_a_full_tier() {
    let mut worker = worker();
    worker.flush_all_of(0..3000, |i| put(i, 100));
    // Too few to be worth a merge.
    worker.flush_all_of(0..1000, delete);
    assert_eq!((worker.job_steps(), worker.entries()), (0, 4000));
    worker.flush_all_of(1000..2100, delete);
    assert!(worker.job_steps() > 0);
    assert_eq!((worker.all_runs(), worker.entries()), (1, 900));
    for i in [0, 999, 2099, 2100, 2999] {
        assert_eq!(worker.get(i), (i >= 2100).then_some(u64::from(i as u8)));
    }
    assert_eq!(worker.job_steps(), 0);
}

/// Symptom: 32 bytes were written for each byte of a random deletion, where RocksDB writes 9. Cause: a table
/// with more than half deletions went down at once, and a flush of random deletions makes one that overlaps
/// the whole bottom. Fix: deletions wait above the bottom until a merge frees as much as it writes.
#[test]
fn deletions_rewrite_no_bottom_that_is_mostly_alive() {
    let mut worker = MergeWorker::load(12_000);
    let before = worker.written();
    for from in (0..5500).step_by(1100) {
        worker.flush_all_of(from..from + 1100, delete);
        worker.job_steps();
    }
    let written = worker.written() - before;
    assert!(written <= 16 * 5500 * KEY_BYTES, "{written} bytes for {} bytes of deletions", 5500 * KEY_BYTES);
    for i in [0, 5499, 5500, 11_999] {
        assert_eq!(worker.get(i), (i >= 5500).then_some(u64::from(i as u8)));
    }
}

/// Symptom and cause as above: deleting everything rewrote the store with each flush. Fix: merges free as
/// much as they write, so all of them together write no more than the former size, and dead bytes never
/// exceed live ones.
#[test]
fn space_of_deleted_keys_comes_back_for_no_more_than_there_was() {
    const KEYS: u64 = 12_000;
    let mut worker = MergeWorker::load(KEYS);
    let (before, all) = (worker.written(), worker.table_bytes());
    for from in (0..KEYS).step_by(1200) {
        worker.flush_all_of(from..from + 1200, delete);
        worker.job_steps();
        let live = all * (KEYS - from - 1200) / KEYS;
        let held = worker.table_bytes();
        // One table of the bottom more, and the amount that is too small to be worth a merge.
        assert!(held <= 2 * live + (2 << 20), "{held} bytes are held, {live} of them alive");
    }
    let written = worker.written() - before;
    let deletions = 16 * KEYS * KEY_BYTES;
    assert!(written <= all + deletions, "{written} bytes for {all}");
    assert!((0..KEYS).all(|i| worker.get(i).is_none()));
}

/// Deletions of adjacent keys kill everything below them: only the tables that they overlap are written,
/// however many deletions there are.
#[test]
fn deletions_side_by_side_rewrite_the_tables_below_them_alone() {
    const KEYS: u64 = 12_000;
    let mut worker = MergeWorker::load(KEYS);
    let (before, all) = (worker.written(), worker.table_bytes());
    let mut numbers: Vec<u64> = (0..KEYS).collect();
    numbers.sort_by_key(|i| MergeWorker::key(*i));
    worker.flush_all_of(numbers.drain(4000..7000), delete);
    assert!(worker.job_steps() > 0);
    let (written, held) = (worker.written() - before, worker.table_bytes());
    // The tables at both ends may have too few dead entries to be worth a merge.
    let freed = 3000 * VALUE_BYTES as u64 / 2;
    assert!(held <= all - freed, "{held} bytes are held of {all}");
    assert!(written <= 3 << 20, "{written} bytes");
}

/// A deletion counts as effective until deletions were seen to delete nothing. So deletions of absent keys
/// cause a rewrite of the bottom once, and after that ever more of them are needed.
#[test]
fn deletions_of_absent_keys_do_not_rewrite_the_bottom_again_and_again() {
    const KEYS: u64 = 6000;
    let mut worker = MergeWorker::load(KEYS);
    let (before, all) = (worker.written(), worker.table_bytes());
    for round in 1..=12 {
        let from = round * 100_000;
        worker.flush_all_of(from..from + 1800, delete);
        worker.job_steps();
    }
    let written = worker.written() - before;
    assert!(written <= 2 * all + 16 * 12 * 1800 * KEY_BYTES, "{written} bytes for a bottom of {all}");
    assert_eq!(worker.get(0), Some(0));
}

/// Scans skip deletions and deleted entries until they have skipped as many bytes as the merge that removes
/// them moves: not earlier, and not much later however many scans follow. Without `merge_for_reads` they keep
/// skipping.
#[test]
fn walks_pay_for_merging_away_deletions_they_pass() {
    const KEYS: u64 = 9000;
    const DELETED: u64 = KEYS / 3;
    let mut worker = MergeWorker::load(KEYS);
    worker.flush_all_of((0..KEYS).filter(|i| i % 3 == 0), delete);
    let passed = |worker: &MergeWorker| worker.engine.counters.reads.sum(ReadCount::DeletedPassed);
    assert_eq!((worker.job_steps(), worker.entries()), (0, KEYS + DELETED));
    let looks = worker.timeout();
    assert!(looks.is_some(), "it looks again by itself");
    worker.walk_all(false, KEYS - DELETED);
    assert_eq!(passed(&worker), 2 * DELETED, "each deletion and its key");
    assert_eq!(worker.job_steps(), 0, "a third was passed, and all would be moved");
    for round in 0..40 {
        worker.walk_all(round % 2 == 0, KEYS - DELETED);
        worker.job_steps();
    }
    assert_eq!(worker.entries(), KEYS - DELETED, "nothing is left to pass");
    let passed = passed(&worker);
    assert!(passed <= 5 * 2 * DELETED, "{passed} entries were passed");
}

/// A snapshot keeps data that was deleted after it: no merge could drop it, and none tries to.
#[test]
fn deletions_a_snapshot_does_not_see_start_no_merge() {
    const KEYS: u64 = 3000;
    let mut worker = MergeWorker::load(KEYS);
    let held = worker.engine.snapshots.hold();
    worker.flush_all_of(0..KEYS, delete);
    for _ in 0..10 {
        worker.walk_all(false, 0);
        assert_eq!(worker.job_steps(), 0);
    }
    drop(held);
    assert!(worker.job_steps() > 0);
    assert_eq!((worker.entries(), worker.all_runs()), (0, 0));
}

/// Symptom: in a full store the space of deleted data never came back. Cause: a merge had to free as much as
/// it writes, and a quarter of the held bytes. Fix: in a full store an eighth of the written bytes is enough.
#[test]
fn a_store_under_pressure_merges_for_a_smaller_gain() {
    const KEYS: u64 = 6000;
    let mut worker = MergeWorker::load(KEYS);
    worker.flush_all_of((0..KEYS).filter(|i| i % 8 == 0), delete);
    assert_eq!(worker.job_steps(), 0, "an eighth is not cheap");
    worker.engine.writes.pressure.begin();
    assert!(worker.job_steps() > 0);
    assert_eq!(worker.entries(), KEYS - KEYS / 8);
    assert_eq!(worker.job_steps(), 0, "nothing is left");
    // One of a thousand is out of proportion even then.
    worker.flush_all_of((0..KEYS).filter(|i| i % 1000 == 1), delete);
    assert_eq!(worker.job_steps(), 0);
}

/// The merge that finds separated values dead does not write them, but counts them as freed: a third of them
/// is worth writing the pointers to all.
#[test]
fn deletions_of_separated_values_go_down_for_the_space_of_the_values() {
    const LEN: usize = 4200;
    let mut worker = worker_with_share(10);
    for from in (0..2400).step_by(100) {
        worker.flush_all_of(from..from + 100, |i| put(i, LEN));
        worker.job_steps();
    }
    worker.flush_all_of((0..2400).filter(|i| i % 3 == 0), delete);
    worker.job_steps();
    let dead: u64 = {
        let tree = worker.engine.stored.tree.lock();
        let values = tree.manifest.state.values.values();
        values.map(|value| value.dead.total()).sum()
    };
    assert!(dead >= 700 * LEN as u64, "{dead} bytes of 800 values were found dead");
}

/// Symptom: an idle store kept the space of deleted values, up to a whole object of them, until a caller
/// requested a merge. Cause: scattered deletions leave pages that dead values share with live ones, so the
/// object has to be rewritten, and an object that flushes still appended to was not.
/// Fix: such an object is closed once so much of it is dead and nothing was written between two checks.
/// Design: docs/design/kv.md#separated-values
#[test]
fn a_value_object_that_is_mostly_dead_is_rewritten_without_being_asked() {
    const LEN: usize = 4200;
    let mut worker = worker();
    let live = |worker: &MergeWorker| worker.engine.objects.space().live_bytes;
    for from in (0..2400).step_by(100) {
        worker.flush_all_of(from..from + 100, |i| put(i, LEN));
        worker.job_steps();
    }
    let all = live(&worker);
    worker.flush_all_of((0..2400).filter(|i| i % 2 == 1), delete);
    assert!(worker.rewritten.is_empty());
    // The deletions meet the deleted entries, and the values are found dead. A write just happened, so more
    // may die.
    worker.job_steps();
    assert!(worker.rewritten.is_empty() && worker.may_rewrite);
    assert_eq!(worker.timeout(), Some(LOOK));
    install::free_garbage(&worker.engine).unwrap();
    worker.swept = None;
    while worker.step().unwrap() {}
    assert!(!worker.rewritten.is_empty());
    assert_eq!(worker.entries(), 1200);
    let freed = all - live(&worker);
    assert!(freed > 1000 * LEN as u64, "{freed} of 5,040,000 dead bytes are free");
    for i in 0..2400 {
        assert_eq!(worker.get(i), (i % 2 == 0).then_some(u64::from(i as u8)));
    }
}

/// Symptom: no test would have noticed a full store that keeps value objects of which an eighth is dead, as a
/// store with free space does.
#[test]
fn a_store_under_pressure_rewrites_value_objects_of_which_less_is_dead() {
    const LEN: usize = 4200;
    let mut worker = worker();
    for from in (0..2400).step_by(100) {
        worker.flush_all_of(from..from + 100, |i| put(i, LEN));
        worker.job_steps();
    }
    worker.flush_all_of((0..2400).filter(|i| i % 8 == 1), delete);
    let version = worker.engine.super_version().version.clone();
    let mut job = to_bottom(&version, KeyRange::all(), HashSet::new());
    drop(version);
    while merge::step_in_reserve(&worker.engine, &mut job).unwrap() {}
    let settle = |worker: &mut MergeWorker| {
        worker.swept = None;
        while worker.step().unwrap() {}
    };
    settle(&mut worker);
    settle(&mut worker);
    assert!(worker.rewritten.is_empty(), "an eighth is not worth it");
    worker.engine.writes.pressure.begin();
    settle(&mut worker);
    settle(&mut worker);
    assert!(!worker.rewritten.is_empty());
    for i in 0..2400 {
        assert_eq!(worker.get(i), (i % 8 != 1).then_some(u64::from(i as u8)));
    }
}

/// Symptom: no test would have noticed a merge that finds no space and leaves the store as it is.
#[test]
fn a_merge_that_finds_no_space_has_everything_freed_that_can_be() {
    let mut worker = worker();
    worker.failed(&Error::corrupt("a table", "by a test"));
    assert!(!worker.engine.writes.pressure.is_on());
    worker.failed(&Error::NoSpace);
    let pressure = &worker.engine.writes.pressure;
    assert!(pressure.is_on() && pressure.is_full() && pressure.take_look());
    assert!(worker.timeout().is_some_and(|pause| pause <= LOOK_WHEN_FULL));
}

/// Symptom: no test would have noticed objects that a full store failed to free and forgot until it was
/// reopened.
#[test]
fn garbage_that_could_not_be_freed_is_kept() {
    const COUNT: usize = 600;
    let worker = worker();
    let (objects, garbage) = (&worker.engine.objects, &worker.engine.stored.garbage);
    let ids: Vec<ObjectId> = (0..COUNT).map(|_| worker.engine.new_object()).collect();
    let create = |&id: &ObjectId| Op::Create { id, opts: CreateOptions::default() };
    let txn = Txn::new().ops(ids.iter().map(create));
    objects.commit(txn, Ack::Durable).wait().unwrap();
    garbage.add(0, ids.iter().map(|id| GarbageItem::Delete(*id)).collect());
    objects.close().unwrap();
    assert!(install::free_garbage(&worker.engine).is_err());
    assert_eq!(garbage.items().len(), COUNT);
}
