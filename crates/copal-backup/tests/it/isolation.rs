//! Damage stays where it is: what is whole is found, listed, restored; what is hurt is named.

use crate::world::*;
use copal_backup::*;
use copal_volume::MemoryStore;
use std::collections::BTreeSet;

/// A store where one bit of a file was flipped.
fn flipped(store: &MemoryStore, volume: &str, name: &[u8], at: usize) -> MemoryStore {
    let copied = MemoryStore::new();
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

/// Symptom: one damaged manifest made `snapshots`, and `restore` of every other snapshot by its id, end with exit code 20;
/// the damaged snapshot could not be forgotten, so nothing could be pruned either.
/// Cause: to find a snapshot by its id, the manifests of all of them were decoded.
/// Fix: ids come from the records that published them; one manifest is decoded, that of the snapshot that is meant.
#[test]
fn a_damaged_manifest_stops_nothing_but_its_own_snapshot() {
    let store = MemoryStore::new();
    let repository = init(&store);
    let mut disk = Disk::new(1 << 20);
    Dice::new(30).fill(&mut disk.bytes);
    let first = back_up(&repository, "web", &disk, false);
    let before = disk.bytes.clone();
    disk.write(0, &[7; 5000]);
    let second = back_up(&repository, "web", &disk, true);
    let other = back_up(&repository, "db", &disk, false);
    drop(repository);
    let (volume, name, body) = files(&store)
        .into_iter()
        .find(|(_, name, _)| *name == manifest_of(second.snapshot))
        .unwrap();
    let store = flipped(&store, &volume, &name, body.len() / 2);
    let repository = open(&store);

    let listed = repository.snapshots(None).unwrap();
    let ids: BTreeSet<SnapshotId> = listed.iter().map(|snapshot| snapshot.id).collect();
    assert_eq!(ids, [first.snapshot, second.snapshot, other.snapshot].into());
    for (snapshot, bytes) in [(first.snapshot, &before), (other.snapshot, &disk.bytes)] {
        let found = repository.resolve(&snapshot.short(), None).unwrap();
        assert_eq!(restore(&repository, found.id), *bytes);
    }
    assert_eq!(
        repository.resolve("latest", Some("db")).unwrap().id,
        other.snapshot
    );
    // The newest of `web` is damaged: an older one is not passed off as it.
    let latest = repository.resolve("latest", Some("web")).unwrap_err();
    assert_eq!(latest.exit_code(), 20, "{latest}");
    let hurt = repository.resolve(&second.snapshot.short(), None).unwrap_err();
    assert_eq!(hurt.exit_code(), 20, "{hurt}");
    assert_eq!(repository.stats().unwrap().snapshots, 3);

    // Prune cannot know what it names, says what to do, and goes on once it is forgotten.
    let refused = repository
        .prune(&PruneOptions::default(), &Silent, &CancelFlag::new())
        .unwrap_err();
    assert_eq!(refused.exit_code(), 20);
    let sentence = refused.to_string();
    assert!(
        sentence.contains(&format!("copal forget {}", second.snapshot.short())),
        "{sentence}"
    );
    repository.forget(&[second.snapshot]).unwrap();
    prune(&repository);
    assert!(check(&repository).is_clean());
    assert_eq!(restore(&repository, first.snapshot), before);
    assert_eq!(restore(&repository, other.snapshot), disk.bytes);
}
