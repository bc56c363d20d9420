use super::*;
use crate::format::VolumeState;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

/// Rows of volumes that a test sets.
#[derive(Default)]
struct Rows {
    quota_bytes: Option<u64>,
    used_bytes: u64,
    gone: AtomicBool,
    loads: AtomicU64,
}

impl VolumeLoader for Rows {
    fn row(&self, _vid: VolumeId) -> Result<Option<VolumeRow>, VolumeError> {
        self.loads.fetch_add(1, Ordering::SeqCst);
        let row = VolumeRow {
            state: VolumeState::Live,
            parent: VolumeId::ROOT,
            name: "v".to_owned(),
            created_ms: 0,
            quota_bytes: self.quota_bytes,
            spare_copies: false,
        };
        Ok((!self.gone.load(Ordering::SeqCst)).then_some(row))
    }
    fn used_bytes(&self, _vid: VolumeId) -> Result<u64, VolumeError> {
        Ok(self.used_bytes)
    }
}

const VID: VolumeId = VolumeId(1);

#[test]
fn a_name_is_held_by_one_at_a_time() {
    let locks = NameLocks::default();
    let holders = AtomicU64::new(0);
    thread::scope(|scope| {
        for n in 0..8_u8 {
            let (locks, holders) = (&locks, &holders);
            scope.spawn(move || {
                for round in 0..200_u8 {
                    // Different sets in different orders, one name in common, one twice.
                    let keys = [vec![n, round], b"common".to_vec(), vec![round], vec![round]];
                    let reserved = locks.reserve(keys.to_vec());
                    assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0);
                    holders.fetch_sub(1, Ordering::SeqCst);
                    drop(reserved);
                }
            });
        }
    });
    assert!(locks.state.lock().names.is_empty());
}

#[test]
fn an_exclusively_locked_volume_has_no_operation_inside() {
    let (locks, rows) = (NameLocks::default(), Rows::default());
    let inside = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            let (locks, rows, inside) = (&locks, &rows, &inside);
            scope.spawn(move || {
                for _ in 0..300 {
                    let guard = locks.enter(VID, rows).expect("the volume is there");
                    inside.fetch_add(1, Ordering::SeqCst);
                    thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
        for _ in 0..2 {
            let (locks, rows, inside) = (&locks, &rows, &inside);
            scope.spawn(move || {
                for _ in 0..100 {
                    let closed = locks.close(VID, rows).expect("the volume is there");
                    assert_eq!(inside.load(Ordering::SeqCst), 0);
                    drop(closed);
                }
            });
        }
    });
    assert_eq!(rows.loads.load(Ordering::SeqCst), 1, "the row is remembered");
}

#[test]
fn a_waiter_for_a_removed_volume_does_not_find_it() {
    let (locks, rows) = (NameLocks::default(), Rows::default());
    let closed = locks.close(VID, &rows).expect("the volume is there");
    assert!(!locks.remembers(VID), "reads must ask the engine now");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| locks.enter(VID, &rows).map(drop));
        rows.gone.store(true, Ordering::SeqCst);
        closed.removed();
        let answer = waiting.join().expect("no panic");
        assert_eq!(answer, Err(VolumeError::VolumeGone));
    });
    assert_eq!(locks.close(VID, &rows).map(drop), Err(VolumeError::VolumeGone));
}

#[test]
fn quotas_are_taken_and_given_back() {
    let locks = NameLocks::default();
    let rows = Rows { quota_bytes: Some(100), used_bytes: 40, ..Rows::default() };
    let inside = locks.enter(VID, &rows).expect("the volume is there");
    assert_eq!(inside.would_fit(60), Ok(()));
    assert_eq!(inside.take(50), Ok(()));
    let refused = VolumeError::QuotaExceeded { quota: 100, used: 90, wanted: 11 };
    assert_eq!(inside.would_fit(11), Err(refused.clone()));
    assert_eq!(inside.take(11), Err(refused));
    inside.give_back(1);
    assert_eq!(inside.take(11), Ok(()));
    assert!(inside.take(u64::MAX).is_err(), "no overflow");
}

#[test]
fn idle_volumes_are_forgotten_and_found_again() {
    let (locks, rows) = (NameLocks::default(), Rows::default());
    let held = locks.enter(VID, &rows).expect("the volume is there");
    for vid in 2..2 * REMEMBERED_VOLUMES as u64 {
        drop(locks.enter(VolumeId(vid), &rows).expect("there"));
        assert!(locks.state.lock().volumes.len() <= REMEMBERED_VOLUMES);
    }
    assert!(locks.remembers(VID), "a thread holds the lock");
    drop(held);
    drop(locks.enter(VolumeId(2), &rows).expect("found again"));
}
