//! Damage of any byte of a repository is noticed, and never leads to a wrong restore.

use crate::world::*;
use bytes::Bytes;
use copal_backup::*;
use copal_data::LocalStore;
use copal_volume::{PutOptions, VolumeStore};
use std::sync::Arc;

/// A small repository of two snapshots, and their bytes.
fn small() -> (LocalStore, Vec<(SnapshotId, Vec<u8>)>) {
    let store = embedded_store();
    let repository = init(&store);
    let mut disk = Disk::new(6 * BLOCK);
    Random::new(1).text(&mut disk.bytes[..BLOCK + 100]);
    let first = back_up(&repository, "web", &disk, false);
    let snapshot = (first.snapshot, disk.bytes.clone());
    let mut data = vec![0; 300];
    Random::new(2).fill(&mut data);
    disk.write(4 * BLOCK, &data);
    let second = back_up(&repository, "web", &disk, true);
    let snapshots = vec![snapshot, (second.snapshot, disk.bytes.clone())];
    (store, snapshots)
}

fn replace(store: &LocalStore, volume: &str, name: &[u8], body: Option<Vec<u8>>) {
    let vid = store.open_volume(volume).unwrap();
    let info = store.stat(vid, name, &Default::default());
    if let Ok(info) = info {
        store.delete(vid, name, info.fid).unwrap();
    }
    if let Some(body) = body {
        store.put(vid, name, Bytes::from(body), &PutOptions::default()).unwrap();
    }
}

/// Whether the damage was reported. Panics on a wrong restore.
fn is_noticed(store: &LocalStore, snapshots: &[(SnapshotId, Vec<u8>)]) -> bool {
    let opened = Repository::open(Arc::new(store.clone()), IndexHome::Memory, &Unlock::Insecure);
    let Ok(repository) = opened else { return true };
    for (id, bytes) in snapshots {
        if let Ok(restored) = try_restore(&repository, *id) {
            assert_eq!(restored, *bytes, "a wrong restore");
        }
    }
    match repository.check(ReadData::All, &Silent, &CancelFlag::new()) {
        Ok(report) => !report.is_clean(),
        Err(_) => true,
    }
}

#[test]
fn a_flipped_bit_in_any_byte_of_any_file_is_noticed() {
    let (store, snapshots) = small();
    assert!(!is_noticed(&store, &snapshots));
    let mut dice = Random::new(3);
    for (volume, name, body) in files(&store) {
        for at in 0..body.len() {
            let mut damaged = body.clone();
            damaged[at] ^= 1 << dice.below(8);
            replace(&store, &volume, &name, Some(damaged));
            let file = String::from_utf8_lossy(&name).into_owned();
            assert!(is_noticed(&store, &snapshots), "byte {at} of {volume}/{file}");
        }
        replace(&store, &volume, &name, Some(body));
    }
    assert!(!is_noticed(&store, &snapshots));
}

#[test]
fn a_truncated_or_grown_file_is_noticed() {
    let (store, snapshots) = small();
    for (volume, name, body) in files(&store) {
        // The file of an epoch is empty, so it cannot be cut.
        let lengths = (0..body.len()).step_by(7).chain(body.len().checked_sub(1));
        for length in lengths {
            replace(&store, &volume, &name, Some(body[..length].to_vec()));
            let file = String::from_utf8_lossy(&name).into_owned();
            assert!(is_noticed(&store, &snapshots), "{volume}/{file} cut to {length} bytes");
        }
        replace(&store, &volume, &name, Some(body));
    }
}

#[test]
fn a_missing_pack_or_manifest_is_noticed_and_prune_then_removes_nothing() {
    let (store, snapshots) = small();
    for (volume, name, body) in files(&store) {
        if volume.starts_with("cat-") {
            continue;
        }
        replace(&store, &volume, &name, None);
        assert!(is_noticed(&store, &snapshots), "{volume}");
        let stored = || {
            let files = files(&store).into_iter();
            files.filter(|(volume, ..)| !volume.starts_with("cat-")).count()
        };
        let before = stored();
        let outcome = open(&store).prune(&thorough(), &Silent, &CancelFlag::new());
        // A pack of the newer snapshot is missing, so the prune must not sweep.
        if let Err(error) = outcome {
            assert!(error.is_corruption(), "{error}");
            assert_eq!(stored(), before);
        }
        replace(&store, &volume, &name, Some(body));
        assert!(!is_noticed(&store, &snapshots));
    }
}

#[test]
fn all_damages_are_reported_at_once_and_intact_snapshots_can_be_restored() {
    let store = embedded_store();
    let repository = init(&store);
    let mut disk = Disk::new(6 << 20);
    Random::new(4).fill(&mut disk.bytes);
    let hurt = back_up(&repository, "web", &disk, false);
    let mut other = Disk::new(1 << 20);
    Random::new(5).fill(&mut other.bytes);
    let whole = back_up(&repository, "db", &other, false);
    let (volume, name, body) = files(&store)
        .into_iter()
        .filter(|(volume, ..)| volume.starts_with("pds-"))
        .max_by_key(|(_, _, body)| body.len())
        .unwrap();
    let mut damaged = body.clone();
    for at in [100_000, 1_000_000, 5_000_000] {
        damaged[at] ^= 0x40;
    }
    replace(&store, &volume, &name, Some(damaged));
    let repository = open(&store);
    let report = check(&repository);
    let frames = report.damages.iter().filter(|damage| damage.detail.contains("does not open")).count();
    let blocks = report.damages.iter().filter(|damage| damage.detail.contains("hash")).count();
    assert_eq!((frames, blocks), (3, 3), "{:?}", report.damages);
    let verified = repository.verify(hurt.snapshot, &Silent, &CancelFlag::new()).unwrap();
    assert_eq!(verified.damages.len(), 3);
    assert!(verified.damages.iter().all(|damage| damage.snapshots == [hurt.snapshot]));
    assert_eq!(try_restore(&repository, hurt.snapshot).unwrap_err().exit_code(), 20);
    assert_eq!(restore(&repository, whole.snapshot), other.bytes);
}
