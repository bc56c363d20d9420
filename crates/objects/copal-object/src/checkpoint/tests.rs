//! Recovery from the previous superblock reports commits that only the newest checkpoint held.

use crate::{
    Ack, CreateOptions, MkfsOptions, ObjectId, Op, OpenOptions, Store, StoreError, StoreOpenError, Txn,
    flaw::{BrokenRule, StoreFlaw},
    format::superblock::{COPIES, Superblock},
    open::OpenOverrides,
};
use copal_device::{Device, Image, fault::FaultDevice};
use std::sync::Arc;

const JOURNAL_PAGES: u64 = 64;

fn device() -> Arc<FaultDevice> {
    let device = FaultDevice::new(64 << 20, 1);
    let dynamic: Arc<dyn Device> = device.clone();
    let options = MkfsOptions { journal_bytes: Some(JOURNAL_PAGES * 4096), ..MkfsOptions::default() };
    Store::mkfs(&dynamic, &options).unwrap();
    device
}

fn create(store: &Store, id: u64) -> Result<(), StoreError> {
    let (id, opts) = (ObjectId(id), CreateOptions::default());
    let txn = Txn::new().create(id, opts);
    store.commit(txn, Ack::Durable).wait().map(drop)
}

/// An image without both copies of the newest superblock.
fn without_the_newest_superblock(device: &FaultDevice, store: &Store) -> Image {
    let newest = store.inner.state.lock().checkpoint.superblock().generation;
    let mut image = device.image();
    for copy in Superblock::places(newest) {
        image.write(COPIES[copy], &[0; 4096]);
    }
    image
}

/// The opening reports the loss of acknowledged commits. If told to accept it, the store shows none of the
/// later commits either.
fn is_a_loss(image: Image, kept: &[u64], lost: &[u64]) {
    let device: Arc<dyn Device> = FaultDevice::from_image(image, 2);
    let opened = Store::open(device.clone(), &OpenOptions::default())
        .map(|(store, _)| store.list(ObjectId(0), usize::MAX).len());
    assert!(matches!(opened, Err(StoreOpenError::TailLoss { .. })), "{opened:?}");
    let saved = OpenOptions { read_only: true, salvage: true, ..OpenOptions::default() };
    let accepted = OpenOptions { accept_tail_loss: true, ..OpenOptions::default() };
    let (_, report) = Store::open(device.clone(), &saved).unwrap();
    assert!(report.tail_lost.is_some(), "{report:?}");
    let (store, report) = Store::open(device, &accepted).unwrap();
    assert!(report.tail_lost.is_some(), "{report:?}");
    assert_eq!(report.tail_dropped, None, "they were acknowledged");
    let there = |id: &u64| store.stat(ObjectId(*id)).is_some();
    assert!(kept.iter().all(there), "the commits of the older state are present");
    assert!(!lost.iter().any(there), "no commit survives without the earlier ones");
}

/// Symptom: a store opened without an acknowledged commit, but with later ones.
/// Cause: a checkpoint that replaces a group's record takes its commits and leaves no trace in the chain. A
/// replay from the previous superblock passed over the gap.
/// Fix: the checkpoint takes the number of the record, so one is missing that later ones call durable. A
/// record also follows only on the commit before it.
#[test]
fn commits_that_only_a_lost_checkpoint_held_are_missed() {
    let device = device();
    let (store, _) = Store::open(device.clone(), &OpenOptions::default()).unwrap();
    for id in 1..=100 {
        create(&store, id).unwrap();
    }
    store.checkpoint().unwrap();
    create(&store, 101).unwrap();
    // As if the journal were full.
    let before = {
        let mut state = store.inner.state.lock();
        assert!(state.space.placement().journal().head() > JOURNAL_PAGES);
        let tail = state.space.placement().journal().head() - JOURNAL_PAGES;
        state.space.placement_mut().journal_mut().reuse(tail);
        (state.space.placement().journal().head(), state.checkpoint.superblock().generation)
    };
    create(&store, 102).unwrap();
    let after = {
        let state = store.inner.state.lock();
        (state.space.placement().journal().head(), state.checkpoint.superblock().generation)
    };
    assert_eq!(after, (before.0, before.1 + 1), "no record, but a checkpoint");
    create(&store, 103).unwrap();
    is_a_loss(without_the_newest_superblock(&device, &store), &[1, 100, 101], &[102, 103]);
    // With the superblock every commit counts.
    drop(store);
    for _ in 0..2 {
        let (store, _) = Store::open(device.reopen(), &OpenOptions::default()).unwrap();
        assert_eq!(store.list(ObjectId(0), usize::MAX).len(), 103);
        let report = store.check(&crate::CheckOptions::default()).unwrap();
        assert!(report.is_clean(), "{:?}", report.damages);
    }
}

/// See [`commits_that_only_a_lost_checkpoint_held_are_missed`]: a checkpoint in place of the mount record.
#[test]
fn commits_behind_a_lost_checkpoint_of_a_mount_are_missed() {
    let device = device();
    let tuning = OpenOverrides { mount_by_checkpoint: true, ..OpenOverrides::default() };
    let (store, _) = Store::open_tuned(device.clone(), &OpenOptions::default(), tuning).unwrap();
    create(&store, 1).unwrap();
    is_a_loss(without_the_newest_superblock(&device, &store), &[], &[1]);
    drop(store);
    let (store, _) = Store::open(device.reopen(), &OpenOptions::default()).unwrap();
    assert!(store.stat(ObjectId(1)).is_some());
}

/// Whether object 1 is sealed after a crash, although the commit that seals it is lost. That commit comes between
/// two chain pages of a checkpoint that replaces the record before it.
fn is_sealed_by_a_lost_commit(broken: BrokenRule) -> bool {
    let device = device();
    let tuning = OpenOverrides { short_chain_pages: true, broken, ..OpenOverrides::default() };
    let (store, _) = Store::open_tuned(device.clone(), &OpenOptions::default(), tuning).unwrap();
    let creates = (1..=200).map(|id| Op::Create { id: ObjectId(id), opts: CreateOptions::default() });
    store.commit(Txn::new().ops(creates), Ack::Durable).wait().unwrap();
    // The journal goes round once.
    for id in 201..=300 {
        create(&store, id).unwrap();
    }
    store.checkpoint().unwrap();
    create(&store, 301).unwrap();
    // As if the journal were full.
    let finished = {
        let mut state = store.inner.state.lock();
        let journal = state.space.placement_mut().journal_mut();
        let tail = journal.head() - JOURNAL_PAGES;
        journal.reuse(tail);
        state.checkpoint.finished()
    };
    let replaced = Txn::new().create(ObjectId(302), CreateOptions::default());
    store.commit(replaced, Ack::Ordered).wait().unwrap();
    assert!(store.inner.state.lock().checkpoint.absorbed().is_some(), "a checkpoint replaces the record");
    store.commit(Txn::new().seal(ObjectId(1)), Ack::Ordered).wait().unwrap();
    let mut events = 0;
    while store.inner.state.lock().checkpoint.finished() == finished {
        assert!(device.drive());
        events += 1;
    }
    assert!(events > 6, "three chain pages in two copies each, and two superblocks: {events} events");
    let (store, report) =
        Store::open(FaultDevice::from_image(device.image(), 2), &OpenOptions::default()).unwrap();
    assert_eq!((report.tail_lost, store.list(ObjectId(0), usize::MAX).len()), (None, 302));
    store.stat(ObjectId(1)).unwrap().sealed
}

/// OBJ-35: a commit between two chain pages of a checkpoint is not in it.
#[test]
fn a_commit_between_two_chain_pages_is_not_in_the_checkpoint() {
    assert!(!is_sealed_by_a_lost_commit(BrokenRule::default()));
    let broken = BrokenRule { flaw: Some(StoreFlaw::CheckpointOfLiveTables) };
    assert!(is_sealed_by_a_lost_commit(broken), "the broken variant is caught");
}

/// Whether a record is written behind a checkpoint that replaces a record and is not durable.
fn record_goes_ahead(broken: BrokenRule) -> bool {
    let device = device();
    let tuning = OpenOverrides { broken, ..OpenOverrides::default() };
    let (store, _) = Store::open_tuned(device.clone(), &OpenOptions::default(), tuning).unwrap();
    (1..=100).for_each(|id| create(&store, id).unwrap());
    store.checkpoint().unwrap();
    create(&store, 101).unwrap();
    // As if only the pages were left that are kept for operations that free space.
    let head = {
        let mut state = store.inner.state.lock();
        let journal = state.space.placement_mut().journal_mut();
        let head = journal.head();
        journal.reuse(head - (JOURNAL_PAGES - JOURNAL_PAGES / 16));
        head
    };
    let replaced = Txn::new().create(ObjectId(102), CreateOptions::default());
    let mut replaced = store.commit(replaced, Ack::Durable);
    assert!(store.inner.state.lock().checkpoint.absorbed().is_some(), "a checkpoint replaces the record");
    let mut later = store.commit(Txn::new().delete(ObjectId(1)), Ack::Durable);
    let mut goes_ahead = false;
    while store.inner.state.lock().checkpoint.absorbed().is_some() {
        goes_ahead |= store.inner.state.lock().space.placement().journal().head() != head;
        let is_answered = replaced.try_take().is_some() || later.try_take().is_some();
        assert!(!is_answered, "no commit is durable before the checkpoint is");
        assert!(device.drive());
    }
    device.run_until_idle();
    drop(store);
    let (store, report) = Store::open(device.reopen(), &OpenOptions::default()).unwrap();
    assert_eq!((report.tail_lost, store.list(ObjectId(0), usize::MAX).len()), (None, 101));
    goes_ahead
}

/// OBJ-16: a checkpoint that replaces a record is durable before any later record is written.
#[test]
fn no_record_goes_ahead_of_a_checkpoint_that_replaces_one() {
    assert!(!record_goes_ahead(BrokenRule::default()));
    let broken = BrokenRule { flaw: Some(StoreFlaw::RecordAheadOfCheckpoint) };
    assert!(record_goes_ahead(broken), "the broken variant is caught");
}
