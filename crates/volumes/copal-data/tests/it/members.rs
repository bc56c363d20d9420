//! Groups of a data server on the whole stack, and operations on them.

use crate::stack::{body, engine};
use bytes::Bytes;
use copal_data::{BodySource, GroupOperation, MemberIdentity, MemberStore, NewHead};
use copal_device::Device;
use copal_volume::{
    FileId, ManualClock, OpId, VolumeId,
    group::{Epoch, GroupId, Incarnation, Role, Term},
};
use std::sync::Arc;

pub(crate) const GROUP: GroupId = GroupId(3);
pub(crate) const NOW: u64 = 1_000_000;

/// Opens the groups on a device; the clock stands still.
pub(crate) fn open_member(device: &Arc<dyn Device>) -> MemberStore {
    MemberStore::open(engine(device), Arc::new(ManualClock::new(NOW))).expect("groups")
}

/// Identity of the disk in the tests.
pub(crate) fn identity() -> MemberIdentity {
    MemberIdentity {
        cluster: [1; 16],
        server: [2; 16],
        disk: [3; 16],
        incarnation: Incarnation(0),
        term: Term(0),
    }
}

/// As [`open_member`]; assigned at first, booted, and in sync in the next epoch of its group.
pub(crate) fn boot_member(device: &Arc<dyn Device>) -> (MemberStore, Epoch) {
    let store = open_member(device);
    if store.identity().expect("an identity").is_none() {
        store.assign(&identity()).expect("found");
    }
    store.boot(7).expect("boot");
    let before = store.membership(GROUP).expect("a membership");
    let epoch = Epoch(before.map_or(1, |before| before.epoch.0 + 1));
    let entered = store.enter_view(GROUP, epoch, Role::Normal).expect("a view");
    assert_eq!(entered.role, Role::Normal);
    (store, epoch)
}

pub(crate) fn vid() -> VolumeId {
    VolumeId::in_group(GROUP, 1)
}

pub(crate) fn fid(number: u64) -> FileId {
    FileId::new(NOW, 0, number)
}

pub(crate) fn name(number: u64) -> Bytes {
    Bytes::from(format!("file {number}"))
}

/// The head of file `number`; its body depends on the number alone.
pub(crate) fn head(number: u64, len: usize) -> (NewHead, Bytes) {
    let bytes = body(number, len);
    let head = NewHead {
        fid: fid(number),
        op: OpId(FileId::new(NOW, 1, number).0),
        size: len as u64,
        crc32c: copal_codec::crc32c(0, &bytes),
        metadata: Bytes::new(),
    };
    (head, bytes)
}

pub(crate) fn create(number: u64, len: usize) -> GroupOperation {
    let (head, bytes) = head(number, len);
    GroupOperation::Create { vid: vid(), name: name(number), head, body: BodySource::Attached(bytes) }
}

pub(crate) fn delete(number: u64) -> GroupOperation {
    GroupOperation::Delete {
        vid: vid(),
        name: name(number),
        fid: fid(number),
        op: OpId(FileId::new(NOW, 2, number).0),
    }
}
