use super::outbox::{AnswerOutbox, OutboxBounds};
use crate::fleet::messages::AnswerMessage;
use std::{thread, time::Duration};

const BOUNDS: OutboxBounds = OutboxBounds { all_bytes: 300_000, host_bytes: 100_000, patience: HANG };
/// It only ends a test that hangs.
const HANG: Duration = Duration::from_secs(60);

/// Answers of about this number of bytes.
fn answers(batch: u64, bytes: usize) -> AnswerMessage {
    AnswerMessage { job: [1; 16], round: 0, batch, partition: 0, generation: 0, codes: vec![0; bytes / 4] }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[test]
fn waiting_answers_stay_within_bounds_and_arrive_in_order() {
    const MESSAGES: u64 = 400;
    let outbox = AnswerOutbox::new(BOUNDS);
    thread::scope(|scope| {
        for host in 0..5u8 {
            outbox.register([host; 16]);
            let outbox = &outbox;
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    outbox.put([host; 16], answers(number, 10_000));
                    assert!(outbox.bytes() <= BOUNDS.all_bytes, "{} bytes", outbox.bytes());
                }
            });
            scope.spawn(move || {
                let (mut next, mut received) = (0, 0);
                while next < MESSAGES {
                    let take = || runtime().block_on(outbox.take([host; 16], received, HANG)).unwrap();
                    let (page, answers) = take();
                    assert_eq!(take(), (page, answers.clone()), "until it is received");
                    for taken in answers {
                        assert_eq!(taken.batch, next);
                        next += 1;
                    }
                    received = page;
                }
                // Confirmed pages are no longer kept.
                let last = runtime().block_on(outbox.take([host; 16], received, Duration::ZERO));
                assert_eq!(last, Some((received, Vec::new())));
            });
        }
    });
    assert_eq!(outbox.losses(), (0, 0));
    assert_eq!(outbox.bytes(), 0);
}

#[test]
fn answers_longer_than_a_bound_go_alone() {
    let outbox = AnswerOutbox::new(BOUNDS);
    outbox.register([1; 16]);
    outbox.put([1; 16], answers(7, 1 << 20));
    let (page, taken) = runtime().block_on(outbox.take([1; 16], 0, HANG)).unwrap();
    assert_eq!((page, taken.len(), taken[0].batch), (1, 1, 7));
}

#[test]
fn the_asker_with_the_most_bytes_loses_them_when_there_is_no_room() {
    let bounds = OutboxBounds { all_bytes: 200_000, host_bytes: 150_000, patience: Duration::from_millis(1) };
    // Nothing is fetched: everything stays in place.
    let outbox = AnswerOutbox::new(bounds);
    let [a, b, c] = [[1; 16], [2; 16], [3; 16]];
    [a, b, c].into_iter().for_each(|host| outbox.register(host));
    outbox.put(a, answers(0, 120_000));
    outbox.put(b, answers(0, 70_000));
    outbox.put(c, answers(0, 50_000));
    assert_eq!(outbox.losses(), (1, 0), "a has lost them");
    outbox.put(b, answers(1, 90_000));
    assert_eq!(outbox.losses(), (2, 1), "b is itself to blame");
    outbox.put(a, answers(1, 10));
    assert_eq!(outbox.losses(), (2, 2));
    // Each asker learns of it once, and gets later answers.
    for host in [a, b] {
        assert_eq!(runtime().block_on(outbox.take(host, 0, Duration::ZERO)), None);
        outbox.put(host, answers(2, 10));
        let (_, taken) = runtime().block_on(outbox.take(host, 0, Duration::ZERO)).unwrap();
        assert_eq!(taken[0].batch, 2);
    }
}

/// An earlier call may belong to an ended connection: it gets nothing more.
#[test]
fn the_newest_call_gets_the_answers() {
    let outbox = AnswerOutbox::new(BOUNDS);
    let outbox = &outbox;
    let take = || runtime().block_on(outbox.take([1; 16], 0, HANG)).unwrap().1.len();
    thread::scope(|scope| {
        let old = scope.spawn(take);
        thread::park_timeout(Duration::from_millis(100));
        let new = scope.spawn(take);
        thread::park_timeout(Duration::from_millis(100));
        outbox.register([1; 16]);
        outbox.put([1; 16], answers(0, 10));
        assert_eq!((old.join().unwrap(), new.join().unwrap()), (0, 1));
    });
}

/// A peer may claim to have received any page: its own answers still come, each once it was taken.
#[test]
fn any_claimed_page_is_answered() {
    let outbox = AnswerOutbox::new(BOUNDS);
    let take = |received| runtime().block_on(outbox.take([1; 16], received, Duration::ZERO)).unwrap();
    assert_eq!(take(u64::MAX), (u64::MAX, Vec::new()));
    for batch in 0..2 {
        outbox.put([1; 16], answers(batch, 10));
    }
    let (page, taken) = take(u64::MAX);
    assert_eq!((page, taken.len()), (0, 2));
    assert_eq!(take(page), (0, Vec::new()));
    assert_eq!(outbox.bytes(), 0);
}

#[test]
fn the_end_wakes_waiting_threads() {
    let outbox = AnswerOutbox::new(OutboxBounds { host_bytes: 1000, ..BOUNDS });
    thread::scope(|scope| {
        outbox.register([1; 16]);
        outbox.put([1; 16], answers(0, 1000));
        let full = scope.spawn(|| outbox.put([1; 16], answers(1, 1000)));
        let empty = scope.spawn(|| runtime().block_on(outbox.take([2; 16], 0, HANG)));
        outbox.end();
        full.join().unwrap();
        assert_eq!(empty.join().unwrap(), Some((0, Vec::new())));
    });
}
