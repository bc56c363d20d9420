//! Removal of unneeded popular packs: needed ones stay, beside backups and despite crashes.

use crate::fleet_store::*;
use crate::mortal_store::MortalStore;
use crate::popular::{Detector, back_up_with, noise};
use crate::world::*;
use copal_backup::*;
use std::sync::Arc;

/// The disk of a VM of a kind: half of it is the same on all VMs of that kind.
fn of_kind(kind: u64, vm: u64) -> Disk {
    let mut disk = Disk::new(2 << 20);
    disk.write(0, &noise(kind, 500_000));
    disk.write(1 << 20, &noise(100 + vm, 300_000));
    disk.changed.clear();
    disk
}

type Backups = Vec<(SnapshotId, Disk)>;

/// Three VMs of a kind: their common chunks are popular.
fn three(repository: &Repository, kind: u64) -> Backups {
    let detector = Detector::new(repository, 0);
    let made = (0..3).map(|number| {
        let disk = of_kind(kind, kind * 10 + number);
        let name = format!("vm{kind}-{number}");
        let made = back_up_with(repository, &detector, &name, &disk, false).unwrap();
        (made.snapshot, disk)
    });
    made.collect()
}

fn remove_unneeded(repository: &Repository) -> UnneededPacks {
    try_remove(repository).unwrap()
}

fn try_remove(repository: &Repository) -> Result<UnneededPacks> {
    repository.remove_unneeded(false, &Silent, &CancelFlag::new())
}

fn remove_kind(repository: &Repository, kind: u64) {
    for number in 0..3 {
        repository.remove_vm(&format!("vm{kind}-{number}"), true, false).unwrap();
    }
}

fn assert_restores(repository: &Repository, backups: &Backups, when: &str) {
    for (snapshot, disk) in backups {
        assert!(restore(repository, *snapshot) == disk.bytes, "{when}: {snapshot}");
    }
}

#[test]
fn unneeded_packs_are_removed_and_needed_ones_stay() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let (one, two) = (three(&repository, 1), three(&repository, 2));
    let all = repository.popular_status().unwrap();
    assert!(all.packs >= 2 && all.bytes > 900_000, "{all:?}");
    // While one snapshot needs them no packs are removed, even if only one VM of a kind is left.
    assert_eq!(remove_unneeded(&repository), UnneededPacks::default());
    repository.remove_vm("vm1-0", true, false).unwrap();
    repository.remove_vm("vm1-1", true, false).unwrap();
    assert_eq!(remove_unneeded(&repository).removed_packs, 0);
    assert_restores(&open(&store), &one[2..].to_vec(), "one is left");

    repository.remove_vm("vm1-2", true, false).unwrap();
    let planned = repository.remove_unneeded(true, &Silent, &CancelFlag::new()).unwrap();
    assert!(planned.unneeded_packs > 0 && planned.removed_packs == 0, "{planned:?}");
    assert_eq!(repository.popular_status().unwrap(), all, "a dry run changes nothing");
    let removed = remove_unneeded(&repository);
    assert_eq!(removed.gone_packs, planned.unneeded_packs, "{removed:?}");
    assert_eq!(removed.removed_packs, removed.gone_packs, "{removed:?}");
    let left = open(&store).popular_status().unwrap();
    assert_eq!(left.bytes, all.bytes - removed.removed_bytes);
    assert!(left.bytes < all.bytes * 6 / 10 && left.condemned_packs == 0, "{left:?}");
    assert_restores(&open(&store), &two, "the other kind");
    assert!(check(&open(&store)).is_clean());

    // The kind comes back, and its chunks become popular again.
    let again = three(&repository, 1);
    assert_restores(&open(&store), &again, "again");
    assert!(repository.popular_status().unwrap().bytes > all.bytes * 9 / 10);
    remove_kind(&repository, 1);
    remove_kind(&repository, 2);
    remove_unneeded(&repository);
    let none = open(&store).popular_status().unwrap();
    assert_eq!((none.packs, none.frames, none.bytes), (0, 0, 0));
}

/// Chunks in recipes of a VM resolve to popular frames by lists, for as long as the VM exists.
#[test]
fn the_packs_of_moved_chunks_stay() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let alone = of_kind(1, 1);
    let first = back_up(&repository, "alone", &alone, false).snapshot;
    let others = three(&repository, 1);
    let detector = Detector::new(&repository, 0);
    let spool = tempfile::tempdir().unwrap();
    let asked = Collaboration {
        peers: &detector,
        spool_directory: spool.path().to_owned(),
        writer: peers::Writer::of("host"),
        part_bytes: u64::MAX,
    };
    let options = CleanUpOptions::all(24 << 20);
    let moved = repository.clean_up_vm("alone", &asked, options, &Silent, &CancelFlag::new());
    assert!(moved.unwrap().moved > 0);
    drop(others);
    remove_kind(&repository, 1);
    prune(&repository);
    assert_eq!(remove_unneeded(&repository).gone_packs, 0);
    assert_restores(&open(&store), &vec![(first, alone)], "it has moved");
    repository.remove_vm("alone", true, false).unwrap();
    remove_unneeded(&repository);
    assert_eq!(repository.popular_status().unwrap().bytes, 0);
}

/// After a crash at any step everything is readable, and the next run continues.
#[test]
fn a_crash_at_any_step_loses_nothing_and_leaves_nothing() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    three(&repository, 1);
    let two = three(&repository, 2);
    remove_kind(&repository, 1);
    drop(repository);
    let (mut steps, mut deaths) = (0, 0);
    loop {
        let store = copy_fleet(&store);
        let mortal = store.host_for(steps);
        let opened = Repository::open(Arc::new(mortal.clone()), IndexHome::Memory, &Unlock::Insecure);
        let outcome = opened.map(|killed| try_remove(&killed.behave_as_another_process()));
        let is_dead = mortal.is_dead();
        let when = format!("killed at step {steps}: {outcome:?}");
        let repository = open(&store);
        assert_restores(&repository, &two, &when);
        // A condemned chunk can be backed up meanwhile, and is stored anew.
        if steps % 3 == 0 {
            let again = three(&repository, 1);
            assert_restores(&open(&store), &again, &when);
            remove_kind(&repository, 1);
        }
        remove_unneeded(&repository);
        let left = repository.popular_status().unwrap();
        assert!(left.condemned_packs == 0 && left.bytes < 600_000, "{when}: {left:?}");
        assert_restores(&open(&store), &two, &when);
        if !is_dead {
            break;
        }
        deaths += 1;
        steps += 1;
    }
    assert!(deaths > 5, "{deaths}");
}

/// While a backup runs on another host nothing is decided.
#[test]
fn a_running_backup_is_waited_for() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    three(&repository, 1);
    remove_kind(&repository, 1);
    drop(repository);
    let host = || {
        let mortal = store.another_host();
        let opened = Repository::open(Arc::new(mortal.clone()), IndexHome::Memory, &Unlock::Insecure);
        (opened.unwrap().behave_as_another_process(), mortal)
    };
    let (backing_up, mortal) = host();
    let disk = of_kind(3, 3);
    // The backup dies after its first record, and leaves its session.
    let died = Dying(mortal.clone());
    let failed = backing_up.backup(request("busy", &disk, false), &died, &CancelFlag::new());
    assert!(failed.is_err());
    let (other, _) = host();
    let waits = remove_unneeded(&other);
    let names: Vec<&str> = waits.waiting_for.iter().map(|vm| vm.name.as_str()).collect();
    assert_eq!((names, waits.gone_packs), (vec!["busy"], 0));
    other.fence_sessions("busy").unwrap();
    assert!(remove_unneeded(&other).gone_packs > 0);
}

/// Dies before it publishes.
struct Dying(MortalStore);

impl Progress for Dying {
    fn stage(&self, stage: Stage, _what: &str, _total: u64) {
        if stage == Stage::Publish {
            self.0.kill();
        }
    }
}

/// Runs one action at the first snapshot of a walk, and another when the second walk begins.
struct Between<'a> {
    walks: std::sync::atomic::AtomicU32,
    first: std::sync::Mutex<Option<Box<dyn FnOnce() + Send + 'a>>>,
    second: std::sync::Mutex<Option<Box<dyn FnOnce() + Send + 'a>>>,
}

impl Progress for Between<'_> {
    fn stage(&self, stage: Stage, _what: &str, _total: u64) {
        use std::sync::atomic::Ordering;
        if stage == Stage::Walk && self.walks.fetch_add(1, Ordering::SeqCst) == 1 {
            (self.second.lock().unwrap().take().unwrap())();
        }
    }
    fn advance(&self, _delta: u64) {
        let first = self.first.lock().unwrap().take();
        if let Some(first) = first {
            first();
        }
    }
}

/// Keeps a backup waiting, with its session open, until it is released.
struct Gate<'a> {
    inner: &'a Detector<'a>,
    opened: std::sync::Mutex<std::sync::mpsc::Sender<()>>,
    go: std::sync::Mutex<Option<std::sync::mpsc::Receiver<()>>>,
}

impl peers::Peers for Gate<'_> {
    fn begin(&self, vm: uuid::Uuid, turn: peers::Turn) -> std::result::Result<(), String> {
        if let Some(go) = self.go.lock().unwrap().take() {
            self.opened.lock().unwrap().send(()).unwrap();
            go.recv().unwrap();
        }
        self.inner.begin(vm, turn)
    }
    fn end(&self, vm: uuid::Uuid, turn: peers::Turn) {
        self.inner.end(vm, turn);
    }
    fn send(&self, vm: uuid::Uuid, ids: peers::Ids<'_>) -> std::io::Result<u64> {
        self.inner.send(vm, ids)
    }
    fn receive(&self, sent: u64) -> Vec<peers::Answer> {
        self.inner.receive(sent)
    }
    fn ask_again(&self, vm: uuid::Uuid, ids: peers::Ids<'_>) -> std::io::Result<Option<Vec<peers::Answer>>> {
        self.inner.ask_again(vm, ids)
    }
    fn stored(&self) {
        self.inner.stored();
    }
}

/// A session that opens behind the record in its VM's log has its base's popular chunks, and the base is
/// forgotten before the count.
#[test]
fn a_base_that_is_forgotten_between_record_and_count_is_counted() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let made = three(&repository, 1);
    let disk = made[2].1.clone();
    back_up(&repository, "zed", &of_kind(9, 9), false);
    let all: Vec<SnapshotId> = made.iter().map(|(snapshot, _)| *snapshot).collect();
    repository.forget(&all).unwrap();
    prune(&repository);
    drop(repository);
    let host = || {
        let mortal = store.another_host();
        let opened = Repository::open(Arc::new(mortal.clone()), IndexHome::Memory, &Unlock::Insecure);
        opened.unwrap().behave_as_another_process()
    };
    let (remover, backing_up, forgetting) = (host(), host(), host());
    let detector = Detector::new(&backing_up, 0);
    let (opened, is_opened) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel();
    let gate = Gate {
        inner: &detector,
        opened: std::sync::Mutex::new(opened),
        go: std::sync::Mutex::new(Some(goes)),
    };
    let base = std::sync::Mutex::new(None);
    std::thread::scope(|scope| {
        let last = Arc::new(std::sync::Mutex::new(None));
        let second = {
            let (last, base, gate, disk) = (Arc::clone(&last), &base, &gate, &disk);
            let (forgetting, backing_up) = (&forgetting, &backing_up);
            move || {
                let running =
                    scope.spawn(move || back_up_with(backing_up, gate, "vm1-2", disk, true).unwrap());
                is_opened.recv().unwrap();
                let base: SnapshotId = base.lock().unwrap().unwrap();
                forgetting.forget(&[base]).unwrap();
                *last.lock().unwrap() = Some(running);
            }
        };
        let first = || {
            let made = back_up_with(&backing_up, &detector, "vm1-2", &disk, false).unwrap();
            assert!(made.counts.popular_dup_bytes > 0, "{made:?}");
            *base.lock().unwrap() = Some(made.snapshot);
        };
        let between = Between {
            walks: Default::default(),
            first: std::sync::Mutex::new(Some(Box::new(first))),
            second: std::sync::Mutex::new(Some(Box::new(second))),
        };
        let removed = remover.remove_unneeded(false, &between, &CancelFlag::new()).unwrap();
        assert_eq!((removed.spared_packs, removed.gone_packs), (1, 0), "{removed:?}");
        go.send(()).unwrap();
        let running = last.lock().unwrap().take().expect("it was condemned, so there is a second walk");
        let made = running.join().unwrap();
        let restored = try_restore(&open(&store), made.snapshot);
        assert!(restored.as_ref().is_ok_and(|bytes| *bytes == disk.bytes), "{:?}", restored.err());
    });
}
