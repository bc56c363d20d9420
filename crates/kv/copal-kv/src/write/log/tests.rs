use super::*;
use bytes::Bytes;
use copal_device::{Device, Image, MemoryDevice};
use copal_object::{MkfsOptions, OpenOptions};
use std::sync::Arc;

const SIZE: u64 = 64 << 20;
/// Bytes of each object that fills the store: after every second one is deleted, no free run is longer.
const OBJECT_BYTES: usize = 64 << 10;
/// Just below 1 MiB: one frame of the log.
const GROUP_BYTES: usize = 1_000_000;

/// A full store of which every second object was deleted.
fn fragmented() -> Store {
    let device: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(SIZE), SIZE);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = Store::open(device, &OpenOptions::default()).unwrap();
    let commit = |txn: Txn| objects.commit(txn, Ack::Durable).wait();
    let opts = CreateOptions {
        kind: ObjectKind::Plain,
        lifetime: ObjectLifetime::Long,
        expected_bytes: OBJECT_BYTES as u64,
        check: ReadCheck::Caller,
        label: label(ObjectRole::Log, 0),
    };
    let data = Bytes::from(vec![1; OBJECT_BYTES]);
    let create = |id: u64| {
        let (id, data) = (ObjectId(id), data.clone());
        commit(Txn::new().create(id, opts.clone()).append(id, 0, data))
    };
    let ids = 1000..1000 + SIZE / OBJECT_BYTES as u64;
    let made: Vec<u64> = ids.take_while(|id| create(*id).is_ok()).collect();
    assert!(made.len() > 700, "{}", made.len());
    for id in made.iter().skip(1).step_by(2) {
        commit(Txn::new().delete(ObjectId(*id))).unwrap();
    }
    commit(Txn::new()).unwrap();
    objects
}

/// Symptom: of values just below 1 MiB, half of which were deleted in a full store, only 83 to 88 % of the
/// first filling fitted again.
/// Cause: such a value is one frame of the log, which needs one run of pages, and few runs of that length
/// were left.
/// Fix: the log splits it into shorter frames.
#[test]
fn a_group_goes_into_the_log_where_no_long_run_of_pages_is_free() {
    let objects = fragmented();
    let stream = ObjectId(1);
    let mut log = WriteLog::create(&objects, 1, stream).unwrap();
    // Another stream takes the long runs that exist.
    let other = WriteLog::create(&objects, 2, ObjectId(2)).unwrap().stream;
    let long = || objects.append_frame(other, Bytes::from(vec![0; GROUP_BYTES]), None, Ack::Durable);
    let refused = (0..20).find_map(|_| long().wait().err());
    assert!(matches!(refused, Some(StoreError::NoSpace { .. })), "{refused:?}");
    assert!(objects.space().free_bytes > 6 * GROUP_BYTES as u64, "{:?}", objects.space());
    let mut ops = Vec::new();
    LogOp::Put { key: &b"\0\0\0\x01key"[..], value: &vec![7; GROUP_BYTES][..] }.encode(&mut ops);
    for first_seq in 1..=4 {
        let group = LoggedGroup { first_seq, count: 1, ops: &ops, after: None };
        log.append_durably(&objects, group).unwrap();
    }
    let mut found = Vec::new();
    let take = |group: LogGroup| {
        found.push((group.first_seq, group.ops.len()));
        Ok(())
    };
    let frames = replay(&objects, 1, stream, |_| {}, take, None).unwrap();
    assert_eq!(found, [(1, 1), (2, 1), (3, 1), (4, 1)]);
    assert!(frames > 4 * 16, "{frames} frames");
}
