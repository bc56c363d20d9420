//! Sessions in a fleet on several servers: a live holder keeps its VM, and a silent one loses it.

use crate::fleet_store::*;
use crate::mortal_store::MortalStore;
use crate::world::*;
use copal_backup::*;
use copal_volume::{ManualClock, RemoveMode, VolumeStore};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const HOUR_MS: u64 = 3600 * 1000;

/// Runs something once, when a stage begins.
struct At<F: FnOnce() + Send>(Stage, Mutex<Option<F>>);

impl<F: FnOnce() + Send> Progress for At<F> {
    fn stage(&self, stage: Stage, _what: &str, _total: u64) {
        if stage == self.0
            && let Some(act) = self.1.lock().unwrap().take()
        {
            act();
        }
    }
}

/// A fleet whose store has a settable clock.
struct Servers {
    store: FleetStore,
    clock: Arc<ManualClock>,
}

impl Servers {
    fn new() -> Servers {
        let clock = Arc::new(ManualClock::new(1_800_000_000_000));
        let store = fleet_store_at(clock.clone());
        init_as(&store, FLEET);
        Servers { store, clock }
    }

    /// A host, and the store by which it can be killed.
    fn host(&self) -> (Repository, MortalStore) {
        let mortal = self.store.another_host();
        let opened = Repository::open(Arc::new(mortal.clone()), IndexHome::Memory, &Unlock::Insecure);
        (opened.unwrap().behave_as_another_process(), mortal)
    }
}

fn disk(seed: u64) -> Disk {
    let mut disk = Disk::new(3 << 20);
    Random::new(seed).fill(&mut disk.bytes);
    disk
}

fn request_of(name: &str, disk: &Disk) -> BackupRequest {
    let mut request = request("web", disk, false);
    request.holder = Holder { name: name.into(), address: format!("{name}.example:7600") };
    request
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_backup_is_refused_with_the_holders_name_and_may_run_ten_minutes_after_its_silence() {
    let servers = Servers::new();
    let ((first, life), (second, _)) = (servers.host(), servers.host());
    let (old, new) = (disk(1), disk(2));
    let mut watch = LeaseWatch::new();
    let refused = |second: &Repository| {
        let refused = second.backup(request_of("second", &new), &Silent, &CancelFlag::new()).unwrap_err();
        assert_eq!((refused.exit_code(), refused.code(), refused.is_retryable()), (11, "busy", true));
        refused.to_string()
    };
    let at_read = At(
        Stage::Read,
        Mutex::new(Some(|| {
            servers.clock.set(1_800_000_000_000 + 42_000);
            let sentence = refused(&second);
            for part in [
                "VM web",
                "by first (first.example:7600)",
                "42 s old",
                "--wait 30m",
                "copal sessions fence web",
            ] {
                assert!(sentence.contains(part), "{part}: {sentence}");
            }
            let sessions = second.sessions().unwrap();
            assert_eq!(sessions.len(), 1);
            let [open] = &sessions[0].1[..] else {
                panic!("{sessions:?}");
            };
            let info = open.info.clone().unwrap();
            assert_eq!(open.holder, Some(info.holder));
            assert_eq!((&*info.name, info.newest_beat_number, info.beat_age_ms), ("first", 1, 42_000));
            // The refused backup has ended and left nothing.
            assert_eq!(second.holders().unwrap(), [info]);
            // The second host begins to watch, and the first one dies.
            assert_eq!(second.watch_vm("web", &mut watch, seconds(5000)).unwrap(), *sessions[0].1);
            life.kill();
        })),
    );
    let died = first.backup(request_of("first", &old), &at_read, &CancelFlag::new());
    assert!(died.is_err() && life.is_dead());
    drop((at_read, first));

    // The store's clock makes no holder dead.
    servers.clock.set(1_800_000_000_000 + 72 * HOUR_MS);
    assert_eq!(second.watch_vm("web", &mut watch, seconds(5599)).unwrap().len(), 1);
    assert!(second.watch_leases(&mut watch, seconds(5599)).unwrap().is_empty());
    let sentence = refused(&second);
    assert!(sentence.contains("72 h old"), "{sentence}");
    // Nor alive.
    servers.clock.set(1_700_000_000_000);
    assert!(refused(&second).contains("0 s old"));
    let fenced = second.watch_leases(&mut watch, seconds(5600)).unwrap();
    assert_eq!(fenced.len(), 1, "{fenced:?}");
    assert_eq!(fenced[0].vm.name, "web");
    assert!(second.watch_vm("web", &mut watch, seconds(5600)).unwrap().is_empty());
    assert!(second.sessions().unwrap().is_empty());
    let summary = second.backup(request_of("second", &new), &Silent, &CancelFlag::new()).unwrap();
    assert_eq!(restore(&second, summary.snapshot), new.bytes);
    assert!(check(&second).is_clean());
    // A week later the heartbeats of the dead holder are deleted.
    assert_eq!(second.holders().unwrap().len(), 1);
    servers.clock.set(1_800_000_000_000 + 200 * HOUR_MS);
    drop(second.beat(&Holder::default()).unwrap());
    assert!(second.holders().unwrap().is_empty());
}

#[test]
fn a_session_that_was_taken_for_dead_publishes_nothing() {
    let servers = Servers::new();
    let ((first, _), (second, _)) = (servers.host(), servers.host());
    let (old, new) = (disk(1), disk(2));
    let at_publish = At(
        Stage::Publish,
        Mutex::new(Some(|| {
            let mut watch = LeaseWatch::new();
            // The observer's clock runs wild: only this backup is lost.
            for now in [0, 600] {
                second.watch_leases(&mut watch, seconds(now)).unwrap();
            }
            assert!(second.sessions().unwrap().is_empty());
            second.backup(request_of("second", &new), &Silent, &CancelFlag::new()).unwrap();
        })),
    );
    let fenced = first.backup(request_of("first", &old), &at_publish, &CancelFlag::new());
    assert!(matches!(fenced, Err(Error::Fenced)), "{fenced:?}");
    let snapshots = second.snapshots(None).unwrap();
    assert_eq!(snapshots.len(), 1);
    assert_eq!(restore(&first, snapshots[0].id), new.bytes);
    assert!(first.holders().unwrap().is_empty(), "both have ended");
    assert!(check(&first).is_clean());
}

/// Symptom: an agent that was restarted after a kill could not back up its own VMs for ten minutes. Cause:
/// sessions of its earlier run were treated like those of any silent holder. Fix: a run that is the only one
/// of its name ends the sessions of earlier runs with that name, and no others.
#[test]
fn a_restarted_agent_ends_the_sessions_of_its_earlier_run() {
    let servers = Servers::new();
    let ((first, life), (again, _)) = (servers.host(), servers.host());
    let agent = |name: &str| Holder { name: name.into(), address: format!("{name}.example:7600") };
    let beating = first.beat(&agent("h1")).unwrap();
    let at_read = At(Stage::Read, Mutex::new(Some(|| life.kill())));
    let died = first.backup(request_of("h1", &disk(1)), &at_read, &CancelFlag::new());
    assert!(died.is_err() && life.is_dead());

    let other = servers.host().0;
    let other_beat = other.beat(&agent("h2")).unwrap();
    assert!(other.take_over("h2", other_beat.holder()).unwrap().is_empty());
    let beat = again.beat(&agent("h1")).unwrap();
    assert!(again.take_over("h1", beating.holder()).unwrap().is_empty(), "it is its own");
    let ended = again.take_over("h1", beat.holder()).unwrap();
    assert_eq!((ended.len(), ended[0].holder), (1, beating.holder()));
    let done = again.backup(request_of("h1", &disk(2)), &Silent, &CancelFlag::new()).unwrap();
    assert_eq!(restore(&again, done.snapshot), disk(2).bytes);
    assert!(check(&again).is_clean());
}

/// Symptom: a backup that others had ended reported a damaged repository (20). Cause: its chunks were swept
/// meanwhile, and it reported the consequence. Fix: a failed backup checks whether its session is still open,
/// and reports if others have ended it (11).
#[test]
fn a_fenced_and_swept_backup_reports_that_it_was_fenced() {
    for stage in [Stage::Read, Stage::Publish] {
        let servers = Servers::new();
        let ((first, _), (second, _)) = (servers.host(), servers.host());
        back_up(&second, "web", &disk(5), false);
        let at = At(
            stage,
            Mutex::new(Some(|| {
                let mut watch = LeaseWatch::new();
                for now in [0, 600] {
                    second.watch_leases(&mut watch, seconds(now)).unwrap();
                }
                let gone = newest_of(&second);
                second.forget(&[gone]).unwrap();
                prune(&second);
                // As on a host that lost its volumes: no file of the VM exists.
                for volume in files(&servers.store).into_iter().map(|(volume, ..)| volume) {
                    if volume.contains(".c") || volume.ends_with(".meta") {
                        let vid = servers.store.open_volume(&volume).unwrap();
                        let _ = servers.store.remove_volume(vid, RemoveMode::WithFiles);
                    }
                }
            })),
        );
        let ended = first.backup(request_of("first", &disk(6)), &at, &CancelFlag::new());
        let error = ended.unwrap_err();
        assert!(matches!(error, Error::Fenced), "{stage:?}: {error:?}");
        assert_eq!((error.exit_code(), error.code()), (11, "fenced"));
    }
}

fn newest_of(repository: &Repository) -> SnapshotId {
    repository.snapshots(None).unwrap().pop().unwrap().id
}

/// An agent starts its heartbeats before anything else, and continues after its backups.
#[test]
fn a_backup_uses_the_running_heartbeats_of_its_process() {
    let servers = Servers::new();
    let ((agent, _), (other, _)) = (servers.host(), servers.host());
    let beating = agent.beat(&Holder { name: "agent".into(), address: String::new() });
    let beating = beating.unwrap();
    let at_read = At(
        Stage::Read,
        Mutex::new(Some(|| {
            let sessions = other.sessions().unwrap();
            let info = sessions[0].1[0].info.clone().unwrap();
            assert_eq!((info.name, info.holder), ("agent".into(), beating.holder()));
        })),
    );
    let done = agent.backup(request_of("backup", &disk(1)), &at_read, &CancelFlag::new());
    done.unwrap();
    let holders = other.holders().unwrap();
    assert_eq!(holders.len(), 1);
    assert_eq!((holders[0].holder, &*holders[0].address), (beating.holder(), ""));
    drop(beating);
    assert!(other.holders().unwrap().is_empty());
    for bad in ["a\nb", &"x".repeat(256)] {
        let holder = Holder { name: bad.into(), ..Holder::default() };
        assert!(agent.beat(&holder).is_err());
    }
}

/// On one machine the lock of the store proves that the process of an open session is dead.
#[test]
fn on_one_machine_there_are_no_heartbeats_and_no_waits() {
    let store = fleet_store();
    let repository = init_as(&store, FLEET);
    let at_read = At(
        Stage::Read,
        Mutex::new(Some(|| {
            let sessions = repository.sessions().unwrap();
            assert_eq!((sessions[0].1.len(), sessions[0].1[0].holder), (1, None));
            assert!(repository.holders().unwrap().is_empty());
            let mut watch = LeaseWatch::new();
            assert!(repository.watch_vm("web", &mut watch, seconds(0)).unwrap().is_empty());
            assert!(repository.watch_leases(&mut watch, seconds(9999)).unwrap().is_empty());
            assert_eq!(repository.sessions().unwrap().len(), 1);
        })),
    );
    let done = repository.backup(request_of("backup", &disk(1)), &at_read, &CancelFlag::new());
    done.unwrap();
}
