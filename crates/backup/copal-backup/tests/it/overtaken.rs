//! Processes that stop between two requests, and go on when others have changed the repository.

use crate::consolidate::{alone, assert_restores, host, small_clone, try_clean_up};
use crate::fleet_store::*;
use crate::mortal_store::Call;
use crate::popular::Detector;
use crate::world::*;
use copal_backup::*;
use copal_volume::VolumeStore;
use std::sync::{Arc, Mutex};

/// A disk with a MiB of noise for each seed, and holes behind.
fn noise(seeds: &[u64]) -> Disk {
    let mut disk = Disk::new(4 << 20);
    for (bytes, seed) in disk.bytes.chunks_mut(1 << 20).zip(seeds) {
        Random::new(*seed).fill(bytes);
    }
    disk
}

/// Symptom: a VM could not be backed up until a repair, since the list of its dead frames was missing. Cause: a prune
/// that recorded that no frame is dead deleted all lists that it then found, also that of a prune which had gone on
/// meanwhile. Fix: it deletes lists up to the end of the log that it has read; numbers of lists follow those of records.
#[test]
fn a_slow_prune_leaves_the_list_of_a_later_one() {
    let store = fleet_store();
    drop(init_as(&store, FLEET));
    let ((slow, life), (other, _)) = (host(&store), host(&store));
    let first = back_up(&slow, "web", &noise(&[1]), false).snapshot;
    let kept = back_up(&slow, "web", &noise(&[2]), false).snapshot;
    slow.forget(&[first]).unwrap();
    life.before(Call::List, b"dead.", move || {
        let mixed = back_up(&other, "web", &noise(&[2, 3, 4, 5]), false).snapshot;
        back_up(&other, "web", &noise(&[2, 4, 5]), false);
        other.forget(&[mixed]).unwrap();
        other.delete(&Silent, &CancelFlag::new()).unwrap();
        assert!(other.vm_stats("web").unwrap().dead_frames > 10, "a list is in force");
    });
    prune(&slow);
    let (next, _) = host(&store);
    let again = back_up(&next, "web", &noise(&[3, 4]), false);
    assert!(again.counts.new_bytes > 1 << 19, "dead frames were referred to: {:?}", again.counts);
    assert_eq!(restore(&next, kept), noise(&[2]).bytes);
    prune(&next);
    assert!(check(&next).is_clean());
    assert_eq!(restore(&next, again.snapshot), noise(&[3, 4]).bytes);
}

/// No list gets the name of an earlier one: where a store takes no condition with a delete, one that comes about late
/// would remove it.
#[test]
fn names_of_lists_do_not_come_back() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let lists = || {
        let names = files(&store).into_iter().map(|(_, name, _)| name);
        names.filter(|name| name.starts_with(b"dead.")).collect::<Vec<_>>()
    };
    let mut seen = Vec::new();
    for round in 0..3 {
        let gone = back_up(&repository, "web", &noise(&[1, 2, 3]), false).snapshot;
        back_up(&repository, "web", &noise(&[1, 2]), false);
        repository.forget(&[gone]).unwrap();
        repository.delete(&Silent, &CancelFlag::new()).unwrap();
        let now = lists();
        assert!(
            !now.is_empty() && !now.iter().any(|list| seen.contains(list)),
            "round {round}: {now:?} {seen:?}"
        );
        seen.extend(now);
        let all: Vec<SnapshotId> = repository.snapshots(None).unwrap().iter().map(|one| one.id).collect();
        repository.forget(&all).unwrap();
        prune(&repository);
        assert_eq!(lists(), Vec::<Vec<u8>>::new(), "nothing is dead");
    }
}

/// Symptom: an agent was not in the list although its record was stored. Cause: others had written two newer records
/// and deleted the one of its number. Fix: it looks again behind its record.
#[test]
fn an_agent_whose_record_was_overtaken_is_listed_again() {
    let store = fleet_store();
    drop(init_as(&store, FLEET));
    let ((slow, life), (other, _)) = (host(&store), host(&store));
    let agent = |vm: &str| ListedAgent {
        name: "h1".into(),
        holder: HolderId([1; 16]),
        vms: vec![vm.into()],
        more_vms: 0,
    };
    slow.list_agent(&agent("one")).unwrap();
    let later = [agent("two"), agent("three")];
    life.before_put(move || later.iter().for_each(|agent| other.list_agent(agent).unwrap()));
    slow.list_agent(&agent("four")).unwrap();
    assert_eq!(slow.listed_agents().unwrap(), [agent("four")]);
}

/// Symptom: a prune beside a delete of another host ended with "the manifest is damaged: it is missing", and so did the
/// removal of unneeded popular packs. Cause: the other host had freed the snapshot after the log was read. Fix: a file
/// that cannot be read is damaged only if its snapshot still exists.
#[test]
fn a_walk_over_snapshots_that_are_freed_meanwhile_reports_no_damage() {
    type Walk = fn(&Repository) -> u64;
    let walks: [(Walk, u64); 2] = [
        (|slow| prune(slow).busy_vms, 1),
        (|slow| slow.remove_unneeded(false, &Silent, &CancelFlag::new()).unwrap().gone_packs, 0),
    ];
    for (walk, expected) in walks {
        for is_removed in [false, true] {
            let store = fleet_store();
            drop(init_as(&store, FLEET));
            let ((slow, life), (other, _)) = (host(&store), host(&store));
            let first = back_up(&slow, "web", &noise(&[1]), false).snapshot;
            back_up(&slow, "web", &noise(&[2]), false);
            life.before(Call::Get, b"m.", move || {
                if is_removed {
                    other.remove_vm("web", true, false).unwrap();
                } else {
                    other.forget(&[first]).unwrap();
                    other.delete(&Silent, &CancelFlag::new()).unwrap();
                }
            });
            assert_eq!(walk(&slow), expected);
            let (next, _) = host(&store);
            prune(&next);
            assert!(check(&next).is_clean());
        }
    }
}

/// Symptom: a published snapshot lost its chunks. Cause: a slow process deleted a listed pack by its name. Another one had
/// completed the removal, a create of the pack had come about late, and a backup had referred to it. Fix: a process deletes
/// the file that it found before it saw the list once more.
#[test]
fn a_slow_removal_leaves_a_pack_that_came_about_again() {
    let store = fleet_store();
    drop(init_as(&store, FLEET));
    let ((slow, life), (dying, its_life), (other, _)) = (host(&store), host(&store), host(&store));
    let first = back_up(&dying, "web", &noise(&[1, 2]), false).snapshot;
    back_up(&dying, "web", &noise(&[3]), false);
    let packs = || files(&store).into_iter().filter(|(volume, ..)| volume.contains(".c"));
    let before: Vec<_> = packs().collect();
    dying.forget(&[first]).unwrap();
    let its_end = its_life.clone();
    its_life.before(Call::Delete, b"", move || its_end.kill());
    dying.prune(&thorough(), &Silent, &CancelFlag::new()).unwrap_err();
    assert_eq!(packs().count(), before.len(), "a pack is listed and not removed");

    let made = Arc::new(Mutex::new(None));
    let (late, told) = (store.clone(), made.clone());
    life.before(Call::Stat, b"", move || {
        back_up(&other, "web", &noise(&[3, 4]), false);
        let left: Vec<_> = files(&late).into_iter().map(|(_, name, _)| name).collect();
        let mut came = 0;
        for (volume, name, body) in before.into_iter().filter(|(_, name, _)| !left.contains(name)) {
            let vid = late.open_volume(&volume).unwrap();
            late.put(vid, &name, body.into(), &Default::default()).unwrap();
            came += 1;
        }
        assert!(came > 0, "the other host has completed the removal");
        *told.lock().unwrap() = Some(back_up(&other, "web", &noise(&[1, 2]), false));
    });
    prune(&slow);
    let again = made.lock().unwrap().take().expect("the slow host looks at a listed pack");
    let (next, _) = host(&store);
    assert_eq!(restore(&next, again.snapshot), noise(&[1, 2]).bytes, "{:?}", again.counts);
    prune(&next);
    assert!(check(&next).is_clean());
}

/// Symptom: `copal pds cleanup` beside `copal delete` ended with "the list of dead frames is damaged: it is missing". Cause:
/// the delete had replaced the list after the log was read. Fix: the log is read again.
#[test]
fn a_list_that_is_replaced_meanwhile_is_no_damage() {
    for reads_before in 0..3 {
        let store = fleet_store();
        let repository = init_as(&store, FLEET);
        let all = alone(&repository, &["web", "db"], small_clone);
        drop(repository);
        let ((slow, life), (other, _)) = (host(&store), host(&store));
        let free_some = |host: &Repository, seed: u64| {
            let mut disk = small_clone(1);
            disk.write(1 << 20, &noise(&[seed]).bytes[..300_000]);
            let gone = back_up(host, "db", &disk, false).snapshot;
            host.forget(&[gone]).unwrap();
            host.delete(&Silent, &CancelFlag::new()).unwrap();
        };
        free_some(&other, 1);
        let detector = Detector::new(&other, 0);
        try_clean_up(&other, &detector, "web").unwrap();
        free_some(&other, 2);
        let (again, _) = host(&store);
        let life_again = life.clone();
        let act = move || free_some(&again, 3);
        // At the first, second and third read of a list.
        match reads_before {
            0 => life.before(Call::Get, b"dead.", act),
            1 => life.before(Call::Get, b"dead.", move || life_again.before(Call::Get, b"dead.", act)),
            _ => life.before(Call::Get, b"dead.", move || {
                let later = life_again.clone();
                life_again.before(Call::Get, b"dead.", move || later.before(Call::Get, b"dead.", act));
            }),
        }
        match reads_before {
            0 => drop(slow.vm_stats("db").unwrap()),
            _ => drop(try_clean_up(&slow, &detector, "db").unwrap()),
        }
        let (next, _) = host(&store);
        assert_restores(&next, &all, "cleaned up beside a delete");
        prune(&next);
        assert!(check(&next).is_clean());
    }
}
