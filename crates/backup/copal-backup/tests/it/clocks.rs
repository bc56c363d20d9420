//! Backups with a wrong clock.

use crate::world::*;
use copal_backup::retention::Misdated;
use copal_backup::*;
use copal_volume::ManualClock;
use std::sync::Arc;

const DAY: u64 = 86_400_000;
const START: u64 = 1_790_000_000_000;

/// Symptom: after one backup with the clock ahead, every later snapshot of every VM had that day. Cause: a
/// snapshot's time was that of the store's order of events, which never goes back. Fix: the record that
/// publishes a snapshot holds the time of the clock.
#[test]
fn a_clock_that_was_ahead_once_dates_no_later_snapshot() {
    let clock = Arc::new(ManualClock::new(START));
    let store = embedded_store_at(clock.clone());
    let repository = Repository::init(Arc::new(store.clone()), IndexHome::Memory, &insecure()).unwrap();
    let mut disk = Disk::new(1 << 20);
    let mut made = Vec::new();
    for day in 0..6u64 {
        clock.set(START + day * DAY + if day == 2 { 7000 * DAY } else { 0 });
        disk.write(0, &[day as u8 + 1; 4096]);
        made.push(back_up(&repository, "web", &disk, true));
        disk.changed.clear();
    }
    let repository = open(&store);
    let listed = repository.snapshots(Some("web")).unwrap();
    let order: Vec<_> = made.iter().map(|summary| summary.snapshot).collect();
    let found: Vec<_> = listed.iter().map(|snapshot| snapshot.id).collect();
    assert_eq!(found, order, "listed as they were made");
    for (day, snapshot) in listed.iter().enumerate() {
        let expected = (day == 2).then_some(Misdated::Ahead);
        assert_eq!(snapshot.misdated, expected, "day {day}");
        assert!(day == 2 || snapshot.created_ms == START + day as u64 * DAY, "day {day}");
    }
    // The error cannot be detected while the clock is wrong, and all of it once the clock is right.
    let told: Vec<u64> = made.iter().map(|summary| summary.misdated).collect();
    assert_eq!(told, [0, 0, 0, 1, 1, 1]);
    assert_eq!(check(&repository).misdated, [(order[2], Misdated::Ahead)]);
    // The backup that was made last is the latest, even if an older one has a later time.
    assert_eq!(repository.resolve("latest", Some("web")).unwrap().id, order[5]);
    clock.set(START - DAY);
    disk.write(0, &[9; 4096]);
    let behind = back_up(&repository, "web", &disk, false).snapshot;
    clock.set(START + 6 * DAY);
    assert_eq!(repository.resolve("latest", Some("web")).unwrap().id, behind);
    let last = repository.snapshots(None).unwrap().pop().unwrap();
    assert_eq!((last.id, last.misdated), (behind, Some(Misdated::Behind)));
}

/// A hold that has ended only by a clock that jumped stays in force until an operator confirms the clock.
#[test]
fn a_clock_that_jumped_ends_no_hold() {
    let clock = Arc::new(ManualClock::new(START));
    let store = embedded_store_at(clock.clone());
    let repository = Repository::init(Arc::new(store.clone()), IndexHome::Memory, &insecure()).unwrap();
    let disk = Disk::new(1 << 20);
    let held = back_up(&repository, "web", &disk, false).snapshot;
    let free = back_up(&repository, "web", &disk, false).snapshot;
    repository.hold(&[held], START + 60 * DAY).unwrap();
    clock.set(START + 40 * DAY);
    assert_eq!(repository.forget(&[held]).unwrap_err().exit_code(), 21);
    clock.set(START + 61 * DAY);
    let denied = repository.forget(&[held]).unwrap_err();
    assert_eq!(denied.exit_code(), 21);
    let sentence = denied.to_string();
    for part in ["2026-09-21", "2026-11-21", "--accept-clock"] {
        assert!(sentence.contains(part), "{sentence}");
    }
    // A snapshot that was never held can be forgotten by its id.
    repository.forget(&[free]).unwrap();
    let options = ForgetOptions { accept_clock: true };
    repository.forget_with(&[held], &options).unwrap();
    assert!(repository.snapshots(None).unwrap().is_empty());
}
