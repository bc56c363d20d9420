//! Device commands per operation: the cost unit of this layer (OBJ-27).

use crate::basics::{bytes, commit, fresh, plain, read, stream};
use copal_device::{DeviceCounters, IoClass};
use copal_object::*;

fn count(store: &Store, work: impl FnOnce()) -> DeviceCounters {
    let before = store.counters();
    work();
    store.counters() - before
}

#[test]
fn a_solo_durable_append_is_one_durable_write_and_no_metadata() {
    let (_device, store) = fresh();
    commit(&store, vec![Op::Create { id: ObjectId(1), opts: stream() }]);
    // The first append enters an extent: one more write and a flush for both.
    store.append_frame(ObjectId(1), bytes(100, 0), None, Ack::Durable).wait().unwrap();
    for _ in 0..20 {
        let done = count(&store, || {
            store.append_frame(ObjectId(1), bytes(512, 0), None, Ack::Durable).wait().unwrap();
        });
        assert_eq!(
            (done.writes, done.fua_writes, done.flushes, done.write_bytes, done.reads),
            (1, 1, 0, 4096, 0)
        );
    }
    let done = count(&store, || {
        store.append_frame(ObjectId(1), bytes(10_000, 0), None, Ack::Durable).wait().unwrap();
    });
    assert_eq!((done.writes, done.write_bytes, done.flushes), (1, 12_288, 0));
}

#[test]
fn a_durable_transaction_over_n_objects_is_n_writes_a_record_and_one_flush() {
    let (_device, store) = fresh();
    for n in [1u64, 3, 10] {
        let base = 100 * n;
        commit(
            &store,
            (0..n).map(|i| Op::Create { id: ObjectId(base + i), opts: plain(ReadCheck::Pages) }).collect(),
        );
        let done = count(&store, || {
            let ops = (0..n).map(|i| Op::Append { id: ObjectId(base + i), at: 0, data: bytes(4096, i) });
            commit(&store, ops.collect());
        });
        assert_eq!((done.writes, done.flushes, done.reads), (n + 1, 1, 0), "{n} objects");
    }
}

#[test]
fn ordered_commits_flush_nothing() {
    let (_device, store) = fresh();
    let done = count(&store, || {
        for i in 0..50 {
            let id = ObjectId(10 + i);
            store
                .commit(
                    Txn::new().create(id, plain(ReadCheck::Pages)).append(id, 0, bytes(4096, i)),
                    Ack::Ordered,
                )
                .wait()
                .unwrap();
        }
    });
    assert_eq!(done.flushes, 0);
    let done = count(&store, || store.sync(Lsn(u64::MAX)).wait().unwrap());
    assert_eq!(done.flushes, 1);
}

#[test]
fn table_manifest_and_log_drop_are_one_flush() {
    let (_device, store) = fresh();
    let (table, manifest, log) = (ObjectId(1), ObjectId(2), ObjectId(3));
    commit(
        &store,
        vec![
            Op::Create { id: manifest, opts: plain(ReadCheck::Pages) },
            Op::Create { id: log, opts: stream() },
        ],
    );
    store.append_frame(log, bytes(100, 0), None, Ack::Durable).wait().unwrap();
    let mut writer = store.writer(table, plain(ReadCheck::Caller)).unwrap();
    writer.append(&bytes(2_000_000, 5)).unwrap();
    let staged = writer.finish().unwrap();
    let done = count(&store, || {
        commit(
            &store,
            vec![
                Op::Publish(staged),
                Op::Append { id: manifest, at: 0, data: bytes(200, 6) },
                Op::Delete { id: log },
            ],
        );
    });
    assert_eq!((done.writes, done.flushes), (2, 1));
}

#[test]
fn a_byte_range_is_one_read_of_the_blocks_that_cover_it() {
    let (_device, store) = fresh();
    let data = bytes(1_000_000, 9);
    let id = ObjectId(1);
    commit(
        &store,
        vec![Op::Create { id, opts: plain(ReadCheck::Caller) }, Op::Append { id, at: 0, data: data.clone() }],
    );
    let done = count(&store, || {
        let part = store.read(id, 70_000..75_000, IoClass::Foreground).wait().unwrap();
        assert_eq!(part, data.slice(70_000..75_000));
    });
    assert_eq!((done.reads, done.read_bytes), (1, 8192));
    assert_eq!(read(&store, 1), data);
}

/// Symptom: read windows of merges took two commands and a copy, many of them.
/// Cause: an extent was cut into commands from its own beginning, and a range across such a cut took one on
/// each side.
/// Fix: the range is cut, from its own beginning.
#[test]
fn a_range_takes_as_many_reads_wherever_in_an_extent_it_begins() {
    let (_device, store) = fresh();
    let data = bytes(8 << 20, 9);
    let id = ObjectId(1);
    let mut writer = store.writer(id, plain(ReadCheck::Pages)).unwrap();
    writer.append(&data).unwrap();
    commit(&store, vec![Op::Publish(writer.finish().unwrap())]);
    let read = |range: std::ops::Range<u64>| {
        let done = count(&store, || {
            let part = store.read(id, range.clone(), IoClass::Foreground).wait().unwrap();
            assert_eq!(part, data.slice(range.start as usize..range.end as usize));
        });
        done.reads
    };
    // Its sums are read in addition.
    let sums = read(0..100) - 1;
    for at in (0..4 << 20).step_by(200_000) {
        assert_eq!(read(at..at + 250_000) - sums, 1, "250,000 bytes at {at}");
        let many = read(at..at + 3_000_000) - sums;
        assert_eq!(many, 3, "3,000,000 bytes at {at}");
    }
}

#[test]
fn an_append_that_ends_inside_a_page_reads_nothing_back() {
    let (_device, store) = fresh();
    let id = ObjectId(1);
    commit(&store, vec![Op::Create { id, opts: plain(ReadCheck::Caller) }]);
    let mut len = 0;
    for i in 0..20 {
        let done = count(&store, || {
            commit(&store, vec![Op::Append { id, at: len, data: bytes(5000, i) }]);
        });
        assert_eq!(done.reads, 0);
        len += 5000;
    }
}
