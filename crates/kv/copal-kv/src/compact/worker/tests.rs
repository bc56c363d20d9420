//! The worker, a step at a time, on the real object layer.

use super::*;
use crate::{
    Durability, Options,
    compact::{flusher, install, merge, release},
    format::entry::{KeyspaceId, MAX_SEQ},
    open as recovery,
    read::get::{self, CachePolicy, WantedPart},
    session::read_counters::ReadCount,
    tree::manifest::format::TreeLevel,
    write::{
        admission,
        commit::{WriteOp, WriteRequest, leader},
    },
};
use bytes::Bytes;
use copal_device::{Device, Image, MemoryDevice};
use copal_object::{MkfsOptions, OpenOptions};

/// A worker whose steps the test runs.
pub(super) fn worker() -> MergeWorker {
    // Tiers fill up before anything goes to the bottom.
    worker_with_share(0)
}

pub(super) fn worker_with_share(bottom_share: u32) -> MergeWorker {
    worker_with(Options { memory_bytes: 4 << 20, bottom_share, table_bytes: 1 << 20, ..Options::default() })
}

pub(super) fn worker_with(options: Options) -> MergeWorker {
    const SIZE: u64 = 128 << 20;
    let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(SIZE), SIZE);
    copal_object::Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = copal_object::Store::open(device, &OpenOptions::default()).unwrap();
    MergeWorker::new(recovery::open(objects, options, None).unwrap())
}

impl MergeWorker {
    pub(super) fn key(i: u64) -> Bytes {
        KeyspaceId(1).key(&copal_testkit::scattered(i).to_be_bytes())
    }

    /// Fills one memtable, freezes and flushes it.
    fn flushed_memtable(&mut self, round: u64) {
        for i in 0..500 {
            let value = Bytes::from(vec![round as u8; 700]);
            let key = MergeWorker::key((i * 7 + round) % 3000);
            let write = WriteRequest::new(vec![WriteOp::Put { key, value }], Durability::Process);
            leader::commit(&self.engine, write).unwrap();
        }
        let engine = self.engine.clone();
        admission::rotate(&engine, &mut engine.writes.writer.lock()).unwrap();
        assert!(flusher::flush_all(&engine).unwrap());
    }

    fn runs(&self, level: u8) -> usize {
        self.engine.super_version().version.level(TreeLevel(level)).count()
    }

    pub(super) fn all_runs(&self) -> usize {
        self.engine.super_version().version.runs.len()
    }

    pub(super) fn job_steps(&mut self) -> usize {
        let mut steps = 0;
        while self.job_step().unwrap() {
            steps += 1;
        }
        steps
    }

    pub(super) fn get(&self, key: u64) -> Option<u64> {
        let engine = &self.engine;
        let (view, key) = (engine.super_version(), MergeWorker::key(key));
        let found = get::get(engine, &view, MAX_SEQ, &key, &WantedPart::all(), CachePolicy::Nothing);
        found.unwrap().map(|value| u64::from(value[0]))
    }

    fn look_up(&self, times: u64) {
        for key in 0..times {
            self.get(key % 3000);
        }
    }

    /// Look-ups that read this many blocks in vain.
    fn waste(&self, blocks: u64) {
        self.engine.counters.reads.add_many(ReadCount::WastedReads, blocks);
    }

    /// Every key has the value of the newest round that wrote it.
    fn check(&self, rounds: u64) {
        for key in 0..3000 {
            let newest = (1..=rounds).rev().find(|round| {
                let offset = (key + 3000 - round % 3000) % 3000;
                (0..500).any(|i| i * 7 % 3000 == offset)
            });
            assert_eq!(self.get(key), newest, "key {key}");
        }
    }
}

/// Two runs at the top above a bottom, no tier full. The two become one once look-ups have wasted as many
/// blocks as
/// the merge moves, not earlier. A write restarts the count.
#[test]
fn runs_that_no_tier_asks_for_become_one_once_look_ups_have_paid_for_it() {
    // Only full tiers go down.
    let mut worker = worker_with_share(0);
    for round in 1..=6 {
        worker.flushed_memtable(round);
        worker.job_steps();
    }
    assert_eq!((worker.runs(0), worker.all_runs()), (2, 3));
    let blocks =
        worker.engine.super_version().version.level(TreeLevel(0)).map(|run| run.bytes()).sum::<u64>() / 4096
            + 1;
    worker.job_steps();
    worker.waste(blocks - 1);
    assert_eq!((worker.job_steps(), worker.runs(0)), (0, 2), "not paid for yet");
    let key = MergeWorker::key(5000);
    let write = WriteRequest::new(vec![WriteOp::Delete { key }], Durability::Process);
    leader::commit(&worker.engine, write).unwrap();
    worker.waste(1);
    assert_eq!((worker.job_steps(), worker.runs(0)), (0, 2), "a write came in between");
    worker.waste(blocks);
    assert!(worker.timeout().is_some(), "it looks again by itself");
    assert!(worker.job_steps() > 0);
    assert_eq!((worker.runs(0), worker.all_runs()), (1, 2));
    worker.waste(100 * blocks);
    assert_eq!(worker.job_steps(), 0, "a run above a large bottom stays");
    worker.check(6);
}

/// Symptom: a phase without writes over 87 MB wrote 54 MB, because of look-ups that cost nothing.
/// Cause: each look-up paid a block, also where a filter, a row or a memtable answered. Fix: it pays the
/// blocks that it
/// read in vain.
#[test]
fn look_ups_that_waste_nothing_pay_for_no_merge() {
    let mut worker = worker_with_share(0);
    for round in 1..=6 {
        worker.flushed_memtable(round);
        worker.job_steps();
    }
    let (engine, runs) = (worker.engine.clone(), worker.all_runs() as u64);
    let (_, blocks) = read_triggered(&engine.super_version().version, || 0, 0).unwrap();
    // The filters are loaded by the first look-ups; a write restarts the count after these.
    worker.look_up(3000);
    engine.caches.cache.adjust_filters();
    let write = WriteRequest::new(vec![WriteOp::Delete { key: MergeWorker::key(5000) }], Durability::Process);
    leader::commit(&engine, write).unwrap();
    worker.job_steps();
    let before = engine.counters.wasted(runs);
    worker.look_up(2 * blocks);
    let wasted = engine.counters.wasted(runs) - before;
    assert!(wasted < blocks / 2, "{wasted} wasted reads of {} look-ups", 2 * blocks);
    assert_eq!((worker.job_steps(), worker.runs(0)), (0, 2));
    worker.waste(blocks - wasted);
    assert!(worker.job_steps() > 0);
    assert_eq!(worker.runs(0), 1);
}

/// A scan reads a block of every run, so it pays for each run beyond the first.
#[test]
fn walks_pay_for_a_merge_by_the_runs_they_search() {
    let mut worker = worker_with_share(0);
    for round in 1..=6 {
        worker.flushed_memtable(round);
        worker.job_steps();
    }
    let (engine, runs) = (worker.engine.clone(), worker.all_runs() as u64);
    let version = engine.super_version().version.clone();
    let (_, blocks) = read_triggered(&version, || 0, 0).unwrap();
    drop(version);
    worker.job_steps();
    for _ in 0..blocks.div_ceil(runs - 1) - 1 {
        engine.counters.reads.add(ReadCount::Seeks);
    }
    assert_eq!((worker.job_steps(), worker.runs(0)), (0, 2), "not paid for yet");
    engine.counters.reads.add(ReadCount::Seeks);
    assert!(worker.job_steps() > 0);
    assert_eq!(worker.runs(0), 1);
}

/// Symptom: with inserts that trickled in between scans (YCSB E), ten runs stayed ten runs and every scan
/// read a block of each.
/// Cause: any write restarted the count of wasted blocks, so that look-ups beside writes, which filters spare
/// most
/// runs, do not pay for merges. Fix: scans are counted until the tree changes; look-ups are not.
#[test]
fn walks_pay_for_a_merge_between_writes_and_look_ups_do_not() {
    let mut worker = worker_with_share(0);
    for round in 1..=6 {
        worker.flushed_memtable(round);
        worker.job_steps();
    }
    let (engine, runs) = (worker.engine.clone(), worker.all_runs() as u64);
    let (_, blocks) = read_triggered(&engine.super_version().version, || 0, 0).unwrap();
    let mut written = 5000;
    let mut write = || {
        written += 1;
        let key = MergeWorker::key(written);
        let write = WriteRequest::new(vec![WriteOp::Delete { key }], Durability::Process);
        leader::commit(&engine, write).unwrap();
    };
    worker.job_steps();
    for _ in 0..10 {
        write();
        worker.waste(blocks - 1);
        assert_eq!((worker.job_steps(), worker.runs(0)), (0, 2), "look-ups paid");
    }
    let walks = (WALKS_PER_BLOCK * blocks).div_ceil(runs - 1);
    for _ in 1..walks {
        write();
        engine.counters.reads.add(ReadCount::Seeks);
        assert_eq!((worker.job_steps(), worker.runs(0)), (0, 2), "not paid for yet");
    }
    write();
    engine.counters.reads.add(ReadCount::Seeks);
    assert!(worker.job_steps() > 0);
    assert_eq!((worker.runs(0), worker.all_runs()), (1, 2));
    worker.check(6);
}

/// A tier fills up during a merge for readers. The tier goes first, the rest of the other merge is planned
/// anew, and nothing is lost or mixed up.
#[test]
fn a_full_tier_ends_a_merge_for_readers() {
    let mut worker = worker_with_share(0);
    let mut round = 0;
    while worker.runs(1) < 2 || worker.runs(0) < 3 {
        round += 1;
        worker.flushed_memtable(round);
        worker.job_steps();
        assert!(round < 64, "the tree never got that shape");
    }
    worker.waste(1 << 14);
    assert!(worker.job_step().unwrap());
    assert_eq!(worker.jobs.last().map(|job| job.urgency), Some(MergeUrgency::ReadTriggered));
    round += 1;
    worker.flushed_memtable(round);
    worker.job_step().unwrap();
    assert_eq!(
        worker.jobs.iter().map(|job| job.urgency).collect::<Vec<_>>(),
        [MergeUrgency::Tier(TreeLevel(0))]
    );
    worker.job_steps();
    worker.check(round);
    worker.waste(1 << 14);
    worker.job_steps();
    worker.waste(1 << 14);
    worker.job_steps();
    assert_eq!(worker.all_runs(), 2, "one run above the bottom");
    worker.check(round);
}

/// Runs that together are a tenth of the bottom go into it, and a run far larger than the runs before it is
/// left alone.
#[test]
fn merges_for_readers_move_no_large_run_for_a_small_one() {
    let mut worker = worker_with_share(10);
    for round in 1..=4 {
        worker.flushed_memtable(round);
    }
    worker.job_steps();
    assert_eq!(worker.all_runs(), 1, "the bottom");
    worker.flushed_memtable(5);
    worker.waste(1 << 14);
    worker.job_steps();
    worker.waste(1 << 14);
    worker.job_steps();
    assert_eq!(worker.all_runs(), 1, "a fourth of the bottom goes into it");
    worker.check(5);
    let version = worker.engine.super_version().version.clone();
    assert!(read_triggered(&version, || 0, 10).is_none(), "nothing is left to do");
}

/// Symptom: ten runs above a bottom ten times their size stayed until scans had paid for moving the bottom as
/// well.
/// Cause: runs that would go down anyway went down at once. And if a tier had three runs, the output of a
/// merge for readers became its fourth, so the tier was merged instead. Fix: many runs become one first, and
/// that run goes down; an unfinished output does not fill a tier.
#[test]
fn many_runs_become_one_before_the_bottom_is_moved() {
    let mut worker = worker_with_share(10);
    for round in 1..=4 {
        worker.flushed_memtable(round);
    }
    worker.job_steps();
    (5..=7).for_each(|round| worker.flushed_memtable(round));
    assert_eq!((worker.runs(0), worker.all_runs()), (3, 4));
    let version = worker.engine.super_version().version.clone();
    let (_, blocks) = read_triggered(&version, || 0, 10).unwrap();
    let above: u64 = version.level(TreeLevel(0)).map(|run| run.bytes()).sum();
    assert_eq!(blocks, above.div_ceil(4096));
    drop(version);
    // The first check of a tree begins its count.
    worker.job_steps();
    worker.waste(blocks);
    worker.job_steps();
    assert_eq!(worker.all_runs(), 2, "one run above the bottom");
    worker.waste(1 << 14);
    worker.job_steps();
    assert_eq!(worker.all_runs(), 1, "which goes into it");
    worker.check(7);
}

/// Symptom: three runs of an idle store became one above the bottom, which stayed there with its tombstones
/// and old versions. Cause: many runs become one before the bottom is moved, even where there is no bottom.
/// Fix: without a bottom the runs become the bottom.
#[test]
fn runs_above_no_bottom_become_it_for_readers() {
    let mut worker = worker_with_share(10);
    (1..=3).for_each(|round| worker.flushed_memtable(round));
    assert_eq!((worker.runs(0), worker.all_runs()), (3, 3));
    worker.job_steps();
    worker.waste(1 << 14);
    worker.job_steps();
    assert_eq!((worker.runs(0), worker.all_runs()), (0, 1));
    assert!(worker.engine.super_version().version.bottom().is_some());
    worker.check(3);
}

/// Four flushes come during a deep merge: the first tier is merged before the deep merge continues, and both
/// finish.
#[test]
fn a_first_tier_that_fills_up_goes_before_a_deeper_merge() {
    let mut worker = worker();
    let mut round = 0;
    while worker.jobs.last().map(|job| job.urgency) != Some(MergeUrgency::Tier(TreeLevel(1))) {
        if !worker.job_step().unwrap() {
            round += 1;
            worker.flushed_memtable(round);
        }
        assert!(round < 64, "the second tier never filled");
    }
    let deep = worker.runs(1);
    for _ in 0..4 {
        round += 1;
        worker.flushed_memtable(round);
    }
    assert_eq!(worker.runs(0), 4);
    assert!(worker.job_step().unwrap());
    let urgencies = |worker: &MergeWorker| worker.jobs.iter().map(|job| job.urgency).collect::<Vec<_>>();
    let (first, second) = (MergeUrgency::Tier(TreeLevel(0)), MergeUrgency::Tier(TreeLevel(1)));
    assert_eq!(urgencies(&worker), vec![second, first]);
    while worker.jobs.len() == 2 {
        worker.job_step().unwrap();
    }
    assert_eq!((worker.runs(0), urgencies(&worker)), (0, vec![second]));
    assert!(deep >= 4, "the deeper merge had its four runs");
    while worker.job_step().unwrap() {}
    assert_eq!(worker.runs(2), 1, "what the deeper merge wrote is one run");
    assert_eq!(worker.runs(1), 1, "what came in between is one run above it");
    worker.check(round);
}

/// Symptom: a deferred write stayed out of the log for as long as a flush took. Cause: merges check now and
/// then whether deferred writes are due, flushes did not. Fix: both check.
#[test]
fn a_flush_logs_deferred_writes_that_are_due() {
    let engine = worker().engine;
    let put = |i: u64, durability| {
        let (key, value) = (MergeWorker::key(i), Bytes::from_static(b"v"));
        let write = WriteRequest::new(vec![WriteOp::Put { key, value }], durability);
        leader::commit(&engine, write).unwrap();
    };
    (0..3000).for_each(|i| put(i, Durability::Process));
    admission::rotate(&engine, &mut engine.writes.writer.lock()).unwrap();
    put(1, Durability::Deferred);
    engine.writes.writer.lock().make_deferred_due();
    assert!(flusher::flush_all(&engine).unwrap());
    assert_eq!(engine.writes.writer.lock().deferred_since(), None, "still not in the log");
}

/// Symptom: two tables of one run overlapped after a merge for readers, and look-ups found the entries of
/// only one of them. Cause: the number of a new run was read from the manifest, which knows a run once it has
/// a table. So a flush that came before the merge had its first table took the same number. Fix: each number
/// is allocated once.
#[test]
fn a_flush_during_a_merge_for_readers_has_a_run_of_its_own() {
    let mut worker = worker_with_share(0);
    for round in 1..=6 {
        worker.flushed_memtable(round);
        worker.job_steps();
    }
    assert_eq!((worker.runs(0), worker.all_runs()), (2, 3));
    worker.waste(1 << 14);
    let mut job = worker.tidying_job().expect("look-ups paid for it");
    worker.flushed_memtable(7);
    while merge::step_in_reserve(&worker.engine, &mut job).unwrap() {}
    assert_eq!(worker.runs(0), 2, "what was merged, and the flush above it");
    worker.check(7);
}

/// A merge with a large backlog takes the oldest runs first, as many as have a read-ahead window.
#[test]
fn a_merge_takes_twelve_runs_of_a_tier_at_most() {
    let mut worker = worker_with_share(0);
    // The first four become the bottom.
    (1..=4).for_each(|round| worker.flushed_memtable(round));
    worker.job_steps();
    (5..=19).for_each(|round| worker.flushed_memtable(round));
    let version = worker.engine.super_version().version.clone();
    let mut oldest: Vec<u64> = version.level(TreeLevel(0)).map(|run| run.id).collect();
    assert_eq!(oldest.len(), 15);
    oldest.drain(..3);
    let job = pick(&version, || 99, 0, None).unwrap();
    assert_eq!(job.inputs, oldest.iter().map(|id| (TreeLevel(0), *id)).collect::<Vec<_>>());
    drop(version);
    worker.job_steps();
    assert_eq!((worker.runs(0), worker.runs(1)), (3, 1));
    worker.check(19);
}

/// If a merge waits for flushes, or a flush for merges, this test hangs.
#[test]
fn a_flush_and_a_merge_go_on_beside_each_other() {
    let mut worker = worker_with_share(0);
    (1..=4).for_each(|round| worker.flushed_memtable(round));
    let engine = worker.engine.clone();
    {
        let _flush_under_way = engine.compactor.worker_values.lock();
        worker.step().unwrap();
        assert!(worker.job_steps() > 0);
    }
    assert_eq!(worker.runs(0), 0);
    (5..=8).for_each(|round| worker.flushed_memtable(round));
    {
        let _step_under_way = engine.compactor.step.lock();
        worker.flushed_memtable(9);
    }
    worker.job_steps();
    worker.check(9);
}

/// Symptom: a value that was just flushed was freed. Cause: dropping a damaged range counts the live bytes of
/// value objects anew. It read the tables of one moment and the accounts of a later one, with a flush in
/// between. Fix: the accounts are taken first.
#[test]
fn a_flush_during_a_count_of_dead_values_loses_none() {
    let worker = worker();
    let engine = worker.engine.clone();
    let flush = |i: u64| {
        let (key, value) = (MergeWorker::key(i), Bytes::from(vec![i as u8; 5000]));
        let write = WriteRequest::new(vec![WriteOp::Put { key, value }], Durability::Process);
        leader::commit(&engine, write).unwrap();
        admission::rotate(&engine, &mut engine.writes.writer.lock()).unwrap();
        assert!(flusher::flush_all(&engine).unwrap());
    };
    flush(1);
    let objects: HashSet<ObjectId> =
        engine.stored.tree.lock().manifest.state.values.keys().copied().collect();
    assert_eq!(objects.len(), 1);
    let (accounted, view) = (release::accounted(&engine, &objects), engine.super_version());
    flush(2);
    assert!(release::accounted(&engine, &objects).values().sum::<u64>() >= 10_000, "the same object");
    release::recount_in(&engine, &view, objects, &accounted).unwrap();
    drop(view);
    install::free_garbage(&engine).unwrap();
    assert_eq!((worker.get(1), worker.get(2)), (Some(1), Some(2)));
    let state = &engine.stored.tree.lock().manifest.state;
    assert!(state.values.values().all(|value| value.dead.total() == 0));
}
