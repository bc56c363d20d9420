//! Clean-ups beside backups and restores of other hosts.

use crate::consolidate::{
    alone, assert_restores, clean_up, free, host, repair_leak, small_clone, try_clean_up,
};
use crate::fleet_store::*;
use crate::mortal_store::MortalStore;
use crate::popular::{Detector, noise};
use crate::world::*;
use copal_backup::peers::{Answer, Ids, Peers, Turn};
use copal_backup::*;
use copal_disk::target::{Target, TargetError};
use std::io;
use std::sync::Mutex;
use uuid::Uuid;

/// Runs something once, between the questions and the answers.
struct Meddling<'a> {
    inner: &'a Detector<'a>,
    act: Mutex<Option<Box<dyn FnOnce() + Send + 'a>>>,
}

impl Peers for Meddling<'_> {
    fn begin(&self, vm: Uuid, turn: Turn) -> std::result::Result<(), String> {
        self.inner.begin(vm, turn)
    }
    fn end(&self, vm: Uuid, turn: Turn) {
        self.inner.end(vm, turn);
    }
    fn send(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<u64> {
        self.inner.send(vm, ids)
    }
    fn receive(&self, sent: u64) -> Vec<Answer> {
        if let Some(act) = self.act.lock().unwrap().take() {
            act();
        }
        self.inner.receive(sent)
    }
    fn ask_again(&self, vm: Uuid, ids: Ids<'_>) -> io::Result<Option<Vec<Answer>>> {
        self.inner.ask_again(vm, ids)
    }
    fn stored(&self) {
        self.inner.stored();
    }
}

/// Kills a host when its backup has read everything.
struct Dying(MortalStore);

impl Progress for Dying {
    fn stage(&self, stage: Stage, _what: &str, _total: u64) {
        if stage == Stage::Publish {
            self.0.kill();
        }
    }
}

/// A session that opened meanwhile may refer to frames that would be dead, so nothing moves while it is open.
/// A session that has published by then counts like any other snapshot.
#[test]
fn a_clean_up_gives_way_to_a_backup_of_its_vm() {
    let store = fleet_store();
    let mut all = alone(&init_as(&store, FLEET), &["web", "db"], small_clone);
    let (first, _) = host(&store);
    let detector = Detector::new(&first, 0);
    clean_up(&first, &detector, "web");
    let disk = small_clone(1);
    let begun = || {
        let (second, life) = host(&store);
        let died = second.backup(request("db", &disk, false), &Dying(life), &CancelFlag::new());
        assert!(died.is_err());
    };
    let act: Box<dyn FnOnce() + Send + '_> = Box::new(begun);
    let meddling = Meddling { inner: &detector, act: Mutex::new(Some(act)) };
    let refused = try_clean_up(&first, &meddling, "db").unwrap_err();
    assert_eq!((refused.exit_code(), refused.code()), (11, "busy"), "{refused}");
    let refused = try_clean_up(&first, &detector, "db").unwrap_err();
    assert_eq!(refused.code(), "busy", "it is open still");
    let stats = first.vm_stats("db").unwrap();
    assert_eq!((stats.moved_chunks, stats.dead_frames), (0, 0));
    assert_eq!(first.fence_sessions("db").unwrap(), 1);

    let made = Mutex::new(None);
    let whole = || {
        let (second, _) = host(&store);
        *made.lock().unwrap() = Some(back_up(&second, "db", &disk, false).snapshot);
    };
    let act: Box<dyn FnOnce() + Send + '_> = Box::new(whole);
    *meddling.act.lock().unwrap() = None;
    let meddling = Meddling { inner: &detector, act: Mutex::new(Some(act)) };
    let summary = clean_up(&first, &meddling, "db");
    assert!(summary.moved > 10, "{summary:?}");
    drop(meddling);
    all.push((made.into_inner().unwrap().unwrap(), disk.clone()));
    clean_up(&first, &detector, "web");
    free(&first);
    assert_restores(&open(&store), &all, "cleaned up beside a backup");
}

/// Runs something when the first bytes of a disk arrive.
struct Interrupted<F: FnOnce() + Send> {
    inner: MemoryTarget,
    act: Mutex<Option<F>>,
}

impl<F: FnOnce() + Send> Target for Interrupted<F> {
    fn is_ordered(&self) -> bool {
        true
    }
    fn begin(&self, size_bytes: u64) -> std::result::Result<(), TargetError> {
        self.inner.begin(size_bytes)
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> std::result::Result<(), TargetError> {
        if let Some(act) = self.act.lock().unwrap().take() {
            act();
        }
        self.inner.write_at(offset, data)
    }
    fn hole(&self, offset: u64, length: u64) -> std::result::Result<(), TargetError> {
        self.inner.hole(offset, length)
    }
    fn finish(&self) -> std::result::Result<(), TargetError> {
        self.inner.finish()
    }
}

fn restore_beside(repository: &Repository, snapshot: SnapshotId, act: impl FnOnce() + Send) -> Vec<u8> {
    let target = Interrupted { inner: MemoryTarget::ordered(), act: Mutex::new(Some(act)) };
    let request = RestoreRequest { fetches: 2, ..RestoreRequest::new(snapshot) };
    let restored = repository.restore(&request, &target, &Silent, &CancelFlag::new());
    restored.unwrap();
    target.inner.bytes()
}

/// Symptom: a restore failed with a missing frame when another host rewrote packs, or moved chunks,
/// meanwhile. Cause: the index of a VM was brought up to date at the beginning only. Fix: a missing frame is
/// looked up once more, after reading the log.
#[test]
fn a_restore_finds_frames_that_another_host_rewrote_or_moved_meanwhile() {
    let store = fleet_store();
    init_as(&store, FLEET);
    let mut disk = Disk::new(24 << 20);
    disk.write(0, &noise(7, 20 << 20));
    let (first, _) = host(&store);
    back_up(&first, "db", &disk, false);
    let kept = back_up(&first, "web", &disk, false);
    let mut other = disk.clone();
    other.write(0, &noise(8, 10 << 20));
    let gone = back_up(&first, "web", &other, false);
    first.forget(&[gone.snapshot]).unwrap();
    let mut mixed = disk.clone();
    for at in (0..20).map(|at| at << 20) {
        mixed.write(at, &noise(at as u64 + 1000, 500_000));
    }
    let reader = open(&store).behave_as_another_process();
    let cleaned = restore_beside(&reader, kept.snapshot, || {
        let detector = Detector::new(&first, 0);
        clean_up(&first, &detector, "db");
        assert!(clean_up(&first, &detector, "web").moved > 500);
        free(&first);
        // By chance the vectors contain one dead reference in a thousand; its frame stays until a repair.
        repair_leak(&first, "web");
        let stats = first.vm_stats("web").unwrap();
        assert_eq!(stats.chunk_pack_bytes, 0, "{stats:?}");
    });
    assert!(cleaned == disk.bytes);

    // Rewritten: every second chunk stays, in other packs.
    let news = back_up(&first, "news", &disk, false);
    let half = back_up(&first, "news", &mixed, false);
    first.forget(&[news.snapshot]).unwrap();
    let reader = open(&store).behave_as_another_process();
    let rewritten = restore_beside(&reader, half.snapshot, || {
        assert!(free(&first).rewritten_packs > 0);
    });
    assert!(rewritten == mixed.bytes);
}
