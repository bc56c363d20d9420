//! Costs of a prune: bytes written for the bytes that it frees.

use crate::mortal_store::{Did, MortalStore};
use crate::world::*;
use copal_backup::*;
use std::sync::Arc;

const MIB: usize = 1 << 20;

/// A disk of three packs, its first backup, and one after each of the writes.
fn written(repository: &Repository, writes: &[(usize, usize)]) -> (Disk, Vec<SnapshotId>) {
    let mut disk = Disk::new(44 * MIB);
    Random::new(200).fill(&mut disk.bytes);
    let mut made = vec![back_up(repository, "web", &disk, false).snapshot];
    for (seed, &(at, length)) in (201..).zip(writes) {
        let mut data = vec![0; length];
        Random::new(seed).fill(&mut data);
        disk.write(at, &data);
        made.push(back_up(repository, "web", &disk, false).snapshot);
    }
    (disk, made)
}

fn default_prune(repository: &Repository) -> PruneSummary {
    repository.prune(&PruneOptions::default(), &Silent, &CancelFlag::new()).unwrap()
}

/// Symptom: a prune of 780 MB wrote 763 of them again to free 17. Cause: a pack with a single dead frame was
/// rewritten. Fix: none is rewritten while at most 5 % of the whole is unused.
#[test]
fn a_prune_rewrites_nothing_while_little_is_unused() {
    let repository = init(&embedded_store());
    let (disk, made) = written(&repository, &[(3 * MIB, MIB / 2), (20 * MIB, MIB / 2), (40 * MIB, MIB / 2)]);
    repository.forget(&made[..3]).unwrap();
    let pruned = default_prune(&repository);
    assert_eq!((pruned.rewritten_packs, pruned.written_bytes), (0, 0), "{pruned:?}");
    assert!(pruned.unused_bytes > MIB as u64, "{pruned:?}");
    assert!(pruned.unused_bytes * 20 <= pruned.after_bytes, "{pruned:?}");
    assert!(restore(&repository, made[3]) == disk.bytes);
    // The rest is freed on request.
    let all = prune(&repository);
    assert!(all.rewritten_packs >= 3 && all.unused_bytes == 0, "{all:?}");
    assert!(restore(&repository, made[3]) == disk.bytes);
}

/// The packs with the largest dead share are rewritten until little is unused: that writes at most twice the
/// freed bytes.
#[test]
fn a_prune_writes_at_most_twice_the_bytes_that_it_frees() {
    let repository = init(&embedded_store());
    // Most of one pack, and a little of the others.
    let (disk, made) = written(&repository, &[(MIB, 11 * MIB), (18 * MIB, MIB / 2), (38 * MIB, MIB / 2)]);
    repository.forget(&made[..3]).unwrap();
    let pruned = default_prune(&repository);
    let freed = pruned.before_bytes - pruned.after_bytes;
    assert!(freed > 10 * MIB as u64, "{pruned:?}");
    assert!(pruned.written_bytes > 0 && pruned.written_bytes <= 2 * freed, "{pruned:?}");
    assert!(pruned.unused_bytes * 20 <= pruned.after_bytes, "{pruned:?}");
    assert!(restore(&repository, made[3]) == disk.bytes);
    assert!(check(&repository).is_clean());
    assert_eq!(default_prune(&repository).written_bytes, 0, "and no more of it");
}

/// Symptom: a prune made the store grow before it freed anything. Cause: the space of rewritten packs was
/// freed at the end. Fix: it is freed before the next packs are written.
#[test]
fn a_prune_frees_the_space_of_a_pack_before_it_writes_the_next() {
    let store = embedded_store();
    let (disk, made) = written(&init(&store), &[(MIB, 5 * MIB), (18 * MIB, 5 * MIB), (34 * MIB, 5 * MIB)]);
    let watched = MortalStore::new(store.clone(), i64::MAX);
    let repository =
        Repository::open(Arc::new(watched.clone()), IndexHome::Memory, &Unlock::Insecure).unwrap();
    repository.forget(&made[..3]).unwrap();
    let pruned = prune(&repository);
    assert!(pruned.rewritten_packs >= 3, "{pruned:?}");
    assert!(restore(&repository, made[3]) == disk.bytes);
    let (mut owed, mut begun) = (Vec::new(), 0);
    for (did, vid) in watched.order() {
        match did {
            Did::Delete => owed.push(vid),
            Did::Reclaim => owed.retain(|other| *other != vid),
            Did::Begin => {
                begun += 1;
                assert_eq!(owed, [], "before file {begun}");
            }
        }
    }
    assert!(begun >= 3, "{begun}");
}

/// Most of a short command is its opening: the requests to the store, not its time, are bounded here.
#[test]
fn an_opening_and_a_listing_make_few_requests_for_each_vm() {
    let store = embedded_store();
    let repository = init(&store);
    let vms: Vec<String> = (0..10).map(|number| format!("vm{number}")).collect();
    for vm in &vms {
        back_up(&repository, vm, &Disk::new(MIB), false);
    }
    drop(repository);
    let watched = MortalStore::new(store, i64::MAX);
    let repository =
        Repository::open(Arc::new(watched.clone()), IndexHome::Memory, &Unlock::Insecure).unwrap();
    let opening = watched.questions();
    assert_eq!(repository.list(None).unwrap().snapshots.len(), vms.len());
    let listing = watched.questions() - opening;
    assert!(opening <= 10 && listing <= 8 * vms.len() as u64, "opening {opening}, listing {listing}");
}
