//! What the worker does by itself where no tier is full: tables that are mostly deletions, value objects that are partly
//! dead.

use super::{tests::worker, *};
use crate::{
    Durability,
    commit::{Write, WriteOp},
};
use bytes::Bytes;

impl Worker {
    fn flush(&mut self) {
        let engine = self.engine.clone();
        engine.rotate(&mut engine.writer.lock()).unwrap();
        assert!(engine.flush_all().unwrap());
    }

    /// Commits one operation for each number and flushes them.
    fn flush_all_of(&mut self, numbers: impl Iterator<Item = u64>, op: impl Fn(u64) -> WriteOp) {
        for i in numbers {
            let write = Write::new(vec![op(i)], Durability::Process);
            self.engine.commit(write).unwrap();
        }
        self.flush();
    }

    fn entries(&self) -> u64 {
        let version = self.engine.view().version.clone();
        let slices = version.runs.iter().flat_map(|run| &run.slices);
        slices.map(|slice| slice.table.meta.entries).sum()
    }
}

fn put(i: u64, len: usize) -> WriteOp {
    WriteOp::Put {
        key: Worker::key(i),
        value: Bytes::from(vec![i as u8; len]),
    }
}

fn delete(i: u64) -> WriteOp {
    WriteOp::Delete { key: Worker::key(i) }
}

/// Design: kv.md §10, tombstone density > 1/2
#[test]
fn a_table_of_deletions_is_merged_away_without_a_full_tier() {
    let mut worker = worker();
    worker.flush_all_of(0..3000, |i| put(i, 100));
    // Too few to be worth it.
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

/// Symptom: a store in which nothing was written any more kept the space of values that were deleted, up to an object of
/// them, until somebody asked for a merge. Cause: deletions that lie scattered leave pages which dead values share with
/// living ones, so the object has to be rewritten, and one that flushes still appended to was not.
/// Fix: such an object takes no more values once so much of it is dead and nothing was written between two looks.
/// Design: kv.md §10, stale values > 1/4
#[test]
fn a_value_object_that_is_mostly_dead_is_rewritten_without_being_asked() {
    const LEN: usize = 4200;
    let mut worker = worker();
    let live = |worker: &Worker| worker.engine.objects.space().live_bytes;
    for from in (0..2400).step_by(100) {
        worker.flush_all_of(from..from + 100, |i| put(i, LEN));
        worker.job_steps();
    }
    let all = live(&worker);
    worker.flush_all_of((0..2400).filter(|i| i % 2 == 1), delete);
    assert!(worker.rewritten.is_empty());
    // The deletions meet what they delete, and the values are found dead. Something was just written: more may die.
    worker.job_steps();
    assert!(worker.rewritten.is_empty() && worker.may_rewrite);
    assert_eq!(worker.timeout(), Some(LOOK));
    worker.engine.free_garbage().unwrap();
    worker.swept = None;
    while worker.step().unwrap() {}
    assert!(!worker.rewritten.is_empty());
    assert_eq!(worker.entries(), 1200);
    let freed = all - live(&worker);
    assert!(
        freed > 1000 * LEN as u64,
        "{freed} of 5,040,000 dead bytes are free"
    );
    for i in 0..2400 {
        assert_eq!(worker.get(i), (i % 2 == 0).then_some(u64::from(i as u8)));
    }
}
