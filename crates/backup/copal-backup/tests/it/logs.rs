//! The logs of the catalog and their checkpoints: reads of a backup, crashes while a log is shortened,
//! damage, and concurrent readers and writers.

use crate::mortal_store::MortalStore;
use crate::world::*;
use copal_backup::*;
use copal_data::LocalStore;
use std::sync::Arc;

/// Enough records for three checkpoints of a VM's log, so that records and a checkpoint were removed.
const HOLDS: u64 = 120;

fn open_on(store: &MortalStore) -> Result<Repository> {
    Repository::open(Arc::new(store.clone()), IndexHome::Memory, &Unlock::Insecure)
}

/// A disk of one block, different for each seed.
fn block(seed: u64) -> Disk {
    let mut disk = Disk::new(BLOCK);
    Random::new(seed).fill(&mut disk.bytes);
    disk
}

/// A repository with one snapshot.
fn single() -> (LocalStore, SnapshotId) {
    let store = embedded_store();
    let only = back_up(&init(&store), "web", &block(1), false).snapshot;
    (store, only)
}

/// Appends a record for each of `times`; returns the last acknowledged one.
fn hold(repository: &Repository, snapshot: SnapshotId, times: std::ops::RangeInclusive<u64>) -> u64 {
    let mut acknowledged = times.start() - 1;
    for time in times {
        match repository.hold(&[snapshot], time) {
            Ok(()) => acknowledged = time,
            Err(_) => break,
        }
    }
    acknowledged
}

fn held_until(repository: &Repository) -> u64 {
    let snapshots = repository.snapshots(None).unwrap();
    assert_eq!(snapshots.len(), 1);
    snapshots[0].held_until_ms
}

/// Names of the files of the catalog with this prefix.
fn names(store: &LocalStore, prefix: &str) -> Vec<String> {
    let files = files(store).into_iter();
    let catalog = files.filter(|(volume, ..)| volume.starts_with("cat-"));
    let names = catalog.map(|(_, name, _)| String::from_utf8(name).unwrap());
    names.filter(|name| name.starts_with(prefix)).collect()
}

/// A copy of the store with a bit flipped in these files of the catalog.
fn damaged(store: &LocalStore, hurt: &[&str]) -> LocalStore {
    let copy = embedded_store();
    copy_into(store, &copy, |volume, name, body| {
        if volume.starts_with("cat-") && hurt.iter().any(|hurt| hurt.as_bytes() == name) {
            body[30] ^= 4;
        }
        true
    });
    copy
}

/// Symptom: every backup read the whole log of its VM, at each of its appends, so each backup of a VM was
/// slower than the one before. Cause: logs were replayed from their beginning. Fix: checkpoints, and a cached
/// replay.
#[test]
fn a_backup_reads_a_bounded_part_of_the_log() {
    let (store, only) = single();
    let reads = |store: &LocalStore| {
        let watched = MortalStore::new(store.clone(), i64::MAX);
        let repository = open_on(&watched).unwrap();
        let opened = watched.reads();
        repository.snapshots(Some("web")).unwrap();
        repository.hold(&[only], 7).unwrap();
        repository.note_verified(only).unwrap();
        watched.reads() - opened
    };
    hold(&open(&store), only, 1..=3);
    let few = reads(&store);
    hold(&open(&store), only, 1..=3000);
    let many = reads(&store);
    assert!(many <= few + 200, "{few} files at first, {many} after 3000 records");
    let left = names(&store, "v.").len();
    assert!(left <= 100, "{left} records of the log are left");
}

/// Symptom: a backup of one VM read the names of all others, listed their volumes and looked up each of their
/// packs. Cause: the log of VMs had no checkpoint; a current index could not be distinguished from an
/// outdated one; names were listed a thousand at once. Fix: checkpoints; epochs of the packs; a short first
/// page.
#[test]
fn a_backup_reads_the_same_amount_with_any_number_of_vms() {
    let reads = |vms: u64| {
        let store = embedded_store();
        let index = IndexHome::Kv(engine_in_memory());
        let repository = Repository::init(Arc::new(store.clone()), index.clone(), &insecure()).unwrap();
        for vm in 0..vms {
            back_up(&repository, &format!("vm{vm}"), &block(vm), false);
        }
        let mut disk = block(3);
        disk.write(0, &[1; 100]);
        let request = request_since(&repository, "vm3", &disk, true);
        drop(repository);
        let watched = MortalStore::new(store.clone(), i64::MAX);
        let repository = Repository::open(Arc::new(watched.clone()), index, &Unlock::Insecure).unwrap();
        let summary = repository.backup(request, &Silent, &CancelFlag::new()).unwrap();
        let reads = watched.reads();
        assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
        reads
    };
    let (few, many) = (reads(10), reads(300));
    assert!(many <= few + 350, "{few} files at 10 VMs, {many} at 300");
}

/// Symptom: `ls`, `hold` and `forget` of one snapshot read the logs of all VMs two to four times. Cause: a
/// snapshot found by name was looked up once more by its id, and for the clock, which matters only at the end
/// of a hold. Fix: the VM of a named snapshot is cached, and the clock is not checked if nothing is held.
#[test]
fn operations_on_a_named_snapshot_read_only_its_own_log() {
    let questions = |vms: u64| {
        let store = embedded_store();
        let repository = init(&store);
        for vm in 0..vms {
            back_up(&repository, &format!("vm{vm}"), &block(vm), false);
        }
        let only = repository.snapshots(Some("vm3")).unwrap()[0].id;
        drop(repository);
        let watched = MortalStore::new(store.clone(), i64::MAX);
        let repository = open_on(&watched).unwrap();
        repository.resolve(&only.short(), None).unwrap();
        // The index in memory is made of all packs.
        repository.ls(only).unwrap();
        let before = watched.questions();
        repository.ls(only).unwrap();
        repository.hold(&[only], u64::MAX).unwrap();
        repository.hold(&[only], 0).unwrap();
        repository.note_verified(only).unwrap();
        assert_eq!(repository.forget(&[only]).unwrap().forgotten, [only]);
        let questions = watched.questions() - before;
        assert!(matches!(repository.hold(&[only], 1), Err(Error::NotFound { .. })));
        questions
    };
    let (few, many) = (questions(10), questions(60));
    assert!(many <= few + 5, "{few} questions at 10 VMs, {many} at 60");
}

/// A handle that did not see the end of an epoch lists all packs, and so does an index of another time.
#[test]
fn packs_of_a_dead_backup_and_missing_packs_are_noticed() {
    let store = embedded_store();
    let index = IndexHome::Kv(engine_in_memory());
    let repository = Repository::init(Arc::new(store.clone()), index.clone(), &insecure()).unwrap();
    back_up(&repository, "web", &block(1), false);
    drop(repository);
    let before = copy(&store);
    let open_with = |store: &LocalStore| {
        Repository::open(Arc::new(store.clone()), index.clone(), &Unlock::Insecure).unwrap()
    };
    // Written with another index: this one does not know the packs.
    let other = open(&store).behave_as_another_process();
    back_up(&other, "web", &block(2), false);
    drop(other);
    let again = back_up(&open_with(&store), "db", &block(2), false);
    assert_eq!(again.counts.new_bytes, 0, "the pack was found");
    // The store is reset to before the index, or a pack is lost unnoticed.
    let old = back_up(&open_with(&before), "db", &block(2), false);
    assert_eq!(restore(&open_with(&before), old.snapshot), block(2).bytes);
    back_up(&open_with(&store), "db", &block(4), false);
    let lost = embedded_store();
    copy_into(&store, &lost, |volume, _, _| !volume.starts_with("pds-"));
    let anew = back_up(&open_with(&lost), "new", &block(4), false);
    assert_eq!(restore(&open_with(&lost), anew.snapshot), block(4).bytes);
}

#[test]
fn a_log_is_complete_wherever_its_writer_dies() {
    let (store, only) = single();
    for steps in 0.. {
        let store = copy(&store);
        let mortal = MortalStore::new(store.clone(), steps);
        let acknowledged = hold(&open_on(&mortal).unwrap(), only, 1..=HOLDS);
        let held = held_until(&open(&store));
        assert!(
            held == acknowledged || held == acknowledged + 1,
            "{held} is said after {acknowledged}, killed at step {steps}"
        );
        let report = check(&open(&store));
        assert!(report.is_clean(), "killed at step {steps}: {:?}", report.damages);
        // The log continues from there, past the next checkpoints.
        assert_eq!(hold(&open(&store), only, 500..=570), 570);
        assert_eq!(held_until(&open(&store)), 570);
        assert!(check(&open(&store)).is_clean());
        if !mortal.is_dead() {
            assert_eq!(acknowledged, HOLDS);
            assert!(steps > HOLDS as i64 + 5, "checkpoints take steps, too");
            break;
        }
    }
}

#[test]
fn the_list_of_vms_is_complete_wherever_its_writer_dies() {
    let store = embedded_store();
    let repository = init(&store);
    // One more VM leads to the second checkpoint, behind which records are removed.
    for vm in 0..62 {
        back_up(&repository, &format!("vm{vm}"), &block(vm), false);
    }
    drop(repository);
    assert_eq!(names(&store, "c.d.").len(), 1);
    for steps in 0.. {
        let store = copy(&store);
        let mortal = MortalStore::new(store.clone(), steps);
        let outcome = try_back_up(&open_on(&mortal).unwrap(), "new", &block(99), false);
        let vms = open(&store).vms().unwrap();
        assert!((62..=63).contains(&vms.len()), "killed at step {steps}");
        let report = check(&open(&store));
        assert!(report.is_clean(), "killed at step {steps}: {:?}", report.damages);
        back_up(&open(&store), "new", &block(99), false);
        back_up(&open(&store), "vm61", &block(98), false);
        assert_eq!(open(&store).vms().unwrap().len(), 63);
        if outcome.is_ok() {
            break;
        }
    }
    back_up(&open(&store), "new", &block(99), false);
    assert_eq!(names(&store, "c.d.").len(), 2);
    assert!(names(&store, "d.").contains(&"d.0000000000000000".to_owned()));
    assert!(names(&store, "d.").len() < 40, "{:?}", names(&store, "d."));
}

#[test]
fn one_of_two_checkpoints_may_be_damaged() {
    let (store, only) = single();
    hold(&open(&store), only, 1..=HOLDS);
    let checkpoints = names(&store, "c.v.");
    assert_eq!(checkpoints.len(), 2, "{checkpoints:?}");
    for hurt in &checkpoints {
        let store = damaged(&store, &[hurt]);
        assert_eq!(held_until(&open(&store)), HOLDS, "without {hurt}");
        let report = check(&open(&store));
        assert_eq!(report.damages.len(), 1, "{:?}", report.damages);
        assert!(report.damages[0].what.contains(hurt.as_str()));
        // Further checkpoints replace it.
        hold(&open(&store), only, 1000..=1100);
        assert_eq!(held_until(&open(&store)), 1100);
        let report = check(&open(&store));
        assert!(report.is_clean(), "{:?}", report.damages);
    }
    let hurt: Vec<&str> = checkpoints.iter().map(String::as_str).collect();
    let store = damaged(&store, &hurt);
    let error = open(&store).snapshots(None).unwrap_err();
    assert!(error.is_corruption() && error.to_string().contains(hurt[1]), "{error}");
}

#[test]
fn a_record_covered_by_a_checkpoint_is_needed_only_without_it() {
    let (store, only) = single();
    hold(&open(&store), only, 1..=HOLDS);
    let newest = names(&store, "c.v.").pop().unwrap();
    for hurt in names(&store, "v.") {
        let store = damaged(&store, &[&hurt]);
        let is_covered = format!("c.{hurt}") < newest;
        match open(&store).snapshots(None) {
            Ok(snapshots) => assert!(is_covered && snapshots[0].held_until_ms == HOLDS, "{hurt}"),
            Err(error) => assert!(!is_covered && error.is_corruption(), "{hurt}: {error}"),
        }
        assert!(!check(&open(&store)).is_clean(), "{hurt}");
    }
}

#[test]
fn a_handle_behind_a_newer_checkpoint_starts_over() {
    let (store, only) = single();
    let (slow, fast) = (open(&store), open(&store).behave_as_another_process());
    assert_eq!(held_until(&slow), 0);
    hold(&fast, only, 1..=HOLDS);
    assert!(
        !names(&store, "v.").iter().any(|name| name.ends_with("0003")),
        "the records after its cached state are removed"
    );
    assert_eq!(held_until(&slow), HOLDS);
    hold(&fast, only, 200..=200 + HOLDS);
    hold(&slow, only, 600..=600);
    assert_eq!(held_until(&fast), 600);
    assert!(check(&fast).is_clean());
}

/// The number that a writer has chosen is free again if a checkpoint covers its record and the record was
/// removed. A record created there has no effect, and the writer must not rely on it.
#[test]
fn a_writer_overtaken_by_a_checkpoint_writes_again() {
    let (store, only) = single();
    let watched = MortalStore::new(store.clone(), i64::MAX);
    let slow = open_on(&watched).unwrap();
    assert_eq!(held_until(&slow), 0);
    let fast = open(&store).behave_as_another_process();
    watched.before_put(move || assert_eq!(hold(&fast, only, 1..=HOLDS), HOLDS));
    slow.hold(&[only], 4000).unwrap();
    assert_eq!(held_until(&open(&store)), 4000);
    assert_eq!(held_until(&slow), 4000);
    assert!(check(&slow).is_clean());
}

#[test]
fn a_session_overtaken_by_a_checkpoint_publishes_once() {
    let (store, only) = single();
    for skipped in 0..4 {
        let store = copy(&store);
        let watched = MortalStore::new(store.clone(), i64::MAX);
        let slow = open_on(&watched).unwrap();
        let fast = open(&store).behave_as_another_process();
        interrupt_put(&watched, skipped, move || assert_eq!(hold(&fast, only, 1..=HOLDS), HOLDS));
        let disk = block(5);
        let summary = try_back_up(&slow, "web", &disk, false).unwrap();
        assert_eq!(restore(&open(&store), summary.snapshot), disk.bytes);
        assert_eq!(open(&store).snapshots(None).unwrap().len(), 2);
        assert_eq!(open(&store).stats().unwrap().unfinished_sessions, 0);
    }
}

/// Runs something before the put after `skipped` others.
fn interrupt_put(store: &MortalStore, skipped: u32, what: impl FnOnce() + Send + 'static) {
    let next = store.clone();
    match skipped {
        0 => store.before_put(what),
        _ => store.before_put(move || interrupt_put(&next, skipped - 1, what)),
    }
}
