//! Chunks and recipes in two packs, one of them damaged: readers and the mark choose the same frame.

use crate::world::*;
use copal_backup::*;
use copal_data::LocalStore;
use std::collections::BTreeSet;

/// A disk of noise, and the store with one backup of it.
fn one_disk(seed: u64) -> (LocalStore, Disk, SnapshotId) {
    let store = embedded_store();
    let mut disk = Disk::new(6 << 20);
    Random::new(seed).text(&mut disk.bytes);
    let first = back_up(&init(&store), "web", &disk, false).snapshot;
    (store, disk, first)
}

/// A copy of a store in which `hurt` has changed the packs of chunks.
fn with_hurt_chunks(store: &LocalStore, mut hurt: impl FnMut(&mut [u8])) -> LocalStore {
    let bad = embedded_store();
    copy_into(store, &bad, |volume, _, body| {
        if volume.starts_with("pds-") {
            hurt(body);
        }
        true
    });
    bad
}

/// Symptom: the end of a pack was damaged. Another VM's backup stored its chunks anew and thus repaired the
/// older snapshot; after a prune that snapshot was lost. Cause: `mark` checked whether the pack of the
/// location exists, and it does. Readers go on to the index if the pack cannot be read. Fix: if several
/// frames are known, `mark` asks the readers' resolver which one they get.
#[test]
fn a_prune_keeps_the_copy_that_repairs_a_damaged_pack() {
    let (store, disk, first) = one_disk(7);
    let bad = with_hurt_chunks(&store, |body| {
        let at = body.len() - 1;
        body[at] ^= 1;
    });
    let repository = open(&bad);
    assert!(try_restore(&repository, first).is_err(), "the damage is seen");
    let second = back_up(&repository, "db", &disk, false).snapshot;
    let repository = open(&bad);
    assert!(restore(&repository, first) == disk.bytes, "healed");
    repository.forget(&[second]).unwrap();
    prune(&repository);
    assert!(restore(&repository, first) == disk.bytes, "and still healed");
    assert!(restore(&open(&bad), first) == disk.bytes, "opened again");
    assert!(check(&repository).is_clean(), "the prune removed the damaged pack");
}

/// Symptom: a chunk was damaged, the disk was backed up again with `--full` as the manual says, and the new
/// snapshot could not be restored either. After forgetting the damaged snapshots, none was left. Cause: the
/// chunk was known by its index row, and its frame was not decrypted. Fix: a full backup decrypts a frame
/// before it refers to it, and stores the chunk anew if that fails.
#[test]
fn a_full_backup_stores_a_damaged_chunk_anew() {
    let (store, disk, first) = one_disk(7);
    let bad = with_hurt_chunks(&store, |body| {
        let at = body.len() / 2;
        body[at] ^= 1;
    });
    // Nothing has been read since.
    let repository = open(&bad);
    let mut full = request("web", &disk, false);
    full.full = true;
    let summary = repository.backup(full, &Silent, &CancelFlag::new()).unwrap();
    assert_eq!(summary.counts.new_chunks, 1, "the lost one and no other");
    assert!(restore(&repository, summary.snapshot) == disk.bytes);
    assert!(restore(&repository, first) == disk.bytes, "healed by the copy");
    let report = check(&repository);
    assert!(!report.is_clean(), "the damaged frame is still there");
    assert!(
        report.damages.iter().all(|damage| damage.snapshots.is_empty()),
        "and affects no snapshot: {:?}",
        report.damages
    );
    repository.forget(&[first]).unwrap();
    prune(&repository);
    assert!(restore(&repository, summary.snapshot) == disk.bytes);
    let repository = open(&bad);
    assert!(restore(&repository, summary.snapshot) == disk.bytes, "opened again");
    assert!(check(&repository).is_clean());
}

/// Symptom: as above, for a backup after a `check`, `verify` or `restore` that had found the damage. Cause:
/// these only reported the damage. Fix: a damaged frame leaves the index, and a recipe that names one is
/// written anew.
#[test]
fn a_backup_after_a_check_stores_damaged_chunks_anew() {
    for finder in ["check", "verify", "restore"] {
        let (store, disk, first) = one_disk(8);
        let bad = with_hurt_chunks(&store, |body| {
            let at = body.len() / 2;
            body[at] ^= 1;
        });
        let repository = open(&bad);
        match finder {
            "check" => assert!(!check(&repository).is_clean()),
            "verify" => {
                let report = repository.verify(first, &Silent, &CancelFlag::new()).unwrap();
                assert!(!report.is_clean());
            }
            _ => assert!(try_restore(&repository, first).is_err()),
        }
        let again = back_up(&repository, "web", &disk, false);
        assert_eq!(again.counts.new_chunks, 1, "{finder}");
        assert!(restore(&repository, again.snapshot) == disk.bytes, "{finder}");
        assert!(restore(&repository, first) == disk.bytes, "{finder}");
        let third = back_up(&repository, "web", &disk, false);
        assert_eq!(third.counts.stored_bytes / 2000, 0, "{finder}: healed once, not each time");
    }
}

/// Snapshots that can be restored.
fn readable(repository: &Repository, snapshots: &[SnapshotId]) -> BTreeSet<SnapshotId> {
    let readable = snapshots.iter().copied();
    readable.filter(|id| try_restore(repository, *id).is_ok()).collect()
}

/// The common rule, under any damage of any packs: a prune removes no frame that a reader could read.
#[test]
fn a_prune_removes_no_frame_that_a_reader_could_read() {
    let (mut hurt_before, mut healed) = (0, 0);
    for seed in 0..24 {
        let mut dice = Random::new(1000 + seed);
        let store = embedded_store();
        let repository = init(&store);
        let mut disk = Disk::new(5 << 19);
        dice.fill(&mut disk.bytes[..1 << 20]);
        let mut snapshots = vec![back_up(&repository, "web", &disk, false).snapshot];
        let mut data = vec![0; 200_000];
        dice.fill(&mut data);
        disk.write(300_000, &data);
        snapshots.push(back_up(&repository, "web", &disk, true).snapshot);
        drop(repository);
        let mut spoil = |store: &LocalStore, chance: u64| {
            let bad = embedded_store();
            copy_into(store, &bad, |volume, _, body| {
                let is_pack =
                    volume.starts_with("pds-") || (volume.starts_with("vm-") && !volume.ends_with(".meta"));
                if is_pack && dice.below(chance) == 0 {
                    // Footers and trailers are small: hit them as often as the frames.
                    let from = if dice.below(2) == 0 { 0 } else { body.len() - 600.min(body.len()) };
                    let at = from + dice.below((body.len() - from) as u64) as usize;
                    body[at] ^= 1 << dice.below(8);
                }
                true
            });
            bad
        };
        let store = spoil(&store, 2);
        let repository = open(&store);
        hurt_before += snapshots.len() - readable(&repository, &snapshots).len();
        // New backups store lost chunks and some others, in packs that may be damaged in turn.
        for vm in ["web", "db"] {
            let mut request = request(vm, &disk, false);
            request.full = true;
            if let Ok(summary) = repository.backup(request, &Silent, &CancelFlag::new()) {
                snapshots.push(summary.snapshot);
            }
        }
        drop(repository);
        let store = spoil(&store, 6);
        let repository = open(&store);
        let could = readable(&repository, &snapshots);
        healed += could.len();
        let doomed: Vec<_> = snapshots[2..].iter().copied().filter(|_| seed % 2 == 0).collect();
        repository.forget(&doomed).unwrap();
        let could: BTreeSet<_> = could.into_iter().filter(|id| !doomed.contains(id)).collect();
        let pruned = repository.prune(&thorough(), &Silent, &CancelFlag::new());
        if let Err(error) = &pruned {
            assert!(error.is_corruption(), "seed {seed}: {error}");
        }
        let still = readable(&repository, &snapshots);
        assert!(could.is_subset(&still), "seed {seed}: {could:?} could be read, {still:?} can");
        let again = readable(&open(&store), &snapshots);
        assert!(could.is_subset(&again), "seed {seed}, opened again: {could:?} could be read, {again:?} can");
    }
    assert!(hurt_before > 20 && healed > 30, "{hurt_before} were hurt, {healed} restored later");
}
