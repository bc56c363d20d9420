//! Whoever removes gives way to others that remove, and finishes what those have begun who died; the tests
//! see when not.

use super::removals::LateStore;
use super::{Flaw, with};
use crate::keys::random;
use crate::packs::pack::writer::Frame;
use crate::packs::pack_appender::PackAppender;
use crate::packs::volumes::Home;
use crate::popular;
use crate::request::peers::Writer;
use crate::world::*;
use crate::{CancelFlag, Error, IndexHome, InitOptions, Progress, PruneOptions, Repository, Silent, Stage};
use copal_kv::Durability;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn fleet(store: &LateStore) -> Repository {
    let options = InitOptions { layout: FLEET, ..insecure() };
    Repository::init(Arc::new(store.clone()), IndexHome::Memory, &options).unwrap()
}

/// Two snapshots of which the first is forgotten: a quarter of its chunks are dead, in a pack with live ones.
fn with_a_mixed_pack(repository: &Repository) -> (Disk, crate::SnapshotId) {
    let mut disk = Disk::new(4 << 20);
    Random::new(1).fill(&mut disk.bytes);
    let gone = back_up(repository, "web", &disk, false);
    let mut other = vec![0; 1 << 20];
    Random::new(2).fill(&mut other);
    disk.write(0, &other);
    let kept = back_up(repository, "web", &disk, false);
    repository.forget(&[gone.snapshot]).unwrap();
    (disk, kept.snapshot)
}

fn is_whole(store: &LateStore, (disk, kept): &(Disk, crate::SnapshotId)) -> bool {
    try_restore(&store.open(), *kept).is_ok_and(|bytes| bytes == disk.bytes)
}

/// Another prune runs as soon as this one has walked the last snapshot.
struct RunsBeside {
    other: Repository,
    walks: AtomicBool,
}

impl Progress for RunsBeside {
    fn stage(&self, stage: Stage, _what: &str, _total: u64) {
        self.walks.store(stage == Stage::Walk, Ordering::Relaxed);
    }
    fn advance(&self, _delta: u64) {
        if self.walks.swap(false, Ordering::Relaxed) {
            prune(&self.other);
        }
    }
}

fn survives_another_prune() -> bool {
    let store = LateStore::new();
    let repository = fleet(&store);
    let kept = with_a_mixed_pack(&repository);
    let beside =
        RunsBeside { other: store.open().behave_as_another_process(), walks: AtomicBool::new(false) };
    // Where the rule is broken it meets what the other one has done.
    let _ = repository.prune(&thorough(), &beside, &CancelFlag::new());
    drop(repository);
    is_whole(&store, &kept)
}

/// Symptom: two prunes of one VM at once, on two hosts, and its snapshots had lost chunks. Cause: a prune
/// looked for sessions that opened and snapshots that came meanwhile, not for other prunes. The second one
/// held the pack for dead into which the first had rewritten what was live, since no snapshot was led there
/// when it walked. Fix: a prune gives way to records of another one.
#[test]
fn a_prune_removes_nothing_that_another_one_has_rewritten() {
    assert!(survives_another_prune());
    assert!(!with(&[Flaw::RemovesBesideRemovals], survives_another_prune), "nothing notices");
}

fn survives_a_dead_prune() -> bool {
    let store = LateStore::new();
    let repository = fleet(&store);
    let kept = with_a_mixed_pack(&repository);
    let (silent, cancel) = (Silent, CancelFlag::new());
    // What is all dead goes, and nothing is rewritten: then the next prune begins with what it rewrites.
    let whole = PruneOptions { max_unused_percent: 100, ..thorough() };
    repository.prune(&whole, &silent, &cancel).unwrap();
    store.die();
    assert!(repository.prune(&thorough(), &silent, &cancel).is_err());
    store.go_on();
    drop(repository);
    store.open().prune(&whole, &silent, &cancel).unwrap();
    store.bring_about();
    is_whole(&store, &kept)
}

/// Symptom: a prune died, the next one ran, a server came back, and snapshots had lost chunks. Cause: a
/// backup brings to an end what was announced to go, and a prune did not. It counted on a pack whose delete
/// had reached that server, and removed the one into which its live frames were rewritten. Fix: a prune
/// removes first what is going.
#[test]
fn a_prune_counts_on_no_pack_that_one_before_it_was_removing() {
    assert!(survives_a_dead_prune());
    assert!(!with(&[Flaw::CountsOnGoingPacks], survives_a_dead_prune), "nothing notices");
}

/// Whether a pack that goes counts for nobody, whose writer enters it and that another host checks just then.
fn counts_for_nobody() -> bool {
    let store = LateStore::new();
    let repository = fleet(&store);
    let parts = &repository.parts;
    let mut packs =
        PackAppender::new(parts.pack_store(), Home::Shared, random().unwrap(), Durability::Device);
    let raw = b"a chunk";
    let frame = Frame {
        id: parts.pack_store().keys.id.id(raw).short(),
        raw_bytes: raw.len() as u32,
        flags: 0,
        payload: raw,
    };
    packs.append(&frame).unwrap();
    let written = packs.finish().unwrap().unwrap();
    let other = store.open().behave_as_another_process();
    store.die();
    assert!(other.sweep_popular(&CancelFlag::new()).is_err());
    store.go_on();
    let entered = popular::enter(parts, &written, Writer::of("host"));
    let is_checked = other.check_popular(written.number.0, &CancelFlag::new()).unwrap();
    assert_eq!(store.bring_about(), 1);
    let swept = other.sweep_popular(&CancelFlag::new()).unwrap();
    assert_eq!(swept.packs, 0);
    matches!(entered, Err(Error::Fenced)) && !is_checked
}

/// Symptom: hosts were led to a popular pack that was gone, and a snapshot that referred to it had lost a
/// chunk. Cause: a sweep looked at the log of popular packs and then removed what did not stand there. Its
/// writer, a clean-up or a session that had been ended, entered it between the two, and another host found it
/// whole and said so. Fix: a mark in that log stands before anything goes, and whose pack is marked refers to
/// nothing of it.
#[test]
fn a_popular_pack_that_goes_counts_for_nobody_however_late_it_is_entered() {
    assert!(counts_for_nobody());
    assert!(!with(&[Flaw::SweepsUnmarked], counts_for_nobody), "nothing notices");
}

/// Symptom: a host referred to a popular frame of another one that nobody had checked. Cause: a chunk that
/// was to be stored for all was looked for in the index first, and any pack counted that the log named. Fix:
/// it counts if it was checked, or is its own.
#[test]
fn a_host_refers_to_unchecked_frames_of_its_own_only() {
    let store = LateStore::new();
    let repository = fleet(&store);
    let parts = &repository.parts;
    let raw = b"a chunk";
    let id = parts.pack_store().keys.id.id(raw).short();
    let packer = |writer| crate::backup::PopularPacker::new(parts, [7; 16], Writer::of(writer)).unwrap();
    let mut first = packer("first");
    first.store(&id, raw).unwrap();
    first.finish().unwrap();
    let finds = |writer| packer(writer).find(&id).unwrap().is_some();
    assert!(finds("first") && !finds("second"));
    let pack = repository.unchecked_popular().unwrap()[0].pack;
    repository.check_popular(pack, &CancelFlag::new()).unwrap();
    assert!(finds("second"));
}
