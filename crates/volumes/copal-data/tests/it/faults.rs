//! A failing device: the store stops writing and reports unknown outcomes, which the next run settles.

use crate::members::{GROUP, boot_member, create, delete, name, vid};
use crate::stack::{MIB, body, everything, format, get, open, put, volume};
use copal_data::{LocalStore, MemberStore, OperationError};
use copal_device::Device;
use copal_device::fault::{Fault, FaultDevice, FlushFault, WriteFault};
use copal_volume::{
    FileId, SettleChoice, SettleOutcome, VolumeError, VolumeId, VolumeOptions, VolumeStore,
    group::{Epoch, Role},
};
use std::sync::Arc;

/// Symptom: no test noticed a member that continues to write after a failed write of its disk. Its server
/// reports the disk's failure to the master by this.
#[test]
fn a_member_whose_disk_failed_takes_nothing_more_and_says_why() {
    let device = FaultDevice::new(64 * MIB, 3);
    let dynamic: Arc<dyn Device> = device.clone();
    format(&dynamic);
    let (store, epoch) = boot_member(&dynamic);
    let apply = |number| store.apply(GROUP, epoch, create(number, 70_000)).expect("it is served");
    assert_eq!(apply(1), Ok(Role::Normal));
    assert_eq!(store.failure(), None);
    device.inject(Fault::Write { skip: 0, fault: WriteFault::Error });
    let failed = apply(2);
    assert!(matches!(failed, Err(OperationError::Failed(VolumeError::Failed { .. }))), "{failed:?}");
    let why = store.failure().expect("it says why");
    let later = store.apply(GROUP, epoch, delete(1)).expect("it is served");
    assert_eq!(later, Err(OperationError::Failed(VolumeError::Failed { reason: why.clone() })));
    assert_eq!(store.failure(), Some(why));
}

/// Symptom: the host of a data server had no space left during a write, and the server reported a failed disk
/// to the master, which copies all its data elsewhere after half an hour. Cause: any failed write counted as
/// a failed disk. Fix: the disk is full, not failed. It refuses later operations, and continues once the host
/// has space and the store is reopened.
#[test]
fn a_member_whose_host_ran_full_is_full_and_not_failed() {
    let fault = WriteFault::HostFull;
    let device = FaultDevice::new(64 * MIB, 3);
    let dynamic: Arc<dyn Device> = device.clone();
    format(&dynamic);
    let (store, epoch) = boot_member(&dynamic);
    let apply = |store: &MemberStore, epoch, operation| {
        let reply = store.apply(GROUP, epoch, operation);
        reply.expect("it is served")
    };
    assert_eq!(apply(&store, epoch, create(1, 70_000)), Ok(Role::Normal));
    assert!(!store.is_full() && !store.is_host_full());
    device.inject(Fault::Write { skip: 0, fault });
    let unknown = apply(&store, epoch, create(2, 70_000));
    assert!(
        matches!(unknown, Err(OperationError::Failed(VolumeError::Failed { .. }))),
        "its outcome is unknown: {unknown:?}"
    );
    for later in [create(3, 10), delete(1)] {
        let refused = apply(&store, epoch, later);
        assert_eq!(refused, Err(OperationError::Failed(VolumeError::NoSpace)));
    }
    assert_eq!(store.enter_view(GROUP, Epoch(epoch.0 + 1), Role::Normal), Err(VolumeError::NoSpace));
    assert_eq!((store.failure(), store.is_full(), store.room_bytes()), (None, true, 0));
    assert!(store.is_host_full());
    drop(store);
    let dynamic: Arc<dyn Device> = device.reopen();
    let (store, epoch) = boot_member(&dynamic);
    let read = store.get(vid(), &name(1), 0..u64::MAX, None).expect("a file");
    assert!(read.0 == body(1, 70_000));
    assert_eq!(apply(&store, epoch, delete(1)), Ok(Role::Normal));
    assert!(!store.is_full() && store.failure().is_none());
}

fn device() -> (Arc<FaultDevice>, LocalStore, VolumeId) {
    let device = FaultDevice::new(64 * MIB, 3);
    let dyn_device: Arc<dyn Device> = device.clone();
    format(&dyn_device);
    let store = open(&dyn_device);
    let vid = volume(&store, "v");
    (device, store, vid)
}

/// Puts files until the device fails. Returns the acknowledged files, and the one with an unknown outcome.
fn put_until_failure(store: &LocalStore, vid: VolumeId, size: usize) -> (Vec<u64>, Option<(u64, FileId)>) {
    let mut acknowledged = Vec::new();
    for n in 0..200_u64 {
        match put(store, vid, &n.to_be_bytes(), body(n, size)) {
            Ok(_) => acknowledged.push(n),
            Err(VolumeError::Unknown { fid }) => return (acknowledged, Some((n, fid))),
            Err(VolumeError::Failed { .. }) => return (acknowledged, None),
            Err(error) => panic!("put {n}: {error}"),
        }
    }
    panic!("the fault never struck");
}

#[test]
fn after_a_failed_write_or_flush_nothing_is_written_and_the_next_run_settles() {
    let faults = [0, 1, 3, 10].into_iter().flat_map(|skip| {
        let write = Fault::Write { skip, fault: WriteFault::Error };
        let flush = Fault::Flush { skip, fault: FlushFault::Error };
        [(write, 100), (write, 70_000), (flush, 70_000), (write, 5_000_000)]
    });
    let mut unknowns = 0;
    for (fault, size) in faults {
        let (device, store, vid) = device();
        put(&store, vid, b"before", body(1000, size)).expect("put");
        device.inject(fault);
        let (acknowledged, unknown) = put_until_failure(&store, vid, size);
        let refused = put(&store, vid, b"later", body(1, 1));
        assert!(matches!(refused, Err(VolumeError::Failed { .. })), "{refused:?}");
        let refused = store.create_volume("", "later", &VolumeOptions::default());
        assert!(matches!(refused, Err(VolumeError::Failed { .. })), "{refused:?}");
        if let Some((_, fid)) = unknown {
            let settled = store.settle(vid, fid, SettleChoice::Abort);
            assert!(matches!(settled, Err(VolumeError::Failed { .. })), "not final yet");
            unknowns += 1;
        }
        drop(store);
        let device: Arc<dyn Device> = device.reopen();
        let store = open(&device);
        for n in &acknowledged {
            let read = get(&store, vid, &n.to_be_bytes());
            assert!(read == Ok(body(*n, size)), "{fault:?}: acknowledged file {n}");
        }
        assert!(get(&store, vid, b"before") == Ok(body(1000, size)));
        if let Some((n, fid)) = unknown {
            let read = get(&store, vid, &n.to_be_bytes());
            match store.settle(vid, fid, SettleChoice::Commit).expect("settle") {
                SettleOutcome::Committed => assert!(read == Ok(body(n, size)), "{fault:?}: not whole"),
                SettleOutcome::Aborted => assert_eq!(read, Err(VolumeError::NotFound)),
            }
        }
        let report = store.check(&everything(), &mut |_| {});
        assert_eq!(report.expect("check").damage, [], "{fault:?}");
        put(&store, vid, b"later", body(1, size)).expect("the next run writes");
    }
    assert!(unknowns > 0, "no create was ever left open");
}

/// Symptom, cause and fix as for a member: a full host is not a failed store.
#[test]
fn a_local_store_whose_host_ran_full_refuses_for_lack_of_space() {
    let (device, store, vid) = device();
    put(&store, vid, b"before", body(1, 5000)).expect("put");
    device.inject(Fault::Write { skip: 0, fault: WriteFault::HostFull });
    let unknown = put(&store, vid, b"a", body(2, 5000));
    assert!(matches!(unknown, Err(VolumeError::Unknown { .. })), "{unknown:?}");
    assert_eq!(put(&store, vid, b"b", body(3, 1)).err(), Some(VolumeError::NoSpace));
    assert_eq!(store.close(), Err(VolumeError::NoSpace));
    drop(store);
    let device: Arc<dyn Device> = device.reopen();
    let store = open(&device);
    assert_eq!(get(&store, vid, b"before"), Ok(body(1, 5000)));
    put(&store, vid, b"b", body(3, 5000)).expect("put");
}

#[test]
fn reads_continue_after_a_failed_write() {
    let (device, store, vid) = device();
    put(&store, vid, b"a", body(1, 5000)).expect("put");
    device.inject(Fault::Write { skip: 0, fault: WriteFault::Error });
    put_until_failure(&store, vid, 100);
    assert_eq!(get(&store, vid, b"a"), Ok(body(1, 5000)));
}
