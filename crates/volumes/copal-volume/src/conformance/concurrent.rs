//! Promises about concurrent calls.

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]

use super::{Random, body, volume};
use crate::error::VolumeError;
use crate::store::{PutOptions, ReadOptions, RemoveMode, VolumeStore};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

const THREADS: u64 = 8;

/// Tells the other threads when this one ends, also after a panic.
struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

pub(super) fn one_winner(store: &dyn VolumeStore) {
    let vid = volume(store, "v");
    for round in 0..12_u64 {
        let name = round.to_be_bytes();
        // Inline bodies, separate bodies and streams take part.
        let size = [100, 6000, 70_000][round as usize % 3];
        let barrier = Barrier::new(THREADS as usize);
        let answers: Vec<_> = thread::scope(|scope| {
            let racers: Vec<_> = (0..THREADS)
                .map(|racer| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        let bytes = body(racer, size);
                        barrier.wait();
                        if racer % 4 == 3 {
                            let options = PutOptions::default();
                            let mut writer = store.writer(vid, &name, &options)?;
                            writer.append(bytes)?;
                            writer.commit()
                        } else {
                            store.put(vid, &name, bytes, &PutOptions::default())
                        }
                    })
                })
                .collect();
            let join = |racer: thread::ScopedJoinHandle<'_, _>| racer.join().expect("no panic");
            racers.into_iter().map(join).collect()
        });
        let winners: Vec<usize> = (0..answers.len()).filter(|&racer| answers[racer].is_ok()).collect();
        assert_eq!(winners.len(), 1, "round {round}: {answers:?}");
        let winner = answers[winners[0]].as_ref().expect("the winner");
        for answer in &answers {
            if let Err(error) = answer {
                assert_eq!(*error, VolumeError::Exists { fid: winner.fid });
            }
        }
        let read = store.get(vid, &name, 0..u64::MAX, &ReadOptions::default());
        assert!(read.expect("get") == body(winners[0] as u64, size), "the file is the winner's");
    }
}

pub(super) fn strict_reads(store: &dyn VolumeStore) {
    const FILES: u64 = 60;
    let vid = volume(store, "v");
    let acknowledged = AtomicU64::new(0);
    let last_time_ms = AtomicU64::new(0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let _done = SetOnDrop(&done);
            for n in 0..FILES {
                let info =
                    store.put(vid, &n.to_be_bytes(), body(n, 500), &PutOptions::default()).expect("put");
                last_time_ms.store(info.created_ms, Ordering::SeqCst);
                acknowledged.store(n + 1, Ordering::SeqCst);
            }
        });
        for reader in 0..3 {
            let (acknowledged, last_time_ms, done) = (&acknowledged, &last_time_ms, &done);
            scope.spawn(move || {
                let mut random = Random::new(reader);
                loop {
                    let last_round = done.load(Ordering::SeqCst);
                    let seen = acknowledged.load(Ordering::SeqCst);
                    if seen > 0 {
                        let n = seen - 1 - random.below(seen.min(3));
                        let read = store.get(vid, &n.to_be_bytes(), 0..u64::MAX, &ReadOptions::STRICT);
                        assert_eq!(read.expect("an acknowledged file"), body(n, 500));
                        let time_ms = last_time_ms.load(Ordering::SeqCst);
                        let listed = store.list(vid, b"", None, 1000, &ReadOptions::STRICT).expect("list");
                        assert!(listed.len() as u64 >= seen, "list misses acknowledged files");
                        let mine = store.put(
                            vid,
                            &[b'r', reader as u8, seen as u8, random.next_u64() as u8],
                            body(0, 3),
                            &PutOptions::default(),
                        );
                        if let Ok(info) = mine {
                            assert!(
                                info.created_ms >= time_ms,
                                "created after an acknowledged file but with an earlier time"
                            );
                        }
                    }
                    if last_round {
                        break;
                    }
                    thread::yield_now();
                }
            });
        }
    });
}

/// One thread creates one file after another and deletes each of them three creates later. The others read
/// its progress, then list: the list must be at least as new as that progress.
pub(super) fn strict_lists(store: &dyn VolumeStore) {
    const FILES: u64 = 60;
    const LIVE: u64 = 3;
    let vid = volume(store, "v");
    let (created, deleted) = (AtomicU64::new(0), AtomicU64::new(0));
    let (delete_begun, done) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let _done = SetOnDrop(&done);
            let mut fids = Vec::new();
            for n in 0..FILES {
                let put = store.put(vid, &n.to_be_bytes(), body(n, 50), &PutOptions::default());
                fids.push(put.expect("put").fid);
                created.store(n + 1, Ordering::SeqCst);
                if let Some(old) = n.checked_sub(LIVE) {
                    delete_begun.store(old + 1, Ordering::SeqCst);
                    store.delete(vid, &old.to_be_bytes(), fids[old as usize]).expect("delete");
                    deleted.store(old + 1, Ordering::SeqCst);
                }
            }
        });
        for _ in 0..3 {
            scope.spawn(|| {
                loop {
                    let last_round = done.load(Ordering::SeqCst);
                    let (gone, there) = (deleted.load(Ordering::SeqCst), created.load(Ordering::SeqCst));
                    let page = store.list(vid, b"", None, 1000, &ReadOptions::STRICT).expect("list");
                    let going = delete_begun.load(Ordering::SeqCst);
                    let shown: Vec<u64> = page
                        .iter()
                        .filter_map(|(name, _)| Some(u64::from_be_bytes(name[..].try_into().ok()?)))
                        .collect();
                    assert_eq!(shown.len(), page.len(), "names that no thread put there");
                    assert!(
                        shown.iter().all(|n| *n >= gone),
                        "{shown:?} shows a file below {gone}, whose delete was acknowledged"
                    );
                    for n in going..there {
                        assert!(shown.contains(&n), "{shown:?} lacks {n}, which was acknowledged");
                    }
                    if last_round {
                        break;
                    }
                    thread::yield_now();
                }
            });
        }
    });
}

pub(super) fn list_under_changes(store: &dyn VolumeStore) {
    const STABLE: u64 = 60;
    let vid = volume(store, "v");
    let name = |n: u64, noise: bool| [&n.to_be_bytes()[..], if noise { b"x" } else { b"" }].concat();
    for n in 0..STABLE {
        store.put(vid, &name(n, false), body(n, 30), &PutOptions::default()).expect("put");
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for writer in 0..2_u64 {
            let stop = &stop;
            scope.spawn(move || {
                let mut random = Random::new(writer);
                while !stop.load(Ordering::SeqCst) {
                    let noisy = name(random.below(STABLE), true);
                    let put = store.put(vid, &noisy, body(writer, 3000), &PutOptions::default());
                    match put {
                        Ok(info) => store.delete(vid, &noisy, info.fid).expect("delete"),
                        Err(VolumeError::Exists { .. }) => {}
                        Err(error) => panic!("put: {error}"),
                    }
                }
            });
        }
        let mut random = Random::new(77);
        let pages = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for _ in 0..30 {
                let limit = 1 + random.below(20) as usize;
                let mut seen: Vec<Vec<u8>> = Vec::new();
                loop {
                    let after = seen.last().map(Vec::as_slice);
                    let page = store.list(vid, b"", after, limit, &ReadOptions::default()).expect("list");
                    if page.is_empty() {
                        break;
                    }
                    assert!(
                        seen.last().is_none_or(|last| **last < *page[0].0),
                        "a page begins above the last one"
                    );
                    seen.extend(page.iter().map(|(name, _)| name.to_vec()));
                }
                assert!(seen.windows(2).all(|w| w[0] < w[1]), "order or duplicates");
                let stable = seen.iter().filter(|name| name.len() == 8).count() as u64;
                assert_eq!(stable, STABLE, "a file present throughout was missed");
            }
        }));
        stop.store(true, Ordering::SeqCst);
        assert!(pages.is_ok(), "list under concurrent changes");
    });
}

pub(super) fn remove_race(store: &dyn VolumeStore) {
    for round in 0..6_u64 {
        let how = if round % 2 == 0 { RemoveMode::WithFiles } else { RemoveMode::IfEmpty };
        let vid = volume(store, "v");
        let barrier = Barrier::new(5);
        let (removed, created) = thread::scope(|scope| {
            let creators: Vec<_> = (0..4_u64)
                .map(|creator| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        barrier.wait();
                        let mut made = 0_u64;
                        for n in 0..6_u64 {
                            let name = [creator as u8, n as u8];
                            match store.put(vid, &name, body(n, 5000), &PutOptions::default()) {
                                Ok(_) => made += 1,
                                Err(VolumeError::VolumeGone) => break,
                                Err(error) => panic!("put: {error}"),
                            }
                        }
                        made
                    })
                })
                .collect();
            let remover = scope.spawn(|| {
                barrier.wait();
                store.remove_volume(vid, how)
            });
            let removed = remover.join().expect("no panic");
            let made = creators.into_iter().map(|c| c.join().expect("no panic"));
            (removed, made.sum::<u64>())
        });
        match removed {
            Ok(()) => {
                assert!(how == RemoveMode::WithFiles || created == 0, "acknowledged files lost");
                assert_eq!(store.volume_stats(vid), Err(VolumeError::VolumeGone));
                assert_eq!(store.open_volume("v"), Err(VolumeError::NotFound));
            }
            Err(VolumeError::NotEmpty) => {
                assert_eq!(how, RemoveMode::IfEmpty);
                assert_eq!(store.volume_stats(vid).expect("stats").files, created);
                store.remove_volume(vid, RemoveMode::WithFiles).expect("remove");
            }
            Err(error) => panic!("remove: {error}"),
        }
    }
}
