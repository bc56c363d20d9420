//! Tests of concurrent removals: a removal gives way to others, and finishes those of dead processes.

use super::removals::LateStore;
use super::{Flaw, with};
use crate::keys::random;
use crate::packs::home::PackHome;
use crate::packs::pack::writer::FrameInput;
use crate::packs::pack_appender::PackAppender;
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

/// Makes two snapshots and forgets the first: a quarter of its chunks are dead, in a pack with live ones.
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

fn is_restorable(store: &LateStore, (disk, kept): &(Disk, crate::SnapshotId)) -> bool {
    try_restore(&store.open(), *kept).is_ok_and(|bytes| bytes == disk.bytes)
}

/// Runs another prune as soon as this one has walked the last snapshot.
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
    // With the rule broken, it may meet the damage of the other prune.
    let _ = repository.prune(&thorough(), &beside, &CancelFlag::new());
    drop(repository);
    is_restorable(&store, &kept)
}

/// Symptom: after two concurrent prunes of one VM, on two hosts, its snapshots had lost chunks. Cause: a
/// prune looked for sessions and snapshots that came meanwhile, not for other prunes. The first prune rewrote
/// live frames into a pack. The second took that pack for dead, since no reference led to it when it walked.
/// Fix: a prune gives way to records of another one.
#[test]
fn a_prune_removes_no_pack_that_another_one_has_written() {
    assert!(survives_another_prune());
    assert!(!with(&[Flaw::RemovesBesideRemovals], survives_another_prune), "the flaw is not noticed");
}

fn survives_a_dead_prune() -> bool {
    let store = LateStore::new();
    let repository = fleet(&store);
    let kept = with_a_mixed_pack(&repository);
    let (silent, cancel) = (Silent, CancelFlag::new());
    // Dead packs are removed and none is rewritten, so that the next prune begins with its rewrites.
    let whole = PruneOptions { max_unused_percent: 100, ..thorough() };
    repository.prune(&whole, &silent, &cancel).unwrap();
    store.die();
    assert!(repository.prune(&thorough(), &silent, &cancel).is_err());
    store.go_on();
    drop(repository);
    store.open().prune(&whole, &silent, &cancel).unwrap();
    store.apply_pending();
    is_restorable(&store, &kept)
}

/// Symptom: a prune died, the next one ran, a server came back, and snapshots had lost chunks. Cause: a
/// backup finishes the removal of listed packs, and a prune did not. It relied on a pack whose delete had
/// reached that server, and removed the one into which its live frames had been rewritten. Fix: a prune first
/// removes listed packs.
#[test]
fn a_prune_relies_on_no_pack_that_a_dead_prune_has_listed() {
    assert!(survives_a_dead_prune());
    assert!(!with(&[Flaw::CountsOnGoingPacks], survives_a_dead_prune), "the flaw is not noticed");
}

/// Whether a pack that is being removed is used by no host, although its writer enters it and another host
/// checks it at that moment.
fn is_unused() -> bool {
    let store = LateStore::new();
    let repository = fleet(&store);
    let parts = repository.parts();
    let mut packs =
        PackAppender::new(parts.pack_store(), PackHome::Shared, random().unwrap(), Durability::Device);
    let raw = b"a chunk";
    let frame = FrameInput {
        id: parts.pack_store().keys.id.id(raw).short(),
        raw_bytes: raw.len() as u32,
        flags: 0,
        payload: raw,
    };
    packs.append(&frame).unwrap();
    let written = packs.finish().unwrap().remove(0);
    let other = store.open().behave_as_another_process();
    store.die();
    assert!(other.sweep_popular(&CancelFlag::new()).is_err());
    store.go_on();
    let entered = popular::enter(parts, &written, Writer::of("host"));
    let is_checked = other.check_popular(written.number.0, &CancelFlag::new()).unwrap();
    assert_eq!(store.apply_pending(), 1);
    let swept = other.sweep_popular(&CancelFlag::new()).unwrap();
    assert_eq!(swept.packs, 0);
    matches!(entered, Err(Error::Fenced)) && !is_checked
}

/// Symptom: hosts used a popular pack that was removed, and a snapshot that referred to it had lost a chunk.
/// Cause: a sweep read the log of popular packs and then removed packs that it does not name. The writer of a
/// pack, a clean-up or a fenced session, entered it between the two, and another host checked it. Fix: a mark
/// in that log precedes the removal, and the writer of a marked pack refers to nothing of it.
#[test]
fn a_swept_popular_pack_is_never_used_even_if_it_is_entered_late() {
    assert!(is_unused());
    assert!(!with(&[Flaw::SweepsUnmarked], is_unused), "the flaw is not noticed");
}

/// Symptom: a host referred to a popular frame of another one that no host had checked. Cause: a popular chunk
/// was looked up in the index first, and any pack in the log counted. Fix: the pack must be checked, or be
/// the host's own.
#[test]
fn a_host_refers_to_unchecked_frames_of_its_own_only() {
    let store = LateStore::new();
    let repository = fleet(&store);
    let parts = repository.parts();
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
