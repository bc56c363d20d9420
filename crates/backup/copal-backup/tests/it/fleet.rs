//! The layout of a fleet: operations on one VM touch no other VM.

use crate::fleet_store::*;
use crate::world::*;
use copal_backup::*;
use std::collections::BTreeSet;

/// Names of the volumes that have files.
fn volume_names(store: &FleetStore) -> BTreeSet<String> {
    files(store).into_iter().map(|(volume, ..)| volume).collect()
}

fn noise(seed: u64) -> Disk {
    let mut disk = Disk::new(3 << 20);
    Random::new(seed).fill(&mut disk.bytes);
    disk
}

/// Two VMs with equal disks: each stores all of it, and removing one leaves the other complete.
#[test]
fn two_vms_with_equal_data_share_nothing() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    assert!(repository.info().layout.is_fleet());
    let disk = noise(1);
    let web = back_up(&repository, "web", &disk, false);
    let db = back_up(&repository, "db", &disk, false);
    assert_eq!(db.counts.new_bytes, web.counts.new_bytes);
    assert_eq!(db.counts.cross_dup_bytes, 0);
    let of = |vm: &BackupSummary| vm.vm.uuid.simple().to_string();
    for vm in [&web, &db] {
        for volume in ["c0", "0", "meta"] {
            let volume = format!("vm-{}.{volume}", of(vm));
            assert!(volume_names(&store).contains(&volume), "{volume} holds something");
        }
    }
    assert!(volume_names(&store).iter().all(|name| !name.starts_with("pds-")));

    // A VM finds its own chunks again, also through another handle.
    let repository = open(&store);
    let again = back_up(&repository, "web", &disk, false);
    assert_eq!((again.counts.new_bytes, again.counts.new_chunks), (0, 0));

    repository.forget(&[web.snapshot, again.snapshot]).unwrap();
    prune(&repository);
    let left = volume_names(&store);
    assert!(left.iter().all(|name| !name.contains(&of(&web))), "{left:?}");
    assert!(check(&repository).is_clean());
    assert_eq!(restore(&repository, db.snapshot), disk.bytes);
    // Even if a VM's volumes are removed from outside, no other VM loses anything.
    let gone = fleet_store();
    let web = back_up(&repository, "web", &noise(2), false);
    copy_into(&store, &gone, |volume, _, _| !volume.contains(&of(&web)));
    assert_eq!(restore(&open(&gone), db.snapshot), disk.bytes);
}

/// A prune handles one VM after the other. Of a VM without forgotten snapshots it reads only its own data.
#[test]
fn a_prune_frees_the_forgotten_snapshots_of_every_vm() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let mut kept = Vec::new();
    for number in 0..3 {
        let name = format!("vm{number}");
        let first = back_up(&repository, &name, &noise(10 + number), false);
        let disk = noise(20 + number);
        let second = back_up(&repository, &name, &disk, false);
        if number > 0 {
            repository.forget(&[first.snapshot]).unwrap();
        }
        kept.push((second.snapshot, disk));
    }
    let summary = prune(&repository);
    assert!(summary.after_bytes < summary.before_bytes * 3 / 4, "{summary:?}");
    assert_eq!(summary.busy_vms, 0);
    for (snapshot, disk) in &kept {
        assert_eq!(restore(&repository, *snapshot), disk.bytes);
    }
    assert_eq!(repository.snapshots(None).unwrap().len(), 4);
    assert!(check(&repository).is_clean());
}

/// The default of `delete` and `prune`: by summary vectors, rewriting packs that are mostly dead.
fn free(repository: &Repository) -> PruneSummary {
    repository.prune(&PruneOptions::default(), &Silent, &CancelFlag::new()).unwrap()
}

/// Ten days of a disk that changes a little each day, with a snapshot of each.
fn ten_days(repository: &Repository, vm: &str, seed: u64) -> Vec<(SnapshotId, Vec<u8>)> {
    let mut random = Random::new(seed);
    let mut disk = Disk::new(8 << 20);
    random.fill(&mut disk.bytes);
    let mut days = Vec::new();
    for _ in 0..10 {
        let summary = back_up(repository, vm, &disk, false);
        days.push((summary.snapshot, disk.bytes.clone()));
        for _ in 0..6 {
            let at = random.below(disk.bytes.len() as u64 / 4096) as usize * BLOCK;
            let mut data = vec![0; 30_000];
            random.fill(&mut data);
            disk.write(at, &data);
        }
    }
    days
}

/// Symptom: `delete --method summary` reported more candidates than dead and kept ones together. Cause:
/// candidates were counted by reference and dead ones by frame, and two references may lead to one frame.
/// Fix: all three count references.
#[test]
fn the_counts_of_a_deletion_add_up_where_a_disk_repeats_itself() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let backup = |bytes: Vec<u8>| {
        let mut disk = Disk::new(bytes.len());
        disk.bytes = bytes;
        back_up(&repository, "web", &disk, false).snapshot
    };
    let drawn = |seed| {
        let mut bytes = vec![0; 1 << 20];
        Random::new(seed).fill(&mut bytes);
        bytes
    };
    let (twice, other) = (drawn(1), drawn(2));
    let first = backup([&twice[..], &twice, &other].concat());
    backup([&other[..], &drawn(3), &other].concat());
    repository.forget(&[first]).unwrap();
    let summary = free(&repository);
    assert_eq!(summary.by_summary, 1, "{summary:?}");
    assert!(summary.freed_bytes < 3 << 19, "one copy was stored: {summary:?}");
    assert!(summary.candidates_dead > 0, "{summary:?}");
    assert_eq!(summary.candidates, summary.candidates_dead + summary.candidates_kept, "{summary:?}");
}

/// Days are forgotten in any order: the others can be restored, about as much is freed as by an exact prune,
/// and of the other snapshots only their vectors were read.
#[test]
fn chunks_of_forgotten_snapshots_are_freed_by_vectors() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let mut days = ten_days(&repository, "web", 1);
    let other = ten_days(&repository, "db", 2);
    let mut dead = 0;
    for day in [0, 3, 7, 2, 4, 0, 0, 1] {
        let (gone, _) = days.remove(day);
        repository.forget(&[gone]).unwrap();
        // Also by a handle without any cached state.
        let repository = open(&store);
        let options = PruneOptions { max_unused_percent: 0, ..PruneOptions::default() };
        let summary = repository.prune(&options, &Silent, &CancelFlag::new()).unwrap();
        assert_eq!((summary.by_summary, summary.by_walk, summary.busy_vms), (1, 0, 0), "{summary:?}");
        assert!(summary.candidates > 0 && summary.candidates_dead > 0, "{summary:?}");
        assert_eq!(summary.candidates, summary.candidates_dead + summary.candidates_kept);
        dead += summary.candidates_dead;
        for (snapshot, bytes) in days.iter().chain(&other) {
            assert!(restore(&repository, *snapshot) == *bytes, "{snapshot}");
        }
        let report = check(&repository);
        assert!(report.is_clean(), "{:?}", report.damages);
    }
    // An exact prune finds next to nothing more: one in a thousand.
    let repository = open(&store);
    let exact = prune(&repository);
    assert!(exact.dead_frames * 50 <= dead, "{} after {dead}", exact.dead_frames);
    for (snapshot, bytes) in days.iter().chain(&other) {
        assert!(restore(&repository, *snapshot) == *bytes, "{snapshot}");
    }
    let again = free(&repository);
    assert_eq!((again.by_summary, again.by_walk, again.candidates), (0, 0, 0), "nothing is left to do");
}

/// No handle refers to a dead frame again: its pack may be removed at any time.
#[test]
fn a_dead_chunk_is_stored_anew_when_it_comes_back() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let (keep, mut mixed) = (noise(3), noise(3));
    Random::new(4).fill(&mut mixed.bytes[1 << 20..2 << 20]);
    let gone = back_up(&repository, "web", &mixed, false);
    let kept = back_up(&repository, "web", &keep, false);
    repository.forget(&[gone.snapshot]).unwrap();
    // Rewrites no pack of chunks, a third of which is dead: they stay in place.
    let mut summary = repository.delete(&Silent, &CancelFlag::new()).unwrap();
    assert!(summary.candidates_dead > 10 && summary.written_bytes < 100_000, "{summary:?}");
    for repository in [&repository, &open(&store)] {
        let again = back_up(repository, "web", &mixed, false);
        let (new, counts) = (again.counts.new_chunks, &again.counts);
        // Symptom: about one run in sixty stored less than 1 MiB. Cause: a false positive of the vector of `keep`
        // had kept a dead chunk. The deletion's own counts say how many, so the sums are exact in each run.
        let own = counts.chunks - (kept.counts.chunks - kept.counts.new_chunks);
        let falsely_kept = summary.live_frames - kept.counts.chunks - 4;
        assert_eq!(summary.candidates_dead, new + 3, "each dead chunk and no other is stored: {counts:?}");
        assert_eq!(own - new, falsely_kept, "{counts:?} {summary:?}");
        assert_eq!(counts.cross_dup_bytes > 0, falsely_kept > 0, "{counts:?} {summary:?}");
        assert!(counts.new_bytes + counts.cross_dup_bytes >= 1 << 20, "{counts:?}");
        assert_eq!(restore(repository, again.snapshot), mixed.bytes);
        repository.forget(&[again.snapshot]).unwrap();
        summary = repository.delete(&Silent, &CancelFlag::new()).unwrap();
    }
    prune(&repository);
    assert_eq!(restore(&open(&store), kept.snapshot), keep.bytes);
    assert!(check(&repository).is_clean());
}

/// Without a vector, or with a changed one, the snapshots are walked, and no needed frame is removed.
#[test]
fn a_missing_or_damaged_vector_makes_the_walk_decide() {
    for hurt in ["missing", "damaged"] {
        let store = fleet_store();
        let days = ten_days(&init_as(&store, FLEET), "web", 5);
        let vector = format!("s.{}.", days[4].0);
        let bad = fleet_store();
        copy_into(&store, &bad, |_, name, body| {
            let is_it = name.starts_with(vector.as_bytes());
            if is_it && hurt == "damaged" {
                // All bits of one part of the filter are cleared, which would make its ids look dead.
                let at = body.len() / 2;
                body[at..at + 64].fill(0);
            }
            !is_it || hurt == "damaged"
        });
        let repository = open(&bad);
        repository.forget(&[days[3].0]).unwrap();
        let summary = free(&repository);
        assert_eq!((summary.by_summary, summary.by_walk), (0, 1), "{hurt}: {summary:?}");
        for (snapshot, bytes) in days.iter().filter(|(id, _)| *id != days[3].0) {
            assert!(restore(&repository, *snapshot) == *bytes, "{hurt}: {snapshot}");
        }
        // The walk has made the vector anew.
        repository.forget(&[days[6].0]).unwrap();
        let summary = free(&repository);
        assert_eq!((summary.by_summary, summary.by_walk), (1, 0), "{hurt}: {summary:?}");
    }
}

/// `copal stats --vm`, `copal repair leak`, `copal vm rm`.
#[test]
fn the_size_of_a_vm_is_reported_and_the_vm_can_be_removed() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let mut days = ten_days(&repository, "web", 7);
    let other = ten_days(&repository, "db", 8);
    let before = repository.vm_stats("web").unwrap();
    assert_eq!((before.snapshots, before.forgotten, before.dead_frames), (10, 0, 0));
    assert!(before.chunk_pack_bytes > 8 << 20 && before.recipe_pack_bytes > 0 && before.metadata_bytes > 0);
    // Later days need most of the first day's pack too.
    let (gone, _) = days.remove(0);
    repository.forget(&[gone]).unwrap();
    assert_eq!(repository.vm_stats("web").unwrap().forgotten, 1);
    repository.delete(&Silent, &CancelFlag::new()).unwrap();
    let after = repository.vm_stats("web").unwrap();
    assert_eq!((after.snapshots, after.forgotten), (9, 0));
    assert!(after.dead_frames > 0 && after.dead_bytes > 0, "{after:?}");

    // A leak: a backup that never ended left packs without a record.
    let stored = |stats: &VmStats| stats.chunk_pack_bytes + stats.recipe_pack_bytes;
    let repaired = repository.repair_leak("web", 24 << 20, &Silent, &CancelFlag::new()).unwrap();
    assert_eq!((repaired.by_walk, repaired.by_summary), (1, 0));
    let repaired = repository.vm_stats("web").unwrap();
    // By chance, a summary takes a dead frame for a live one. The exact walk may then free its whole pack.
    let freed = stored(&after) - stored(&repaired);
    assert!(repaired.dead_bytes + freed >= after.dead_bytes, "{after:?} {repaired:?}");
    assert_eq!(repaired.leak_estimate_bytes, 0);

    let refused = repository.remove_vm("web", false, false).unwrap_err();
    assert_eq!(refused.exit_code(), 21, "{refused}");
    repository.hold(&[days[0].0], u64::MAX).unwrap();
    let held = repository.remove_vm("web", true, false).unwrap_err();
    assert_eq!(held.exit_code(), 21, "{held}");
    repository.hold(&[days[0].0], 0).unwrap();
    let removed = repository.remove_vm("web", true, false).unwrap();
    let mark = removed.uuid.simple().to_string();
    assert!(volume_names(&store).iter().all(|name| !name.contains(&mark)));
    let repository = open(&store);
    let names: Vec<String> = repository.vms().unwrap().into_iter().map(|vm| vm.name).collect();
    assert_eq!(names, ["db"]);
    for (snapshot, bytes) in &other {
        assert!(restore(&repository, *snapshot) == *bytes, "{snapshot}");
    }
    assert!(check(&repository).is_clean());
    // The name is free for another VM.
    let again = back_up(&repository, "web", &noise(9), false);
    assert_ne!(again.vm.uuid, removed.uuid);
    let unknown = repository.remove_vm("mail", true, false).unwrap_err();
    assert_eq!(unknown.exit_code(), 1, "{unknown}");
}

#[test]
fn the_layout_solo_has_no_operations_on_single_vms() {
    let repository = init(&embedded_store());
    back_up(&repository, "web", &noise(1), false);
    for refused in [
        repository.vm_stats("web").map(drop),
        repository.remove_vm("web", true, false).map(drop),
        repository.repair_leak("web", 24 << 20, &Silent, &CancelFlag::new()).map(drop),
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.exit_code(), 21, "{refused}");
    }
}
