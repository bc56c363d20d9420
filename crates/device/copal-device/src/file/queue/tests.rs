//! Order of the classes, and blocking of submitters.

use super::*;
use crate::{Completion, IoKind};

fn jobs(class: IoClass, count: usize) -> impl Iterator<Item = IoJob> {
    (0..count).map(move |_| {
        let (completer, completion) = Completion::pair(None);
        drop(completion);
        IoJob { io: Io { at: 0, kind: IoKind::Flush, class }, reply: JobReply::Alone(completer) }
    })
}

fn push(queue: &JobQueue, jobs: impl Iterator<Item = IoJob>) {
    jobs.for_each(|job| queue.push(job));
}

fn take(queue: &JobQueue) -> Option<IoClass> {
    match queue.take() {
        NextJob::Job(job) => {
            let class = job.io.class;
            job.reply.deliver(IoDone { result: Ok(()), buf: None });
            Some(class)
        }
        NextJob::Nothing | NextJob::Closed => None,
    }
}

fn take_all(queue: &JobQueue) -> Vec<IoClass> {
    std::iter::from_fn(|| take(queue)).collect()
}

#[test]
fn commits_go_first_and_background_yields_down_to_a_quarter() {
    let queue = JobQueue::new(8, || {});
    push(&queue, jobs(IoClass::Background, 20));
    push(&queue, jobs(IoClass::Foreground, 20));
    push(&queue, jobs(IoClass::Commit, 2));
    let first = take_all(&queue);
    let count = |class| first.iter().filter(|other| **other == class).count();
    assert_eq!(first[..2], [IoClass::Commit, IoClass::Commit]);
    assert_eq!((first.len(), count(IoClass::Foreground), count(IoClass::Background)), (8, 4, 2));
}

#[test]
fn background_alone_leaves_room_for_a_commit() {
    let queue = JobQueue::new(8, || {});
    push(&queue, jobs(IoClass::Background, 20));
    assert_eq!(take_all(&queue).len(), 6);
    push(&queue, jobs(IoClass::Commit, 1));
    assert_eq!(take(&queue), Some(IoClass::Commit));
    assert_eq!(take(&queue), None, "no more background while a commit runs");
    queue.finished(IoClass::Commit);
    queue.finished(IoClass::Background);
    assert_eq!(take(&queue), Some(IoClass::Background));
}

#[test]
fn a_depth_of_one_still_serves_every_class() {
    let queue = JobQueue::new(1, || {});
    for class in [IoClass::Background, IoClass::Foreground, IoClass::Commit] {
        push(&queue, jobs(class, 1));
        assert_eq!(take(&queue), Some(class));
        queue.finished(class);
    }
}

#[test]
fn a_full_queue_blocks_others_but_not_its_own_engine() {
    let queue = Arc::new(JobQueue::new(4, || {}));
    push(&queue, jobs(IoClass::Foreground, LIMIT));
    let other = Arc::clone(&queue);
    let blocked = std::thread::spawn(move || push(&other, jobs(IoClass::Commit, 10)));
    let engine = Arc::clone(&queue);
    std::thread::spawn(move || {
        crate::completion::enter_delivering_thread();
        push(&engine, jobs(IoClass::Commit, 1));
    })
    .join()
    .unwrap();
    let mut taken = 0;
    while taken < LIMIT + 11 {
        match take(&queue) {
            Some(class) => {
                queue.finished(class);
                taken += 1;
            }
            None => std::thread::yield_now(),
        }
    }
    blocked.join().unwrap();
}

#[test]
fn closing_drains_waiting_jobs_and_then_ends() {
    let woken = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = Arc::clone(&woken);
    let queue = JobQueue::new(4, move || {
        count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    });
    assert!(matches!(queue.take(), NextJob::Nothing));
    push(&queue, jobs(IoClass::Foreground, 2));
    assert_eq!(woken.load(std::sync::atomic::Ordering::Relaxed), 1, "woken once, it was asleep");
    queue.close();
    assert_eq!(take_all(&queue).len(), 2);
    assert!(matches!(queue.take(), NextJob::Nothing), "two still run");
    queue.finished(IoClass::Foreground);
    queue.finished(IoClass::Foreground);
    assert!(matches!(queue.take(), NextJob::Closed));
    assert!(queue.take_blocking().is_none());
}
