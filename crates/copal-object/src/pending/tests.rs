//! What a frame costs does not depend on how many wait for the next flush.

use crate::{
    Ack, Check, CreateOptions, Lifetime, MkfsOptions, ObjectId, ObjectKind, Op, OpenOptions, Store, Txn,
};
use bytes::Bytes;
use copal_device::{Device, MemoryDevice};
use std::sync::Arc;

/// Symptom: with every put its own written frame a load took five times the processor time of one with grouped puts,
/// and ever more per frame.
/// Cause: each completed write walked over all frames that waited for the next flush, twice.
/// Fix: the frames in front that nobody waits for are counted and not looked at again.
#[test]
fn what_a_written_frame_costs_does_not_grow_with_those_that_wait() {
    const FRAMES: u64 = 1000;
    let device: Arc<dyn Device> = MemoryDevice::new(64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (store, _) = Store::open(device, &OpenOptions::default()).unwrap();
    let id = ObjectId(7);
    let opts = CreateOptions {
        kind: ObjectKind::Stream,
        lifetime: Lifetime::Short,
        expected_bytes: 0,
        check: Check::Caller,
        label: [0; 16],
    };
    let create = Txn {
        ops: vec![Op::Create { id, opts }],
        ..Txn::default()
    };
    store.commit(create, Ack::Durable).wait().unwrap();
    for _ in 0..FRAMES {
        let payload = Bytes::from_static(b"frame");
        store
            .append_frame(id, payload, None, Ack::Written)
            .wait()
            .unwrap();
    }
    let looked_at = store.inner.state.lock().tails[&id.0].pending.looked_at.get();
    // Once as the next to be told, and as often as a search among a thousand looks.
    assert!(
        looked_at <= 16 * FRAMES,
        "{FRAMES} frames were looked at {looked_at} times"
    );
    // The flush they waited for makes all of them durable.
    store
        .append_frame(id, Bytes::new(), None, Ack::Durable)
        .wait()
        .unwrap();
    assert!(store.inner.state.lock().tails[&id.0].pending.is_empty());
}
