//! Operations that do not fit into the open group any more.

use crate::{
    Ack, BackendKind, CreateOptions, MkfsOptions, ObjectId, OpenOptions, Store, Txn,
    flaw::{BrokenRule, StoreFlaw},
    open::OpenOverrides,
};
use copal_device::{Device, fault::FaultDevice};
use std::sync::Arc;

fn creates(ids: std::ops::Range<u64>) -> Txn {
    ids.fold(Txn::new(), |txn, id| txn.create(ObjectId(id), CreateOptions::default()))
}

/// Commits two transactions beside a record in flight; one record would be too long for both. Returns the objects that
/// the next opening finds, and those that were committed.
fn of_two_long_transactions(backend: BackendKind, flaw: Option<StoreFlaw>) -> (usize, u64) {
    let device = FaultDevice::new(64 << 20, 1);
    let dynamic: Arc<dyn Device> = device.clone();
    let is_log = backend == BackendKind::Log;
    let options = MkfsOptions {
        backend,
        segment_bytes: is_log.then_some(256 << 10),
        journal_bytes: (!is_log).then_some(256 << 10),
        ..MkfsOptions::default()
    };
    Store::mkfs(&dynamic, &options).unwrap();
    let tuning = OpenOverrides { broken: BrokenRule { flaw }, ..OpenOverrides::default() };
    let (store, _) = Store::open_tuned(dynamic, &OpenOptions::default(), tuning).unwrap();
    let sync = store.commit(creates(0..1), Ack::Durable);
    let few = 200;
    let mut made = vec![store.commit(creates(1..1 + few), Ack::Ordered)];
    let (most, used) = {
        let state = store.inner.state.lock();
        (state.space.placement().journal().record_bytes_max(), state.commit.open_ops_bytes())
    };
    assert!(used > 0 && used < most / 2, "the group is open: {used} of {most} bytes");
    // Nearly a record by itself.
    let more = few * (most - used) as u64 / used as u64;
    made.push(store.commit(creates(1 + few..1 + few + more), Ack::Ordered));
    device.run_until_idle();
    drop((store, sync, made));
    let (store, _) = Store::open(device.reopen(), &OpenOptions::default()).unwrap();
    (store.list(ObjectId(0), usize::MAX).len(), 1 + few + more)
}

/// Symptom: a commit in segments panicked: its group was longer than recovery reads.
/// Cause: the open group took operations up to the longest group, and a record may have half of that.
/// Fix: operations are measured by the longest record, as on `cow` (OBJ-16).
#[test]
fn operations_that_the_open_group_has_no_room_for_close_it_first() {
    for backend in [BackendKind::Cow, BackendKind::Log] {
        let (found, made) = of_two_long_transactions(backend, None);
        assert_eq!(found as u64, made, "{backend:?}");
        let broken =
            std::panic::catch_unwind(|| of_two_long_transactions(backend, Some(StoreFlaw::GroupNotMeasured)));
        // An assertion of the store, or a record that recovery does not read.
        let is_caught = broken.is_err() || broken.is_ok_and(|(found, made)| (found as u64) < made);
        assert!(is_caught, "{backend:?}: the broken rule is caught");
    }
}
