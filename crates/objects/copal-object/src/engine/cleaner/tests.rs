//! An object that is deleted and made again while the cleaner copies its pages.

use crate::{
    Ack, BackendKind, CreateOptions, Lsn, MkfsOptions, ObjectId, OpenOptions, Store, Txn,
    flaw::{BrokenRule, StoreFlaw},
    format::run::PageRun,
    open::OpenOverrides,
    state::cleaner::CleanerTrigger,
    tables::TableEntry,
};
use bytes::Bytes;
use copal_device::{
    Device, IoClass,
    fault::{FaultDevice, PendingIo},
};
use copal_testkit::Random;
use std::sync::Arc;

const PAGE: usize = 4096;
const SEGMENT_PAGES: usize = 16;
const MOVED: ObjectId = ObjectId(1);

/// A store in which data lies in the lowest free segment, and no data in groups.
fn store(flaw: Option<StoreFlaw>) -> (Arc<FaultDevice>, Store) {
    let device = FaultDevice::new(64 << 20, 1);
    let dynamic: Arc<dyn Device> = device.clone();
    let options = MkfsOptions {
        backend: BackendKind::Log,
        segment_bytes: Some((SEGMENT_PAGES * PAGE) as u32),
        ..MkfsOptions::default()
    };
    Store::mkfs(&dynamic, &options).unwrap();
    let tuning = OpenOverrides {
        broken: BrokenRule { flaw },
        lowest_first: true,
        data_apart: true,
        cleaner_trigger: CleanerTrigger::Always,
        ..OpenOverrides::default()
    };
    let (store, _) = Store::open_tuned(dynamic, &OpenOptions::default(), tuning).unwrap();
    (device, store)
}

fn content(seed: u64, pages: usize) -> Bytes {
    Bytes::from(Random::new(seed).bytes(pages * PAGE))
}

fn put(id: ObjectId, data: Bytes) -> Txn {
    Txn::new().create(id, CreateOptions::default()).append(id, 0, data)
}

fn runs(store: &Store) -> Vec<PageRun> {
    match store.inner.state.lock().tables.entries.get(MOVED.0) {
        Some(TableEntry::Object(object)) => object.map.iter().map(|extent| extent.run).collect(),
        _ => Vec::new(),
    }
}

/// Completes all commands but those that `holds` names, until no other is left.
fn settle(device: &FaultDevice, holds: impl Fn(&PendingIo) -> bool) {
    while let Some(io) = device.pending().into_iter().find(|io| !holds(io)) {
        device.complete(io.id);
    }
}

/// Deletes an object and makes it again while the copy of its former pages is on its way. `None`: it never lay in
/// these pages again. Otherwise, whether its last content is read when the copy is written.
fn made_again(flaw: Option<StoreFlaw>) -> Option<bool> {
    let (device, store) = store(flaw);
    let ordered = |txn| assert!(store.commit(txn, Ack::Ordered).wait().is_ok());
    // Segments of records take the lowest free ones.
    ordered(put(ObjectId(3), content(3, 4 * SEGMENT_PAGES)));
    ordered(put(MOVED, content(1, 4)));
    ordered(put(ObjectId(2), content(2, 2 * SEGMENT_PAGES - 4)));
    store.sync(Lsn(u64::MAX)).wait().unwrap();
    let former = runs(&store);
    let is_copied = |io: &PendingIo| io.class == IoClass::Background;
    let mut durable = Vec::new();
    let mut commit = |txn| {
        durable.push(store.commit(txn, Ack::Durable));
        settle(&device, is_copied);
    };
    commit(Txn::new().delete(ObjectId(2)).delete(ObjectId(3)));
    let is_read = (10..20).any(|id| {
        commit(put(ObjectId(id), content(id, 4)));
        !device.pending().is_empty()
    });
    assert!(is_read, "the cleaner reads the pages");
    // The pages pass the quarantine while they are read.
    commit(Txn::new().delete(MOVED));
    (20..24).for_each(|id| commit(put(ObjectId(id), content(id, 4))));
    let read = device.pending()[0].id;
    device.complete(read);
    let mut seed = 100;
    let is_back = (0..40).any(|_| {
        seed += 1;
        commit(put(MOVED, content(seed, 4)));
        let is_back = runs(&store) == former;
        if !is_back {
            commit(Txn::new().delete(MOVED));
        }
        is_back
    });
    device.run_until_idle();
    is_back.then(|| {
        let found = store.read(MOVED, 0..u64::MAX, IoClass::Foreground).wait();
        found.is_ok_and(|found| found == content(seed, 4))
    })
}

/// Symptom: an object had the content of a deleted one with the same id.
/// Cause: it lay in the same pages while the cleaner wrote its copy of them, so the move was entered (OBJ-20).
/// Fix: the pages of a copy are not used again before.
#[test]
fn pages_of_a_copy_are_not_used_again_before_its_move_is_entered() {
    assert_eq!(made_again(None), None);
    assert_eq!(made_again(Some(StoreFlaw::CopyWithoutPin)), Some(false), "the broken rule is caught");
}
