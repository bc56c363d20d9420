//! Damage is contained: intact parts are found, listed and restored; affected snapshots are named.

use crate::world::*;
use copal_backup::*;
use copal_data::LocalStore;
use std::collections::BTreeSet;

/// A copy of a store with one bit of a file flipped.
fn flipped(store: &LocalStore, volume: &str, name: &[u8], at: usize) -> LocalStore {
    let copied = embedded_store();
    copy_into(store, &copied, |one, file, body| {
        if one == volume && file == name {
            body[at] ^= 0x40;
        }
        true
    });
    copied
}

fn manifest_of(snapshot: SnapshotId) -> Vec<u8> {
    format!("m.{snapshot}").into_bytes()
}

/// Symptom: one damaged manifest made `snapshots`, and `restore` of every other snapshot by its id, end with
/// exit code 20. The damaged snapshot could not be forgotten, so nothing could be pruned either. Cause: to
/// find a snapshot by its id, the manifests of all of them were decoded. Fix: ids come from the Publish
/// records; only the manifest of the requested snapshot is decoded.
#[test]
fn a_damaged_manifest_affects_only_its_own_snapshot() {
    let store = embedded_store();
    let repository = init(&store);
    let mut disk = Disk::new(1 << 20);
    Random::new(30).fill(&mut disk.bytes);
    let first = back_up(&repository, "web", &disk, false);
    let before = disk.bytes.clone();
    disk.write(0, &[7; 5000]);
    let second = back_up(&repository, "web", &disk, true);
    let other = back_up(&repository, "db", &disk, false);
    drop(repository);
    let (volume, name, body) =
        files(&store).into_iter().find(|(_, name, _)| *name == manifest_of(second.snapshot)).unwrap();
    let store = flipped(&store, &volume, &name, body.len() / 2);
    let repository = open(&store);

    let listed = repository.snapshots(None).unwrap();
    let ids: BTreeSet<SnapshotId> = listed.iter().map(|snapshot| snapshot.id).collect();
    assert_eq!(ids, [first.snapshot, second.snapshot, other.snapshot].into());
    for (snapshot, bytes) in [(first.snapshot, &before), (other.snapshot, &disk.bytes)] {
        let found = repository.resolve(&snapshot.short(), None).unwrap();
        assert_eq!(restore(&repository, found.id), *bytes);
    }
    assert_eq!(repository.resolve("latest", Some("db")).unwrap().id, other.snapshot);
    // The newest snapshot of `web` is damaged: an older one is not returned in its place.
    let latest = repository.resolve("latest", Some("web")).unwrap_err();
    assert_eq!(latest.exit_code(), 20, "{latest}");
    let hurt = repository.resolve(&second.snapshot.short(), None).unwrap_err();
    assert_eq!(hurt.exit_code(), 20, "{hurt}");
    assert_eq!(repository.stats().unwrap().snapshots, 3);

    // A prune cannot know the references of the damaged snapshot. It reports the remedy, and goes on once the
    // snapshot is forgotten.
    let refused = repository.prune(&thorough(), &Silent, &CancelFlag::new()).unwrap_err();
    assert_eq!(refused.exit_code(), 20);
    let sentence = refused.to_string();
    assert!(sentence.contains(&format!("copal forget {}", second.snapshot.short())), "{sentence}");
    repository.forget(&[second.snapshot]).unwrap();
    prune(&repository);
    assert!(check(&repository).is_clean());
    assert_eq!(restore(&repository, first.snapshot), before);
    assert_eq!(restore(&repository, other.snapshot), disk.bytes);
}

/// Symptom: with one damaged record in the log of `db`, no snapshot of `web` could be restored, forgotten or
/// held, with `--vm web` or without; `snapshots` showed nothing. Cause: to find a snapshot by its id the logs
/// of all VMs are read, and the first damaged one ended the search. Fix: the search goes on, and reports the
/// damage if nothing is found or if the damaged log may hide a better match.
#[test]
fn a_damaged_log_of_one_vm_affects_no_other_vm() {
    let store = embedded_store();
    let repository = init(&store);
    let mut disk = Disk::new(1 << 20);
    Random::new(33).fill(&mut disk.bytes);
    let hidden = back_up(&repository, "db", &disk, false);
    let first = back_up(&repository, "web", &disk, false);
    let before = disk.bytes.clone();
    disk.write(0, &[7; 5000]);
    let second = back_up(&repository, "web", &disk, true);
    let vm = repository.resolve("latest", Some("db")).unwrap().vm;
    drop(repository);
    let (volume, name, body) = files(&store)
        .into_iter()
        .rfind(|(volume, name, _)| {
            let name = String::from_utf8_lossy(name);
            volume.starts_with("cat-") && name.contains(&vm.uuid.simple().to_string())
        })
        .unwrap();
    let store = flipped(&store, &volume, &name, body.len() / 2);
    let repository = open(&store);

    for (snapshot, bytes) in [(first.snapshot, &before), (second.snapshot, &disk.bytes)] {
        for vm in [None, Some("web")] {
            let found = repository.resolve(&snapshot.short(), vm).unwrap();
            assert_eq!(restore(&repository, found.id), *bytes);
        }
    }
    let latest = repository.resolve("latest", Some("web")).unwrap();
    assert_eq!(latest.id, second.snapshot);
    // A question about all VMs, or about an unknown snapshot, may have its answer in the damaged log.
    let few_digits = &first.snapshot.to_string()[..5];
    for spec in [&*hidden.snapshot.to_string(), "latest", few_digits] {
        let error = repository.resolve(spec, None).unwrap_err();
        assert_eq!(error.exit_code(), 20, "{spec}: {error}");
    }
    assert_eq!(repository.snapshots(None).unwrap_err().exit_code(), 20);
    let listing = repository.list(None).unwrap();
    let ids: Vec<SnapshotId> = listing.snapshots.iter().map(|snapshot| snapshot.id).collect();
    assert_eq!(ids, [first.snapshot, second.snapshot]);
    assert_eq!(listing.damaged.len(), 1);
    assert_eq!(listing.damaged[0].0, vm);

    repository.hold(&[second.snapshot], u64::MAX).unwrap();
    repository.forget(&[first.snapshot]).unwrap();
    assert_eq!(repository.snapshots(Some("web")).unwrap().len(), 1);
    let unknown = repository.forget(&[hidden.snapshot]).unwrap_err();
    assert_eq!(unknown.exit_code(), 20, "{unknown}");
    // Nothing is freed while a log is damaged.
    let refused = repository.prune(&thorough(), &Silent, &CancelFlag::new()).unwrap_err();
    assert_eq!(refused.exit_code(), 20, "{refused}");
}

/// Three snapshots of `web` and one of `db` with the same first half, and one of `mail` that shares nothing.
fn shared_half() -> (LocalStore, Vec<SnapshotId>, SnapshotId) {
    let store = embedded_store();
    let repository = init(&store);
    let mut disk = Disk::new(6 << 20);
    Random::new(31).fill(&mut disk.bytes[..3 << 20]);
    let mut hurt = vec![back_up(&repository, "web", &disk, false).snapshot];
    for round in 0..2u8 {
        disk.changed.clear();
        let at = (4 + usize::from(round)) << 20;
        disk.write(at, &[round + 1; 100_000]);
        hurt.push(back_up(&repository, "web", &disk, round == 0).snapshot);
    }
    hurt.push(back_up(&repository, "db", &disk, false).snapshot);
    let mut other = Disk::new(100 << 10);
    Random::new(32).fill(&mut other.bytes);
    let whole = back_up(&repository, "mail", &other, false).snapshot;
    (store, hurt, whole)
}

/// All snapshots that a check names, for any damage.
fn named(report: &CheckReport) -> BTreeSet<SnapshotId> {
    let damages = report.damages.iter();
    damages.flat_map(|damage| damage.snapshots.iter().copied()).collect()
}

/// Snapshots that cannot be restored.
fn lost(repository: &Repository, snapshots: &[SnapshotId]) -> BTreeSet<SnapshotId> {
    let mut lost = BTreeSet::new();
    for &snapshot in snapshots {
        if try_restore(repository, snapshot).is_err() {
            lost.insert(snapshot);
        }
    }
    lost
}

/// Symptom: `check --read-data` named no snapshot, or only the oldest, for a damaged chunk or recipe of
/// several snapshots. After forgetting the named ones, as the manual says, snapshots that cannot be restored
/// remained. Cause: damage found by a scan of a pack was noted without a snapshot, and a walk skips parts
/// that an older snapshot shares. Fix: if there is damage, a second walk checks for every snapshot whether it
/// leads to a damaged place.
#[test]
fn a_check_names_every_snapshot_affected_by_damage() {
    let (store, hurt, whole) = shared_half();
    let all: Vec<SnapshotId> = hurt.iter().copied().chain([whole]).collect();
    let mut tried = 0;
    let mut several = 0;
    for (volume, name, body) in files(&store) {
        if volume.starts_with("cat-") || name.starts_with(b"m.") {
            continue;
        }
        let places = 4;
        for place in 0..places {
            let store = flipped(&store, &volume, &name, body.len() * place / places);
            let repository = open(&store);
            let report = check(&repository);
            assert!(!report.is_clean(), "{volume}, place {place}");
            let lost = lost(&repository, &all);
            assert_eq!(named(&report), lost, "{volume}, place {place}: {:?}", report.damages);
            tried += 1;
            several += usize::from(lost.len() > 1);
        }
        // A missing pack affects every snapshot that refers to it.
        let gone = embedded_store();
        copy_into(&store, &gone, |one, file, _| (one, file) != (&volume, &name[..]));
        let repository = open(&gone);
        let lost = lost(&repository, &all);
        assert_eq!(named(&check(&repository)), lost, "{volume}, missing");
        let structure = repository.check(ReadData::No, &Silent, &CancelFlag::new()).unwrap();
        assert_eq!(named(&structure), lost, "{volume}, missing");
    }
    assert!(tried > 20 && several > 5, "{tried} places, {several} hurt several");
}
