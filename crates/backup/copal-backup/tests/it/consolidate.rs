//! Clean-ups of chunks that several VMs store each for itself: space is freed, and no snapshot loses a byte,
//! not even if a host dies.

use crate::fleet_store::*;
use crate::mortal_store::MortalStore;
use crate::popular::{Detector, back_up_with, clone_of_template, noise};
use crate::world::*;
use copal_backup::peers::{Answer, Peers};
use copal_backup::*;
use std::sync::Arc;

pub(crate) fn try_clean_up(repository: &Repository, peers: &dyn Peers, vm: &str) -> Result<CleanUpSummary> {
    clean_up_within(repository, peers, vm, 24 << 20)
}

fn clean_up_within(
    repository: &Repository,
    peers: &dyn Peers,
    vm: &str,
    memory_bytes: u64,
) -> Result<CleanUpSummary> {
    let spool = tempfile::tempdir().unwrap();
    let others = Collaboration {
        peers,
        spool_directory: spool.path().to_owned(),
        writer: peers::Writer::of("host"),
        part_bytes: u64::MAX,
    };
    let options = CleanUpOptions::all(memory_bytes);
    repository.clean_up_vm(vm, &others, options, &Silent, &CancelFlag::new())
}

pub(crate) fn clean_up(repository: &Repository, peers: &dyn Peers, vm: &str) -> CleanUpSummary {
    try_clean_up(repository, peers, vm).unwrap()
}

/// Frees all dead frames, and rewrites packs until nothing is unused.
pub(crate) fn free(repository: &Repository) -> PruneSummary {
    let options = PruneOptions { max_unused_percent: 0, ..PruneOptions::default() };
    repository.prune(&options, &Silent, &CancelFlag::new()).unwrap()
}

/// Bytes that an exact prune would remove.
fn unreferenced(repository: &Repository) -> u64 {
    let options = PruneOptions { dry_run: true, ..thorough() };
    let summary = repository.prune(&options, &Silent, &CancelFlag::new()).unwrap();
    summary.dead_frames
}

/// Frees the dead frames that the vectors contain by chance.
pub(crate) fn repair_leak(repository: &Repository, vm: &str) -> PruneSummary {
    repository.repair_leak(vm, 24 << 20, &Silent, &CancelFlag::new()).unwrap()
}

fn chunk_bytes(repository: &Repository) -> u64 {
    repository.stats().unwrap().chunk_pack_bytes
}

/// A disk of which half is the same on all VMs.
pub(crate) fn small_clone(vm: u64) -> Disk {
    let mut disk = Disk::new(2 << 20);
    disk.write(0, &noise(1, 500_000));
    disk.write(1 << 20, &noise(100 + vm, 300_000));
    disk.changed.clear();
    disk
}

/// Backs up VMs alone, so that each stores all its chunks.
pub(crate) fn alone(
    repository: &Repository,
    names: &[&str],
    disk: fn(u64) -> Disk,
) -> Vec<(SnapshotId, Disk)> {
    let backed_up = names.iter().zip(0..).map(|(name, number)| {
        let disk = disk(number);
        (back_up(repository, name, &disk, false).snapshot, disk)
    });
    backed_up.collect()
}

pub(crate) fn assert_restores(repository: &Repository, snapshots: &[(SnapshotId, Disk)], when: &str) {
    for (snapshot, disk) in snapshots {
        assert!(restore(repository, *snapshot) == disk.bytes, "{when}: {snapshot}");
    }
}

/// Two VMs have stored the same chunks alone, others made them popular: a clean-up of all VMs leaves one
/// copy.
#[test]
fn every_vm_gives_up_its_own_frames_of_popular_chunks() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let mut all = alone(&repository, &["web", "db"], clone_of_template);
    let detector = Detector::new(&repository, 0);
    for (name, number) in [("mail", 2), ("news", 3)] {
        let disk = clone_of_template(number);
        let made = back_up_with(&repository, &detector, name, &disk, false).unwrap();
        all.push((made.snapshot, disk));
    }
    let exact = init_as(&embedded_store(), Layout::Solo);
    alone(&exact, &["web", "db", "mail", "news"], clone_of_template);
    let before = chunk_bytes(&repository);

    // Handles of other hosts, one of them with a kept index; both know the locations before the clean-up.
    let index = IndexHome::Kv(engine_in_memory());
    let kept = |index: &IndexHome| {
        let opened = Repository::open(Arc::new(store.clone()), index.clone(), &Unlock::Insecure);
        opened.unwrap().behave_as_another_process()
    };
    let (in_memory, on_disk) = (open(&store).behave_as_another_process(), kept(&index));
    assert_restores(&in_memory, &all, "before");
    assert_restores(&on_disk, &all, "before");

    let unmoved = copy_fleet(&store);
    let mut moved_bytes = 0;
    for vm in ["web", "db", "mail", "news"] {
        let summary = clean_up(&repository, &detector, vm);
        assert_eq!((summary.stored_popular, summary.unanswered), (0, 0), "{summary:?}");
        let is_all_private = vm != "news";
        assert_eq!(summary.moved > 100, is_all_private, "{vm}: {summary:?}");
        assert!(summary.read_bytes >= summary.moved_bytes, "{summary:?}");
        moved_bytes += summary.moved_bytes;
        let stats = repository.vm_stats(vm).unwrap();
        assert_eq!((stats.moved_chunks, stats.dead_frames), (summary.moved, summary.moved));
        assert_eq!(stats.dead_bytes, summary.freed_bytes);
        let again = clean_up(&repository, &detector, vm);
        assert_eq!((again.moved, again.asked), (0, summary.asked - summary.moved));
    }
    assert!(moved_bytes > 11 << 20, "{moved_bytes}");
    // Their own frames still exist, and no snapshot needs them.
    assert_restores(&repository, &all, "moved");
    free(&repository);
    let (saved, by_exact) = (before - chunk_bytes(&repository), before - chunk_bytes(&exact));
    assert!(saved * 100 >= by_exact * 97, "{saved} of {by_exact}");
    for (handle, when) in [
        (&repository, "by the one that moved"),
        (&in_memory, "by another"),
        (&on_disk, "by a kept index"),
        (&open(&store), "afresh"),
    ] {
        assert_restores(handle, &all, when);
        let report = check(handle);
        assert!(report.is_clean(), "{when}: {:?}", report.damages);
    }
    drop(on_disk);
    assert_restores(&kept(&index), &all, "by a kept index that was opened again");

    // The stored frames are exactly those referred to.
    for vm in ["web", "db", "mail", "news"] {
        let repaired = repair_leak(&repository, vm);
        assert_eq!(repaired.dead_frames, 0, "{vm}: {repaired:?}");
    }
    assert_eq!(unreferenced(&open(&store)), 0);
    assert_restores(&open(&store), &all, "after a repair");

    // The next backup finds moved chunks anywhere on the disk: as many as before. New are only chunks across
    // borders, which are cut differently with each key.
    let mut disk = all[0].1.clone();
    let template = disk.bytes[1 << 20..5 << 20].to_vec();
    disk.write(2 << 20, &template);
    let before = back_up(&open(&unmoved), "web", &disk, false).counts;
    assert!(before.new_bytes < template.len() as u64 / 4, "{before:?}");
    for (handle, new_bytes) in [(&repository, before.new_bytes), (&open(&store), 0), (&kept(&index), 0)] {
        let next = back_up(handle, "web", &disk, false);
        assert_eq!(next.counts.new_bytes, new_bytes, "{:?}", next.counts);
        assert_eq!(restore(&open(&store), next.snapshot), disk.bytes);
    }
}

/// The chunks are not popular yet: the clean-up makes them popular, and the second VM that asks stores them.
#[test]
fn a_clean_up_makes_shared_chunks_popular() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let all = alone(&repository, &["web", "db", "mail"], small_clone);
    let detector = Detector::new(&repository, 0);
    let [first, second, third] = ["web", "db", "mail"].map(|vm| clean_up(&repository, &detector, vm));
    assert_eq!((first.moved, first.stored_popular, first.unanswered), (0, 0, 0));
    assert!(second.stored_popular > 10 && second.moved == second.stored_popular, "{second:?}");
    assert_eq!((third.moved, third.stored_popular), (second.moved, 0));
    let again = clean_up(&repository, &detector, "web");
    assert_eq!(again.moved, second.moved);
    free(&repository);
    assert_restores(&open(&store), &all, "cleaned up");
    assert!(check(&open(&store)).is_clean());
    assert_eq!(unreferenced(&open(&store)), 0);
    let status = repository.popular_status().unwrap();
    assert_eq!((status.frames, status.unchecked_packs), (second.stored_popular, 0));
}

/// Symptom: a VM that asked in an early round of a job kept its own frames of chunks that a later round made
/// popular, until the monthly clean-up. Cause: no host asked about them again. Fix: a job ends with a clean-up
/// of the frames that its own backup stored, and of no others.
#[test]
fn a_clean_up_of_a_snapshot_asks_only_about_the_frames_that_its_backup_stored() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let mut disk = small_clone(0);
    let first = back_up(&repository, "web", &disk, false).snapshot;
    let first_disk = disk.clone();
    disk.write(1_600_000, &noise(2, 300_000));
    let second = back_up(&repository, "web", &disk, false).snapshot;
    let mut other = small_clone(1);
    other.write(1_600_000, &noise(2, 300_000));
    let third = back_up(&repository, "db", &other, false).snapshot;
    let detector = Detector::new(&repository, 0);
    clean_up(&repository, &detector, "db");

    let spool = tempfile::tempdir().unwrap();
    let others = Collaboration {
        peers: &detector,
        spool_directory: spool.path().to_owned(),
        writer: peers::Writer::of("host"),
        part_bytes: u64::MAX,
    };
    let settle = |snapshot, dry_run| {
        let options = CleanUpOptions { snapshot: Some(snapshot), dry_run, ..CleanUpOptions::all(24 << 20) };
        repository.clean_up_vm("web", &others, options, &Silent, &CancelFlag::new())
    };
    let before = chunk_bytes(&repository);
    let counted = settle(second, true).unwrap();
    assert_eq!(repository.vm_stats("web").unwrap().moved_chunks, 0, "a dry run changes nothing");
    let settled = settle(second, false).unwrap();
    // The first of the two VMs asked alone, so its chunks are wanted by a second VM only now.
    assert!((250_000..=340_000).contains(&settled.moved_bytes), "{settled:?}");
    assert_eq!(
        (counted.asked, counted.moved, counted.moved_bytes),
        (settled.asked, settled.moved, settled.moved_bytes)
    );
    assert!(settled.asked < 40, "{settled:?}");
    let all = clean_up(&repository, &detector, "web");
    assert!(all.moved_bytes > 400_000, "the frames of the first backup still exist: {all:?}");
    assert_eq!(settle(third, false).unwrap_err().code(), "not_found", "a snapshot of another VM");
    assert!(chunk_bytes(&repository) >= before, "nothing is removed");
    free(&repository);
    assert_restores(&open(&store), &[(first, first_disk), (second, disk), (third, other)], "settled");
    assert!(check(&open(&store)).is_clean());
    assert_eq!(unreferenced(&open(&store)), 0);
}

/// With little memory a clean-up of a VM has several rounds, each with its own record. The result is the
/// same, in one list.
#[test]
fn small_rounds_move_the_same_chunks_as_a_large_one() {
    let made = fleet_store();
    let options = InitOptions { layout: FLEET, profile: ChunkProfile::Fixed4K, ..insecure() };
    let repository = Repository::init(Arc::new(made.clone()), IndexHome::Memory, &options).unwrap();
    let mut all = Vec::new();
    for vm in ["web", "db"] {
        for seed in 0..3 {
            let mut disk = Disk::new(5 << 20);
            disk.write(0, &noise(seed, 5 << 20));
            all.push((back_up(&repository, vm, &disk, false).snapshot, disk));
        }
    }
    let mut moved = Vec::new();
    for memory_bytes in [1, 24 << 20] {
        let store = copy_fleet(&made);
        let repository = open(&store);
        let detector = Detector::new(&repository, 0);
        let records = |prefix: &[u8]| {
            let files = files(&store).into_iter();
            files.filter(|(_, name, _)| name.starts_with(prefix)).count()
        };
        let before = records(b"v.");
        for vm in ["web", "db"] {
            let summary = clean_up_within(&repository, &detector, vm, memory_bytes).unwrap();
            moved.push((memory_bytes, summary.asked, summary.moved, summary.moved_bytes));
        }
        let rounds = if memory_bytes == 1 { 3 } else { 1 };
        assert_eq!(records(b"v.") - before, rounds + 2, "one each, and that all is answered of either VM");
        assert_eq!(records(b"moved."), 1, "replaced lists are deleted");
        free(&repository);
        assert_restores(&open(&store), &all, "cleaned up");
        assert_eq!(unreferenced(&open(&store)), 0);
    }
    let [web, db] = [(3840, 0, 0), (3840, 3840, 15 << 20)];
    for ((_, asked, moved, bytes), wanted) in moved.into_iter().zip([web, db, web, db]) {
        assert_eq!((asked, moved, bytes), wanted);
    }
}

/// A clean-up removes frames, so it needs the delete role, and its record is signed; readers need neither.
#[test]
fn a_clean_up_needs_the_delete_role() {
    let store = fleet_store();
    let options = InitOptions {
        layout: FLEET,
        argon2_memory_kib: 64,
        ..InitOptions::new(Unlock::Password(zeroize::Zeroizing::new("correct horse".into())))
    };
    let repository = Repository::init(Arc::new(store.clone()), IndexHome::Memory, &options).unwrap();
    let all = alone(&repository, &["web", "db"], small_clone);
    let [backup, delete] = [Role::Backup, Role::Delete].map(|role| {
        let key = repository.draw_key(role).unwrap();
        repository.add_key(&key).unwrap();
        Unlock::Key(key)
    });
    let open_with = |key: &Unlock| Repository::open(Arc::new(store.clone()), IndexHome::Memory, key).unwrap();
    let by_backup = open_with(&backup);
    let detector = Detector::new(&by_backup, 0);
    let refused = try_clean_up(&by_backup, &detector, "web").unwrap_err();
    assert_eq!(refused.exit_code(), 21, "{refused}");
    let refused = by_backup.sweep_popular(&CancelFlag::new()).unwrap_err();
    assert_eq!(refused.exit_code(), 21, "{refused}");
    let by_delete = open_with(&delete);
    let moved = ["web", "db", "web"].map(|vm| clean_up(&by_delete, &detector, vm).moved);
    assert!(moved[0] == 0 && moved[1] > 10 && moved[1] == moved[2], "{moved:?}");
    free(&by_delete);
    assert_restores(&open_with(&backup), &all, "by the backup role");
    assert!(check(&open_with(&backup)).is_clean());
    assert_eq!(back_up(&open_with(&backup), "web", &all[0].1, false).counts.new_bytes, 0);
}

/// Snapshots that refer to moved chunks are forgotten, by vectors and by a walk: exactly the needed frames
/// stay.
#[test]
fn moved_chunks_are_deleted_and_kept_like_others() {
    for method in [FreeMethod::Summary, FreeMethod::Exact] {
        let store = fleet_store();
        let repository = init_as(&store, FLEET);
        let first = alone(&repository, &["web", "db"], small_clone);
        let mut disk = small_clone(0);
        disk.write(100_000, &noise(50, 150_000));
        let second = back_up(&repository, "web", &disk, false);
        let detector = Detector::new(&repository, 0);
        for vm in ["web", "db", "web"] {
            clean_up(&repository, &detector, vm);
        }
        let dead = repository.vm_stats("web").unwrap().dead_frames;
        assert!(dead > 10);
        repository.forget(&[first[0].0]).unwrap();
        let options = PruneOptions { method, max_unused_percent: 100, ..PruneOptions::default() };
        let repository = open(&store);
        repository.prune(&options, &Silent, &CancelFlag::new()).unwrap();
        // The first VM's chunks are shared with db: they had moved, and no more of them are dead than before.
        let stats = repository.vm_stats("web").unwrap();
        assert!(stats.dead_frames <= dead + 2, "{method:?}: {dead} then {stats:?}");
        let left = [(second.snapshot, disk.clone()), first[1].clone()];
        assert_restores(&repository, &left, "forgotten");
        free(&repository);
        assert_restores(&open(&store), &left, "freed");
        let next = back_up(&repository, "web", &small_clone(0), false);
        assert!(next.counts.new_bytes < 60_000, "{:?}", next.counts);
        repository.forget(&[second.snapshot, next.snapshot]).unwrap();
        prune(&repository);
        assert_eq!(repository.vm_stats("web").unwrap().chunk_pack_bytes, 0);
        assert_restores(&open(&store), &left[1..], "all of web is forgotten");
        assert!(check(&open(&store)).is_clean());
    }
}

/// A host dies at each step of a clean-up and of the prune after it.
#[test]
fn a_clean_up_killed_at_each_of_its_steps_loses_nothing_and_is_finished_by_the_next() {
    let made = fleet_store();
    let all = alone(&init_as(&made, FLEET), &["web", "db"], small_clone);
    let mut most = 0;
    for steps in 0.. {
        let store = copy_fleet(&made);
        let other = open(&store).behave_as_another_process();
        let detector = Detector::new(&other, 0);
        clean_up(&other, &detector, "web");
        let mortal = store.host_for(steps);
        let killed =
            Repository::open(Arc::new(mortal.clone()), IndexHome::Memory, &Unlock::Insecure).unwrap();
        let killed = killed.behave_as_another_process();
        let outcome = try_clean_up(&killed, &detector, "db").and_then(|summary| {
            let options = PruneOptions { max_unused_percent: 0, ..PruneOptions::default() };
            killed.prune(&options, &Silent, &CancelFlag::new()).map(|_| summary)
        });
        drop(killed);
        let when = format!("killed at step {steps}");
        let repository = open(&store);
        assert_restores(&repository, &all, &when);
        free(&repository);
        assert_restores(&open(&store), &all, &when);
        let again = clean_up(&repository, &detector, "db");
        clean_up(&repository, &detector, "web");
        assert_eq!(again.unanswered, 0, "{when}");
        let moved = ["web", "db"].map(|vm| repository.vm_stats(vm).unwrap().moved_chunks);
        most = most.max(moved[0]);
        assert_eq!(moved, [most, most], "{when}");
        prune(&repository);
        repository.sweep_popular(&CancelFlag::new()).unwrap();
        assert_restores(&open(&store), &all, &when);
        assert!(check(&open(&store)).is_clean(), "{when}");
        // One copy of each shared chunk, and the chunks across borders.
        let disks = 500_000 + 2 * 300_000;
        let stored = chunk_bytes(&repository);
        assert!(stored < disks + 100_000, "{when}: {stored}");
        if outcome.is_ok() {
            assert!(steps > 12, "a clean-up takes more steps than that: {steps}");
            break;
        }
    }
    assert!(most > 10);
}

pub(crate) fn host(store: &FleetStore) -> (Repository, MortalStore) {
    let mortal = store.another_host();
    let opened = Repository::open(Arc::new(mortal.clone()), IndexHome::Memory, &Unlock::Insecure);
    (opened.unwrap().behave_as_another_process(), mortal)
}

/// A peer that lies, does not answer, or checks no pack costs space and no data; the next clean-up asks
/// again.
#[test]
fn no_chunk_moves_by_a_wrong_answer() {
    let lies: [fn(Answer) -> Answer; 3] = [
        |answer| answer.ordinal().and_then(|at| Answer::hit(at ^ 1)).unwrap_or(answer),
        |_| Answer::hit(4_000_000).unwrap(),
        |_| Answer::UNANSWERED,
    ];
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let all = alone(&repository, &["web", "db"], small_clone);
    let mut detector = Detector::new(&repository, 0);
    clean_up(&repository, &detector, "web");
    detector.is_checking = false;
    let unchecked = clean_up(&repository, &detector, "db");
    assert!(unchecked.stored_popular > 10 && unchecked.moved == 0, "{unchecked:?}");
    assert_eq!(unchecked.unanswered, unchecked.stored_popular);
    detector.is_checking = true;
    detector.stored();
    for lie in lies {
        detector.lie = lie;
        let lied = clean_up(&repository, &detector, "db");
        assert!(lied.moved == 0 && lied.unanswered > 10, "{lied:?}");
    }
    detector.lie = |answer| answer;
    assert_eq!(clean_up(&repository, &detector, "db").moved, unchecked.stored_popular);
    free(&repository);
    assert_restores(&open(&store), &all, "lied to");
}

/// Chunks without an answer are counted until an answer comes.
#[test]
fn a_clean_up_clears_the_count_of_unresolved_chunks() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let mut detector = Detector::new(&repository, 0);
    detector.lie = |_| Answer::UNANSWERED;
    let made = back_up_with(&repository, &detector, "web", &small_clone(0), false).unwrap();
    let unresolved = |repository: &Repository| repository.vm_stats("web").unwrap().unresolved_chunks;
    assert_eq!(unresolved(&repository), made.counts.unresolved_chunks);
    assert!(made.counts.unresolved_chunks > 10);
    clean_up(&repository, &detector, "web");
    assert_eq!(unresolved(&repository), made.counts.unresolved_chunks);
    detector.lie = |answer| answer;
    clean_up(&repository, &detector, "web");
    assert_eq!(unresolved(&repository), 0);
    // Later chunks count anew.
    detector.lie = |_| Answer::UNANSWERED;
    let made = back_up_with(&repository, &detector, "web", &small_clone(5), false).unwrap();
    assert_eq!(unresolved(&open(&store)), made.counts.unresolved_chunks);
}

/// A damaged list of moved chunks is reported, and never treated as an empty one.
#[test]
fn a_damaged_list_of_moved_frames_is_reported() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let all = alone(&repository, &["web", "db"], small_clone);
    let detector = Detector::new(&repository, 0);
    for vm in ["web", "db", "web"] {
        clean_up(&repository, &detector, vm);
    }
    free(&repository);
    let bad = fleet_store();
    let mut lists = 0;
    copy_into(&store, &bad, |_, name, body| {
        let is_list = name.starts_with(b"moved.");
        if is_list {
            lists += 1;
            let middle = body.len() / 2;
            body[middle] ^= 1;
        }
        true
    });
    assert_eq!(lists, 2, "one of each VM");
    let repository = open(&bad);
    let report = check(&repository);
    assert!(report.damages.iter().any(|damage| damage.what.contains("moved.")), "{:?}", report.damages);
    let refused = try_back_up(&repository, "web", &all[0].1, false).unwrap_err();
    assert!(refused.is_corruption(), "{refused}");
    let before = chunk_bytes(&repository);
    let refused = repository.repair_leak("web", 24 << 20, &Silent, &CancelFlag::new());
    assert!(refused.is_err(), "{refused:?}");
    assert_eq!(chunk_bytes(&repository), before);
}

/// A backup dies at each of its steps: its popular packs are removed, unless they are entered, or its session
/// is still open.
#[test]
fn popular_packs_without_an_entry_are_removed_once_their_session_has_ended() {
    let made = fleet_store();
    let all = alone(&init_as(&made, FLEET), &["web"], small_clone);
    let mut swept_packs = 0;
    for steps in 0.. {
        let store = copy_fleet(&made);
        let (other, _) = host(&store);
        let detector = Detector::new(&other, 0);
        clean_up(&other, &detector, "web");
        let mortal = store.host_for(steps);
        let killed =
            Repository::open(Arc::new(mortal.clone()), IndexHome::Memory, &Unlock::Insecure).unwrap();
        let killed = killed.behave_as_another_process();
        let outcome = back_up_with(&killed, &detector, "db", &small_clone(1), false);
        let sweep = || other.sweep_popular(&CancelFlag::new()).unwrap();
        let is_open = other.sessions().unwrap().len() == 1;
        if is_open {
            assert_eq!(sweep(), SweptPacks::default(), "killed at step {steps}");
            other.fence_sessions("db").unwrap();
        }
        let before = chunk_bytes(&other);
        let swept = sweep();
        swept_packs += swept.packs;
        assert_eq!(before - chunk_bytes(&other), swept.bytes);
        assert_eq!(sweep(), SweptPacks::default());
        let status = other.popular_status().unwrap();
        let shared = files(&store).into_iter().filter(|(volume, ..)| volume.starts_with("pds-"));
        assert_eq!(shared.count() as u64, status.packs, "killed at step {steps}");
        assert_restores(&open(&store), &all, "swept");
        if let Ok(summary) = outcome {
            assert_eq!(restore(&open(&store), summary.snapshot), small_clone(1).bytes);
            break;
        }
    }
    assert!(swept_packs > 0, "a backup never died at the moment that is tested");
}

#[test]
fn in_the_layout_solo_there_is_nothing_to_clean_up() {
    let repository = init(&embedded_store());
    back_up(&repository, "web", &small_clone(0), false);
    let detector = Detector::new(&repository, 0);
    let refused = try_clean_up(&repository, &detector, "web").unwrap_err();
    assert_eq!(refused.exit_code(), 21, "{refused}");
    let refused = repository.sweep_popular(&CancelFlag::new()).unwrap_err();
    assert_eq!(refused.exit_code(), 21, "{refused}");
}
