//! Many threads on one store.

use crate::basics::{bytes, commit, fresh, open, plain, stream};
use copal_device::IoClass;
use copal_object::*;

#[test]
fn threads_commit_append_and_read_side_by_side() {
    let (device, store) = fresh();
    commit(&store, (0..8).map(|t| Op::Create { id: ObjectId(t), opts: stream() }).collect());
    std::thread::scope(|scope| {
        for t in 0..8u64 {
            let store = store.clone();
            scope.spawn(move || {
                for i in 0..60u64 {
                    let id = ObjectId(1000 + t * 100 + i % 10);
                    let mut ops = Vec::new();
                    if i >= 10 {
                        ops.push(Op::Delete { id });
                    }
                    ops.push(Op::Create { id, opts: plain(ReadCheck::Pages) });
                    ops.push(Op::Append { id, at: 0, data: bytes(3000 + 100 * i as usize, t * 1000 + i) });
                    let ack = [Ack::Ordered, Ack::Written, Ack::Durable][(i % 3) as usize];
                    store.commit(Txn::new().ops(ops), ack).wait().unwrap();
                    store.append_frame(ObjectId(t), bytes(200, i), None, ack).wait().unwrap();
                    let found = store.read(id, 0..u64::MAX, IoClass::Foreground).wait().unwrap();
                    assert_eq!(found, bytes(3000 + 100 * i as usize, t * 1000 + i));
                    if i % 20 == 0 {
                        let mut writer = store.writer(ObjectId(5000 + t), plain(ReadCheck::Caller)).unwrap();
                        writer.append(&bytes(200_000, t)).unwrap();
                        let staged = writer.finish().unwrap();
                        let mut ops = Vec::new();
                        if i > 0 {
                            ops.push(Op::Delete { id: ObjectId(5000 + t) });
                        }
                        ops.push(Op::Publish(staged));
                        store.commit(Txn::new().ops(ops), ack).wait().unwrap();
                    }
                }
            });
        }
    });
    assert!(store.check(&CheckOptions { data: true, repair: false }).unwrap().damages.is_empty());
    store.sync(Lsn(u64::MAX)).wait().unwrap();
    drop(store);
    let store = open(&device);
    for t in 0..8 {
        let mut reader = store.frames(ObjectId(t), FramePos(0)).unwrap();
        for i in 0..60 {
            assert_eq!(reader.next_frame().unwrap().unwrap().1, bytes(200, i));
        }
        assert!(reader.next_frame().unwrap().is_none());
    }
    assert!(store.check(&CheckOptions { data: true, repair: false }).unwrap().damages.is_empty());
}
