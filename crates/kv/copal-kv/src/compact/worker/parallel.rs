//! Merges on several threads, on the real object layer.

use super::{tests::worker_with, *};
use crate::{
    Durability, Options,
    compact::{install, parallel_merge},
    write::commit::{WriteOp, WriteRequest, leader},
};
use bytes::Bytes;
use copal_testkit::Random;

const KEYS: u64 = 3000;

fn threads(merge_threads: u32) -> Options {
    Options {
        memory_bytes: 64 << 20,
        table_bytes: 32 << 10,
        merge_threads,
        bottom_share: 10,
        ..Options::default()
    }
}

/// A bottom and two overlapping runs above it. A third of the keys is deleted again.
fn loaded(options: Options) -> MergeWorker {
    let mut worker = worker_with(options);
    let mut random = Random::new(1);
    let value = |round: u8, len| Bytes::from(vec![round; len]);
    for round in 0..3 {
        let ops: Vec<WriteOp> = (0..KEYS)
            .map(|i| {
                let key = MergeWorker::key(i);
                let len = 100 + random.below(300) as usize;
                if round > 0 && i % 3 == 0 {
                    WriteOp::Delete { key }
                } else {
                    WriteOp::Put { key, value: value(round, len) }
                }
            })
            .collect();
        for op in ops {
            leader::commit(&worker.engine, WriteRequest::new(vec![op], Durability::Process)).unwrap();
        }
        worker.flush();
        if round == 0 {
            let mut job = everything(&worker);
            while merge::step_in_reserve(&worker.engine, &mut job).unwrap() {}
        }
    }
    worker
}

fn everything(worker: &MergeWorker) -> MergeJob {
    to_bottom(&worker.engine.super_version().version, KeyRange::all(), HashSet::new())
}

/// The entries of the tree, in tables that are disjoint.
fn check(worker: &MergeWorker) {
    let version = worker.engine.super_version().version.clone();
    assert_eq!((version.runs.len(), worker.entries()), (1, KEYS / 3 * 2));
    let slices = &version.runs[0].slices;
    assert!(slices.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start));
    assert!(slices.iter().all(|slice| slice.is_whole()));
    worker.walk_all(false, KEYS / 3 * 2);
    for i in 0..KEYS {
        assert_eq!(worker.get(i), (i % 3 > 0).then_some(2), "key {i}");
    }
}

/// The tables of the runs above straddle the ranges of the threads, so threads take parts out of the same
/// table. With records made before the commit, a part that another thread had taken came back.
#[test]
fn four_threads_leave_the_tree_that_one_thread_leaves() {
    for (count, times) in [(1, 1), (2, 4), (4, 20)] {
        for _ in 0..times {
            let worker = loaded(threads(count));
            let mut job = everything(&worker);
            assert!(merge::step_in_reserve(&worker.engine, &mut job).unwrap());
            assert_eq!(job.ranges.len(), count as usize, "ranges of the job");
            while merge::step_in_reserve(&worker.engine, &mut job).unwrap() {}
            check(&worker);
        }
    }
}

/// The worker prefers a full tier to a merge in progress, and continues each of its ranges afterwards.
#[test]
fn a_merge_of_several_ranges_continues_after_a_more_urgent_one() {
    let mut worker = loaded(threads(4));
    let job = everything(&worker);
    worker.jobs.push(job);
    worker.job_step().unwrap();
    assert_eq!(worker.jobs[0].ranges.len(), 4);
    for _ in 0..4 {
        worker.flush_all_of(0..10, |i| WriteOp::Delete { key: MergeWorker::key(3 * i) });
    }
    worker.job_step().unwrap();
    assert_eq!(worker.jobs.len(), 2, "the full tier goes first");
    worker.job_steps();
    let mut job = everything(&worker);
    while merge::step_in_reserve(&worker.engine, &mut job).unwrap() {}
    check(&worker);
}

/// Little memory, a full store and a store without threads merge on one thread, and no more take part than
/// have useful windows.
#[test]
fn the_number_of_threads_follows_from_memory_space_and_options() {
    let count = |options: Options, inputs| parallel_merge::threads(&worker_with(options).engine, inputs);
    assert_eq!(count(threads(16), 2), 4, "outputs of 512 KiB in a quarter of 8 MiB");
    assert_eq!(count(threads(16), 12), 2, "windows of 64 KiB in three eighths of 8 MiB");
    assert_eq!(count(threads(3), 2), 3);
    assert_eq!(count(Options { memory_bytes: 4 << 20, ..threads(16) }, 2), 1);
    assert_eq!(count(Options { threads: false, ..threads(16) }, 2), 1);
    let worker = worker_with(threads(16));
    worker.engine.writes.pressure.begin();
    assert_eq!(parallel_merge::threads(&worker.engine, 2), 1);
}

/// A merge that ended half-way leaves gaps in its output run. The rest goes into a run of its own: its tables
/// may reach from one gap into the next.
#[test]
fn the_rest_of_an_interrupted_merge_is_a_run_of_its_own() {
    let mut worker = worker_with(Options { bottom_share: 0, ..threads(4) });
    for round in 0..5u8 {
        let value = Bytes::from(vec![round; 300]);
        worker.flush_all_of(0..KEYS, |i| WriteOp::Put { key: MergeWorker::key(i), value: value.clone() });
        if round == 0 {
            let mut bottom = everything(&worker);
            while merge::step_in_reserve(&worker.engine, &mut bottom).unwrap() {}
        }
    }
    assert!(worker.job_step().unwrap());
    assert!(worker.jobs[0].ranges.len() > 1);
    worker.jobs.clear();
    worker.job_steps();
    install::free_garbage(&worker.engine).unwrap();
    let version = worker.engine.super_version().version.clone();
    assert_eq!((version.runs.len(), worker.entries()), (3, 2 * KEYS), "a bottom and two runs above it");
    for i in 0..KEYS {
        assert_eq!(worker.get(i), Some(4), "key {i}");
    }
}
