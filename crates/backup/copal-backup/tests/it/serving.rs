//! Exported disks of snapshots: random reads return the bytes of a restore, through a bounded cache.

use crate::mortal_store::MortalStore;
use crate::world::*;
use copal_backup::serve::{self, AlwaysOpen, Lender, ServeCache, ServedDisk, Shown};
use copal_backup::*;
use copal_volume::ManualClock;
use std::sync::Arc;

const MIB: usize = 1 << 20;

fn disk_of(repository: &Arc<Repository>, cache: &Arc<ServeCache>, snapshot: SnapshotId) -> Arc<ServedDisk> {
    let lender: Arc<dyn Lender> = Arc::new(AlwaysOpen(Arc::clone(repository)));
    let mut disks = serve::serve(&lender, cache, snapshot).unwrap();
    assert_eq!(disks.len(), 1);
    disks.remove(0)
}

/// A disk with text, noise and holes.
fn mixed(size: usize, seed: u64) -> Disk {
    let mut disk = Disk::new(size);
    let mut random = Random::new(seed);
    for at in (0..size).step_by(MIB / 2) {
        let end = (at + MIB / 2).min(size);
        match random.below(3) {
            0 => {}
            1 => random.text(&mut disk.bytes[at..end]),
            _ => random.fill(&mut disk.bytes[at..end]),
        }
    }
    disk
}

#[test]
fn concurrent_random_reads_return_the_bytes_of_the_disk() {
    let store = embedded_store();
    let disk = mixed(11 * MIB + 12_345, 1);
    let snapshot = back_up(&init(&store), "web", &disk, false).snapshot;
    let repository = Arc::new(open(&store));
    // Space for a third of the disk: new entries evict old ones.
    let cache = Arc::new(ServeCache::new(4 << 20));
    let served = disk_of(&repository, &cache, snapshot);
    assert_eq!(served.size_bytes(), disk.bytes.len() as u64);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (served, disk, cache) = (&served, &disk, &cache);
            scope.spawn(move || {
                let mut random = Random::new(thread);
                let mut at = 0;
                for step in 0..200 {
                    let longest = if random.below(20) == 0 { 3 * MIB } else { 70_000 };
                    let len = 1 + random.index(longest);
                    // Some reads continue, some jump.
                    if random.below(4) == 0 {
                        at = random.index(disk.bytes.len());
                    }
                    let len = len.min(disk.bytes.len() - at);
                    let mut buf = vec![0xee; len];
                    served.read_at(at as u64, &mut buf).unwrap();
                    assert!(buf == disk.bytes[at..at + len], "thread {thread}, step {step}");
                    assert!(cache.kept_bytes() <= 4 << 20);
                    at = (at + len) % disk.bytes.len();
                }
            });
        }
    });
    let mut one = [0];
    assert!(served.read_at(disk.bytes.len() as u64, &mut one).is_err());
    assert!(served.read_at(u64::MAX, &mut one).is_err());
}

#[test]
fn extents_report_holes_and_cover_the_disk() {
    let store = embedded_store();
    let disk = mixed(9 * MIB + 4096, 2);
    let snapshot = back_up(&init(&store), "web", &disk, false).snapshot;
    let repository = Arc::new(open(&store));
    let served = disk_of(&repository, &Arc::new(ServeCache::new(8 << 20)), snapshot);
    let (mut at, mut holes) = (0, 0);
    while at < served.size_bytes() {
        let run = served.extent_at(at).unwrap();
        assert!(run.length > 0 && at + run.length <= served.size_bytes());
        let bytes = &disk.bytes[at as usize..(at + run.length) as usize];
        if run.is_so {
            assert!(bytes.iter().all(|byte| *byte == 0), "a hole with data at {at}");
            holes += run.length;
        }
        at += run.length;
    }
    let zeroes = disk.bytes.chunks(BLOCK).filter(|b| b.iter().all(|x| *x == 0)).count();
    assert_eq!(holes, (zeroes * BLOCK) as u64);
}

#[test]
fn differences_cover_the_changed_bytes_and_little_else() {
    let store = embedded_store();
    let repository = init(&store);
    let mut disk = mixed(12 * MIB, 3);
    let first = back_up(&repository, "web", &disk, false).snapshot;
    let before = disk.bytes.clone();
    let mut random = Random::new(4);
    for _ in 0..6 {
        let mut fresh = vec![0; 5000];
        random.fill(&mut fresh);
        disk.write(random.index(disk.bytes.len() - 5000), &fresh);
    }
    let second = back_up(&repository, "web", &disk, false).snapshot;
    let repository = Arc::new(repository);
    let cache = Arc::new(ServeCache::new(8 << 20));
    let (old, new) = (disk_of(&repository, &cache, first), disk_of(&repository, &cache, second));
    let (mut at, mut told) = (0, 0);
    while at < new.size_bytes() {
        let run = new.difference_at(&old, at).unwrap();
        let range = at as usize..(at + run.length) as usize;
        match run.is_so {
            true => told += run.length,
            false => assert!(before[range.clone()] == disk.bytes[range], "unnoticed at {at}"),
        }
        at += run.length;
    }
    assert!(told > 0 && told < 3 * MIB as u64, "{told}");
    // A disk does not differ from itself.
    assert!(!new.difference_at(&new, 0).unwrap().is_so);
}

#[test]
fn a_damaged_chunk_affects_only_its_range_and_is_reported_once() {
    let store = embedded_store();
    let mut disk = Disk::new(4 * MIB);
    Random::new(5).fill(&mut disk.bytes);
    let snapshot = back_up(&init(&store), "web", &disk, false).snapshot;
    // One byte in the middle of a pack of chunks.
    let damaged = embedded_store();
    let mut hurt = false;
    copy_into(&store, &damaged, |volume, _, body| {
        if !hurt && volume.starts_with("pds-") {
            let middle = body.len() / 2;
            body[middle] ^= 1;
            hurt = true;
        }
        true
    });
    assert!(hurt);
    let repository = Arc::new(open(&damaged));
    let served = disk_of(&repository, &Arc::new(ServeCache::new(8 << 20)), snapshot);
    for _ in 0..2 {
        let mut lost = 0;
        for at in (0..disk.bytes.len()).step_by(BLOCK) {
            let mut buf = [0; BLOCK];
            match served.read_at(at as u64, &mut buf) {
                Ok(()) => assert!(buf == disk.bytes[at..at + BLOCK]),
                Err(error) => {
                    assert!(error.is_corruption(), "{error}");
                    lost += BLOCK;
                }
            }
        }
        assert!((1..=72 << 10).contains(&lost), "{lost}");
    }
    assert!(repository.is_published(snapshot).unwrap());
    repository.forget(&[snapshot]).unwrap();
    assert!(!repository.is_published(snapshot).unwrap());
}

#[test]
fn a_pin_is_seen_by_every_handle_until_it_ends() {
    let store = embedded_store();
    let disk = mixed(2 * MIB, 6);
    let repository = init(&store);
    let first = back_up(&repository, "web", &disk, false).snapshot;
    back_up(&repository, "db", &disk, false);
    let vm = |name: &str| {
        let vms = repository.vms().unwrap();
        vms.iter().find(|vm| vm.name == name).unwrap().uuid
    };
    let other = open(&store);
    assert_eq!(other.pinned().unwrap(), []);
    let shown = [Shown::Snapshot(first), Shown::Vm(vm("db")), Shown::All];
    let mut pins: Vec<_> = shown.iter().map(|shown| repository.pin(*shown).unwrap()).collect();
    let mut seen = other.pinned().unwrap();
    assert_eq!(seen.len(), 3);
    seen.retain(|seen| !shown.contains(seen));
    assert_eq!(seen, []);
    for pin in &mut pins {
        pin.keep(&repository).unwrap();
    }
    for pin in pins {
        pin.end(&repository).unwrap();
    }
    assert_eq!(other.pinned().unwrap(), []);
    // Pins do not disturb the rest of the catalog.
    repository.pin(Shown::All).unwrap();
    assert!(check(&open(&store)).is_clean());
    let snapshots = other.snapshots(Some("web")).unwrap();
    assert!(Shown::Vm(vm("web")).has(&snapshots[0]) && !Shown::Vm(vm("db")).has(&snapshots[0]));
}

/// Symptom: a client whose clock was an hour ahead took all pins for expired, removed them and forgot
/// exported snapshots. Cause: only that clock decided the age of a pin. Fix: the store's stamps decide as
/// well.
#[test]
fn a_clock_that_is_ahead_ends_no_pin() {
    const HOUR_MS: u64 = 3_600_000;
    let clock = Arc::new(ManualClock::new(HOUR_MS));
    let store = embedded_store_at(clock.clone());
    let repository = init(&store);
    let snapshot = back_up(&repository, "web", &mixed(MIB, 7), false).snapshot;
    let shown = Shown::Snapshot(snapshot);
    let _pin = repository.pin(shown).unwrap();
    let fast = Arc::new(MortalStore::ahead(store.clone(), HOUR_MS));
    let fast = Repository::open(fast, IndexHome::Memory, &Unlock::Insecure).unwrap();
    assert_eq!(fast.pinned().unwrap(), [shown]);
    assert_eq!(open(&store).pinned().unwrap(), [shown], "it was not removed");
    // Its export has died, and time passes for all.
    clock.set(2 * HOUR_MS);
    assert_eq!(fast.pinned().unwrap(), []);
    assert!(check(&open(&store)).is_clean());
}
