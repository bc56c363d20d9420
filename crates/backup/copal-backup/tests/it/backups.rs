//! Backup and restore of disks, sharing of chunks, and the bytes that are read for it.

use crate::world::*;
use copal_backup::*;
use copal_disk::source::{ChangeKind, ChangedExtent, ChangedExtents};

fn random_disk(seed: u64, size: usize) -> Disk {
    let mut dice = Random::new(seed);
    let mut disk = Disk::new(size);
    for _ in 0..12 {
        let at = dice.below(size as u64) as usize;
        let mut data = vec![0; dice.below(700_000) as usize];
        if dice.below(2) == 0 {
            dice.fill(&mut data)
        } else {
            dice.text(&mut data)
        }
        disk.write(at, &data);
    }
    disk.changed.clear();
    disk
}

fn mutate(disk: &mut Disk, dice: &mut Random) {
    for _ in 0..dice.below(10) + 1 {
        let at = dice.below(disk.bytes.len() as u64) as usize;
        let mut data = vec![0; dice.below(90_000) as usize + 1];
        match dice.below(4) {
            0 => disk.discard(at, data.len()),
            1 => {
                let from = dice.below((disk.bytes.len() - data.len()) as u64) as usize / BLOCK * BLOCK;
                let length = data.len();
                data.copy_from_slice(&disk.bytes[from..][..length]);
                disk.write(at / BLOCK * BLOCK, &data);
            }
            2 => {
                dice.text(&mut data);
                disk.write(at, &data);
            }
            _ => {
                dice.fill(&mut data);
                disk.write(at, &data);
            }
        }
    }
}

#[test]
fn a_restored_disk_equals_the_source_byte_for_byte_with_its_holes() {
    let store = embedded_store();
    let repository = init(&store);
    let disk = random_disk(1, 9_000_001);
    let summary = back_up(&repository, "web", &disk, false);
    assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
    assert_eq!(summary.counts.logical_bytes, disk.bytes.len() as u64);
    assert_eq!(summary.disks[0].mode, DiskMode::Full);
    let listing = repository.ls(summary.snapshot).unwrap();
    assert_eq!(listing[0].data_bytes, summary.counts.data_bytes);
    assert_eq!(listing[0].data_bytes + listing[0].hole_bytes, disk.bytes.len() as u64);

    let target = MemoryTarget::ordered();
    repository.restore(&RestoreRequest::new(summary.snapshot), &target, &Silent, &CancelFlag::new()).unwrap();
    assert_eq!(target.bytes(), disk.bytes);
    assert_eq!(*target.written.lock().unwrap(), listing[0].data_bytes, "holes are not written");
    assert!(check(&repository).is_clean());
    let verified = repository.verify(summary.snapshot, &Silent, &CancelFlag::new()).unwrap();
    assert!(verified.is_clean());
    assert_eq!(verified.decoded_frames, listing[0].chunks);
}

#[test]
fn changed_extents_rescan_and_full_make_the_same_snapshot() {
    let store = embedded_store();
    let repository = init(&store);
    let mut dice = Random::new(7);
    let mut disk = random_disk(2, 11_000_000);
    back_up(&repository, "web", &disk, false);
    for round in 0..8 {
        mutate(&mut disk, &mut dice);
        disk.reports_holes = round % 2 == 0;
        let incremental = back_up(&repository, "web", &disk, true);
        assert_eq!(incremental.disks[0].mode, DiskMode::Incremental, "{}", incremental.disks[0].reason);
        let rescan = back_up(&repository, "web", &disk, false);
        assert_eq!(rescan.disks[0].mode, DiskMode::Rescan);
        assert_eq!(restore(&repository, incremental.snapshot), disk.bytes);
        assert_eq!(rescan.counts.new_bytes, 0, "the rescan finds nothing new");
        assert_eq!(rescan.counts.data_bytes, incremental.counts.data_bytes);
        // A rescan without changes writes no recipe: the tree is shared up to its root.
        let packs = repository.stats().unwrap().recipe_pack_bytes;
        let again = back_up(&repository, "web", &disk, false);
        assert_eq!(repository.stats().unwrap().recipe_pack_bytes, packs);
        assert_eq!(again.counts.cross_dup_bytes, 0);
        disk.changed.clear();
    }
    assert!(check(&repository).is_clean());
}

#[test]
fn only_changed_blocks_are_read() {
    let repository = init(&embedded_store());
    let mut dice = Random::new(3);
    let mut disk = Disk::new(32 << 20);
    dice.fill(&mut disk.bytes);
    back_up(&repository, "web", &disk, false);
    // One large run, and random pages at the granularity of a dirty bitmap.
    let mut data = vec![0; 3 << 20];
    dice.fill(&mut data);
    disk.write(5 << 20, &data);
    let summary = back_up(&repository, "web", &disk, true);
    assert_eq!(summary.counts.dirty_bytes, 3 << 20);
    assert!(
        summary.counts.read_bytes * 10 <= summary.counts.dirty_bytes * 13,
        "{}",
        summary.counts.read_bytes
    );
    assert!(summary.counts.clean_segments >= 14);
    disk.changed.clear();
    for _ in 0..60 {
        // A database page of 8 KiB, seen through a bitmap of 64 KiB.
        let granule = dice.below(512) * (64 << 10);
        let at = (granule + dice.below(8) * 8192) as usize;
        dice.fill(&mut disk.bytes[at..at + 8192]);
        disk.changed.push(ChangedExtent { offset: granule, length: 64 << 10, kind: ChangeKind::Dirty });
    }
    let summary = back_up(&repository, "web", &disk, true);
    let (read, dirty) = (summary.counts.read_bytes, summary.counts.dirty_bytes);
    // The worst case: no two pages share a granule or a neighbourhood, and there is no hole around them.
    assert!(read * 10 <= dirty * 15, "{read} read for {dirty} dirty");
    assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
}

/// Symptom: on a day with changes in a few segments, a backup with changed extents read more than 1.3 times
/// the changed bytes. Cause: a segment with more than half of its blocks changed was read whole, up to twice
/// the changed bytes. Fix: only a segment with hardly any clean block is read whole.
#[test]
fn a_segment_that_mostly_changed_is_not_read_in_full() {
    const RUN: usize = 64 << 10;
    for changed in [17, 20, 24, 28] {
        let repository = init(&embedded_store());
        let mut disk = Disk::new(8 << 20);
        let mut dice = Random::new(14);
        dice.fill(&mut disk.bytes);
        back_up(&repository, "web", &disk, false);
        // The first of the 32 runs of each segment, in one piece.
        let mut data = vec![0; changed * RUN];
        for segment in 0..4 {
            dice.fill(&mut data);
            disk.write((segment << 21) + RUN, &data);
        }
        let summary = back_up(&repository, "web", &disk, true);
        let (read, dirty) = (summary.counts.read_bytes, summary.counts.dirty_bytes);
        assert!(read * 10 <= dirty * 13, "{read} read, {dirty} dirty");
        assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
    }
}

#[test]
fn equal_data_is_stored_once_within_a_vm_and_across_vms() {
    let repository = init(&embedded_store());
    let disk = random_disk(4, 8 << 20);
    let first = back_up(&repository, "a", &disk, false);
    let second = back_up(&repository, "b", &disk, false);
    assert_eq!(second.counts.new_bytes, 0);
    assert_eq!(second.counts.cross_dup_bytes, first.counts.data_bytes);
    assert!(second.counts.stored_bytes * 20 < first.counts.stored_bytes);
    let mut twice = Disk::new(8 << 20);
    let mut dice = Random::new(99);
    let mut data = vec![0; 2 << 20];
    dice.fill(&mut data);
    twice.write(0, &data);
    twice.write(4 << 20, &data);
    let inner = back_up(&repository, "c", &twice, false);
    assert_eq!(inner.counts.new_bytes, 2 << 20);
    assert_eq!(inner.counts.inner_dup_bytes, 2 << 20);
    assert_eq!(restore(&repository, inner.snapshot), twice.bytes);
    assert_eq!(restore(&repository, second.snapshot), disk.bytes);
}

/// Symptom: the very first snapshot of a repository reported bytes shared with another VM. Cause: a chunk of
/// this backup counted as its own only until its pack was in the index. Fix: the backup remembers its
/// finished packs; a chunk in one of them is its own too.
#[test]
fn a_chunk_that_a_backup_stored_itself_is_no_duplicate_of_another_vm() {
    const PACK: usize = 16 << 20;
    let repository = init(&embedded_store());
    let mut disk = Disk::new(PACK * 3);
    let mut data = vec![0; 2 << 20];
    let mut dice = Random::new(21);
    dice.fill(&mut disk.bytes);
    dice.fill(&mut data);
    // The same data again at the end, long after the pack of the beginning is finished.
    disk.write(0, &data);
    disk.write(PACK * 3 - data.len(), &data);
    let first = back_up(&repository, "a", &disk, false);
    assert_eq!(first.counts.cross_dup_bytes, 0);
    assert_eq!(first.counts.inner_dup_bytes, data.len() as u64);
    assert_eq!(restore(&repository, first.snapshot), disk.bytes);
    // For another VM they belong to another VM.
    let second = back_up(&repository, "b", &disk, false);
    assert_eq!(second.counts.cross_dup_bytes, second.counts.data_bytes);
}

#[test]
fn every_profile_works() {
    for profile in ChunkProfile::ALL {
        let store = std::sync::Arc::new(embedded_store());
        let options = InitOptions { profile, ..insecure() };
        let repository = Repository::init(store, IndexHome::Memory, &options).unwrap();
        let mut disk = random_disk(5, 5 << 20);
        back_up(&repository, "web", &disk, false);
        mutate(&mut disk, &mut Random::new(6));
        let summary = back_up(&repository, "web", &disk, true);
        assert_eq!(restore(&repository, summary.snapshot), disk.bytes, "{profile:?}");
        assert!(check(&repository).is_clean(), "{profile:?}");
    }
}

#[test]
fn a_stream_of_unknown_length_is_backed_up_to_its_end() {
    let repository = init(&embedded_store());
    for size in [1, 4096, 2 << 20, (2 << 20) + 1, 5_000_000] {
        let disk = random_disk(8, size);
        let mut bytes = disk.bytes.clone();
        bytes.truncate(size);
        let source = MemorySource {
            disk: Disk { bytes: bytes.clone(), ..disk },
            stream: true,
            reads: Default::default(),
        };
        let disks = vec![DiskSource::new("sda", Box::new(source))];
        let request = BackupRequest::new(format!("vm{size}"), disks);
        let summary = repository.backup(request, &Silent, &CancelFlag::new()).unwrap();
        assert_eq!(restore(&repository, summary.snapshot), bytes);
    }
}

#[test]
fn disks_may_grow_shrink_and_be_added() {
    let repository = init(&embedded_store());
    let mut disk = random_disk(9, 6 << 20);
    back_up(&repository, "web", &disk, true);
    for size in [7_000_123, 3_000_001, 1, 4 << 20] {
        disk.bytes.resize(size, 0);
        disk.changed.clear();
        let mut request = request_since(&repository, "web", &disk, true);
        request.allow_smaller = true;
        let summary = repository.backup(request, &Silent, &CancelFlag::new()).unwrap();
        assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
        assert_ne!(summary.disks[0].mode, DiskMode::Incremental);
        assert!(!summary.disks[0].reason.is_empty());
    }
    let second = random_disk(10, 3 << 20);
    let base = newest(&repository, "web");
    let source = |name: &str, disk: &Disk| DiskSource {
        changed: Some(ChangedExtents { base: base.clone(), ..disk.changes() }),
        ..DiskSource::new(name, disk.source())
    };
    let request = BackupRequest::new("web", vec![source("sdb", &second), source("sda", &disk)]);
    let summary = repository.backup(request, &Silent, &CancelFlag::new()).unwrap();
    let modes: Vec<_> = summary.disks.iter().map(|disk| disk.mode).collect();
    assert_eq!(modes, [DiskMode::Full, DiskMode::Incremental]);
    let error = try_restore(&repository, summary.snapshot).unwrap_err();
    assert!(error.to_string().contains("sdb, sda"), "{error}");
    for (name, disk) in [("sda", &disk), ("sdb", &second)] {
        let target = MemoryTarget::default();
        let request = RestoreRequest { disk: Some(name.into()), ..RestoreRequest::new(summary.snapshot) };
        repository.restore(&request, &target, &Silent, &CancelFlag::new()).unwrap();
        assert_eq!(target.bytes(), disk.bytes);
    }
}

#[test]
fn a_list_that_does_not_fit_is_not_used_and_the_reason_is_reported() {
    let repository = init(&embedded_store());
    let disk = random_disk(11, 4 << 20);
    let first = back_up(&repository, "web", &disk, false);
    let with = |changed: ChangedExtents, strict: bool| {
        let mut request = request("web", &disk, false);
        request.disks[0].changed = Some(changed);
        request.strict_incremental = strict;
        repository.backup(request, &Silent, &CancelFlag::new())
    };
    let fits = ChangedExtents { base: Some(first.snapshot.short()), ..disk.changes() };
    assert_eq!(with(fits, true).unwrap().disks[0].mode, DiskMode::Incremental);
    for bad in [
        ChangedExtents { base: Some(first.snapshot.short()), ..disk.changes() },
        ChangedExtents { size_bytes: 5, ..disk.changes() },
    ] {
        assert_eq!(with(bad.clone(), false).unwrap().disks[0].mode, DiskMode::Rescan);
        let error = with(bad, true).unwrap_err();
        assert_eq!((error.exit_code(), error.code()), (22, "fell_back"));
    }
}

/// Symptom: after the newest snapshot was forgotten, a backup with changed extents restored to old bytes.
/// Cause: the list was relative to the forgotten snapshot and was applied to the one before it. Fix: a list
/// names the snapshot that it is relative to.
#[test]
fn changed_extents_are_not_used_across_a_forgotten_snapshot() {
    let repository = init(&embedded_store());
    let mut disk = random_disk(13, 4 << 20);
    back_up(&repository, "web", &disk, false);
    disk.write(0, &[1; 5000]);
    let forgotten = back_up(&repository, "web", &disk, true);
    disk.changed.clear();
    disk.write(1 << 20, &[2; 5000]);
    repository.forget(&[forgotten.snapshot]).unwrap();
    let mut request = request("web", &disk, true);
    let list = request.disks[0].changed.as_mut().unwrap();
    list.base = Some(forgotten.snapshot.to_string());
    let summary = repository.backup(request, &Silent, &CancelFlag::new()).unwrap();
    assert_eq!(summary.disks[0].mode, DiskMode::Rescan);
    assert!(summary.disks[0].reason.contains("relative to"), "{}", summary.disks[0].reason);
    assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
}

#[test]
fn a_reopened_repository_has_all_its_snapshots() {
    let store = embedded_store();
    let disk = random_disk(12, 6 << 20);
    let (first, second) = {
        let repository = init(&store);
        (back_up(&repository, "web", &disk, false), back_up(&repository, "db", &disk, false))
    };
    let repository = open(&store);
    let snapshots = repository.snapshots(None).unwrap();
    assert_eq!(snapshots.iter().map(|one| one.id).collect::<Vec<_>>(), [first.snapshot, second.snapshot]);
    assert_eq!(repository.snapshots(Some("db")).unwrap()[0].vm.name, "db");
    let by_uuid = repository.snapshots(Some(&second.vm.uuid.to_string())).unwrap();
    assert_eq!(by_uuid[0].id, second.snapshot);
    assert_eq!(repository.resolve("latest", Some("web")).unwrap().id, first.snapshot);
    assert_eq!(repository.resolve(&second.snapshot.short(), None).unwrap().id, second.snapshot);
    assert_eq!(restore(&repository, first.snapshot), disk.bytes);
    assert_eq!(back_up(&repository, "third", &disk, false).counts.new_bytes, 0, "the index was rebuilt");
}

/// Symptom: no test made a full backup of a disk that has snapshots. Cause: a requested full backup writes
/// recipes with existing names a second time, which nothing else does. Fix: this test: both snapshots survive
/// prunes, and the later one the removal of the earlier.
#[test]
fn a_full_backup_of_an_unchanged_disk_survives_prunes() {
    let store = embedded_store();
    let repository = init(&store);
    let disk = random_disk(14, 6 << 20);
    let first = back_up(&repository, "web", &disk, false);
    let mut again = request("web", &disk, true);
    again.disks[0].changed.as_mut().unwrap().base = newest(&repository, "web");
    again.full = true;
    let second = repository.backup(again, &Silent, &CancelFlag::new()).unwrap();
    assert_eq!(second.disks[0].mode, DiskMode::Full);
    assert!(second.disks[0].reason.contains("asked for"), "{}", second.disks[0].reason);
    assert_eq!(second.counts.read_bytes, first.counts.read_bytes);
    assert_eq!(second.counts.new_bytes, 0, "its chunks are there");
    prune(&repository);
    for snapshot in [first.snapshot, second.snapshot] {
        assert_eq!(restore(&repository, snapshot), disk.bytes);
    }
    repository.forget(&[first.snapshot]).unwrap();
    prune(&repository);
    let repository = open(&store);
    assert_eq!(restore(&repository, second.snapshot), disk.bytes);
    assert!(check(&repository).is_clean());
    // A backup on top of it is incremental again.
    let third = back_up(&repository, "web", &disk, true);
    assert_eq!(third.disks[0].mode, DiskMode::Incremental, "{}", third.disks[0].reason);
}
