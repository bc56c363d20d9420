//! A full disk of a data server: it is not broken, it starts, enters views and closes, and what is deleted
//! comes back.

use crate::{
    members::{GROUP, NOW, boot_member, create, delete, fid, name, vid},
    stack::{MIB, blank, body},
};
use copal_data::{MemberStore, NotHeld, Told};
use copal_volume::{
    VolumeError,
    group::{Answer, Bucket, Epoch, Role, Term},
};
use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

/// Eight writers create files of `len` bytes until each of them is refused; the numbers of those that are
/// held.
fn fill(store: &MemberStore, epoch: Epoch, next: &AtomicU64, len: usize) -> Vec<u64> {
    let writer = || {
        let mut held = Vec::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            match store.apply(GROUP, epoch, create(number, len)).expect("it is served") {
                Ok(_) => held.push(number),
                Err(NotHeld::Refused(Answer::NoSpace) | NotHeld::Failed(VolumeError::NoSpace)) => {
                    return held;
                }
                Err(other) => panic!("a full disk says so, not {other:?}"),
            }
        }
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..8).map(|_| scope.spawn(writer)).collect();
        let held = writers.into_iter().flat_map(|writer| writer.join().expect("a writer"));
        held.collect()
    })
}

/// Everything that a server does of itself, on a disk that is full.
fn goes_on(store: &MemberStore, epoch: Epoch) -> Epoch {
    let next = Epoch(epoch.0 + 1);
    assert_eq!(store.hear(Term(epoch.0)), Ok(true));
    store.enter_view(GROUP, next, Role::Normal).expect("a view");
    store.close_due(&Default::default()).expect("closing");
    store.raise_horizon(GROUP, Bucket(1)).expect("a horizon");
    let quota = Told::Live { quota_bytes: Some(1 << 40) };
    store.tell_volume(vid(), quota).expect("a quota");
    // A burial of what never came adds rows and frees nothing.
    let buried = store.apply(GROUP, next, delete(u64::MAX)).expect("it is served");
    assert_eq!(buried, Ok(Role::Normal));
    assert_eq!(store.failure(), None);
    next
}

/// Symptom: a disk that had been filled counted as failed, its server did not start any more, and what was
/// deleted did not come back: after a restart of three full servers all their data was away.
/// Cause: rows of views, boots, volumes and closing were puts like any other, and their refusal for lack of
/// space was taken for a failed write; nothing was merged before the tree wanted it; a create that did not
/// fit took deletes of its batch along.
/// Fix: these rows use what is kept back; a refusal is no failure; a full store frees what it can; operations
/// that have no room together are tried apart.
#[test]
fn a_full_disk_starts_goes_on_and_gives_back_what_is_deleted() {
    for len in [20_000, 1_000_000] {
        let device = blank(80 * MIB);
        let next = AtomicU64::new(1);
        let mut kept: Vec<u64> = Vec::new();
        let mut most = 0;
        for round in 0..3 {
            let (store, epoch) = boot_member(&device);
            let until = Instant::now() + Duration::from_secs(60);
            // A frame of the log lies in one piece: where a file of a mebibyte was, another may not fit.
            while kept.len() < most * 3 / 4 || kept.is_empty() || most == 0 {
                let held = fill(&store, epoch, &next, len);
                kept.extend(held);
                most = most.max(kept.len());
                assert!(
                    Instant::now() < until,
                    "round {round}: {} files of {len} bytes fit where {most} did: {:?} {:?}",
                    kept.len(),
                    store.kv().objects().space(),
                    store.kv().stats()
                );
            }
            // Later rounds free beside the last refusals.
            assert!(round > 0 || store.room_bytes() < 16 * MIB);
            let epoch = goes_on(&store, epoch);
            let (gone, left): (Vec<_>, Vec<_>) = kept.iter().partition(|number| *number % 2 == 0);
            for number in gone {
                let deleted = store.apply(GROUP, epoch, delete(number)).expect("it is served");
                assert_eq!(deleted, Ok(Role::Normal));
            }
            kept = left;
            for &number in kept.iter().step_by(13) {
                let (bytes, info) = store.get(vid(), &name(number), 0..u64::MAX, None).expect("a file");
                assert!(bytes == body(number, len) && info.fid == fid(number));
            }
            assert_eq!(store.failure(), None);
            match round {
                0 => store.close().expect("close"),
                _ => drop(store),
            }
        }
    }
}

/// Symptom: a batch of operations was refused as a whole where one of them had no room, deletes among them.
/// Cause: they are one write. Fix: what adds no file is done first, each of the others alone.
#[test]
fn a_delete_beside_a_create_that_does_not_fit_is_done() {
    let (store, epoch) = boot_member(&blank(64 * MIB));
    let next = AtomicU64::new(1);
    let held = fill(&store, epoch, &next, 1_000_000);
    let (told, replies) = std::sync::mpsc::channel();
    let hand_in = |what: &'static str, operation| {
        let told = told.clone();
        let tell = move |reply| drop(told.send((what, reply)));
        store.submit(GROUP, epoch, operation, tell).expect("it is handed in")
    };
    // They wait for whoever serves the queue, and are one batch.
    let work = hand_in("create", create(NOW, 4_000_000));
    for &number in &held[..3] {
        assert!(hand_in("delete", delete(number)).is_none());
    }
    work.expect("the first one serves").run();
    let mut replies: Vec<_> = replies.try_iter().collect();
    replies.sort_by_key(|(what, _)| *what);
    let (what, refused) = replies.remove(0);
    assert_eq!((what, replies.len()), ("create", 3));
    assert!(
        matches!(refused, Err(NotHeld::Failed(VolumeError::NoSpace) | NotHeld::Refused(Answer::NoSpace))),
        "{refused:?}"
    );
    assert!(replies.iter().all(|(_, reply)| *reply == Ok(Role::Normal)), "{replies:?}");
}

/// Symptom: the mark above which a disk takes no files was looked at once a second, and a burst of creates
/// ran far past it.
/// Cause: the heartbeat set a flag. Fix: each create is measured where it is applied, its neighbours in the
/// batch included.
#[test]
fn the_mark_is_looked_at_where_a_create_is_applied() {
    let (store, epoch) = boot_member(&blank(64 * MIB));
    store.watch_room(|| (900_000, 1_000_000));
    let (told, replies) = std::sync::mpsc::channel();
    let mut work = None;
    for number in 1..=10 {
        let told = told.clone();
        let tell = move |reply: copal_data::Reply| assert!(told.send(reply.is_ok()).is_ok());
        let served = store.submit(GROUP, epoch, create(number, 10_000), tell).expect("handed in");
        work = work.or(served);
    }
    work.expect("the first one serves").run();
    let held = replies.try_iter().filter(|is_held| *is_held).count();
    assert_eq!(held, 4, "of 50,000 bytes below the mark");
}
