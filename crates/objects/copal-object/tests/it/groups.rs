//! Limits of a commit group, by length and by number, for every kind of entry.

use crate::basics::{bytes, commit, open, plain};
use copal_device::{
    Device, Image, IoClass,
    fault::{CompletionOrder, FaultDevice, FaultOptions},
};
use copal_object::*;
use std::sync::Arc;

/// Bytes of an operation in a record, and of a record's header (docs/formats/object-record.md).
const CREATE_BYTES: usize = 29;
const DELETE_BYTES: usize = 9;
const RECORD_HEADER_BYTES: usize = 80;
/// Longest record of a store whose journal has 8 MiB.
const RECORD_BYTES_MAX: usize = 1 << 20;

fn create(id: u64) -> Op {
    let opts = plain(ReadCheck::Caller);
    Op::Create { id: ObjectId(id), opts }
}

fn ordered(store: &Store, ops: Vec<Op>) -> Result<Lsn, StoreError> {
    let txn = Txn::new().ops(ops);
    store.commit(txn, Ack::Ordered).wait()
}

fn device_and_store(bytes: u64) -> (Arc<FaultDevice>, Store) {
    let options = FaultOptions { record: false, order: CompletionOrder::Fifo, ..FaultOptions::default() };
    let device = FaultDevice::with_options(Image::zeroed(bytes), options);
    let dynamic: Arc<dyn Device> = device.clone();
    Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    let store = open(&dynamic);
    (device, store)
}

/// Commits `each` creates at a time without driving the device, as if it were slow, until the journal is
/// full: the open group then holds the last of them. Returns the next free id.
fn stuff_journal(device: &FaultDevice, store: &Store, each: u64) -> u64 {
    let mut id = 1 << 20;
    loop {
        let sent = device.pending().len();
        ordered(store, (id..id + each).map(create).collect()).unwrap();
        id += each;
        if device.pending().len() == sent {
            return id;
        }
    }
}

/// Symptom: 65,536 transactions in one group assigned positions twice, and acknowledged commits were lost.
/// Cause: a record counts them with 16 bits.
/// Fix: a group that is full by number is closed like one that is full by length.
#[test]
fn many_small_transactions_fit_while_the_journal_waits() {
    let (device, store) = device_and_store(128 << 20);
    // From here on the device is not driven, as if it were slow.
    stuff_journal(&device, &store, 30_000);
    let mut last = Lsn(0);
    for _ in 0..70_000 {
        let lsn = ordered(&store, Vec::new()).unwrap();
        assert!(lsn > last, "{lsn:?} after {last:?}");
        last = lsn;
    }
    store.sync(last).wait().unwrap();
    last = commit(&store, vec![create(1)]);
    let killed: Arc<dyn Device> = device.reopen();
    drop(store);
    let store = open(&killed);
    assert!(store.stat(ObjectId(1)).is_some(), "an acknowledged commit is lost");
    assert!(commit(&store, Vec::new()) > last, "positions are assigned twice");
}

/// Symptom: commits acknowledged as durable were missing after the next opening.
/// Cause: a growth of the file entered the open group without a check of its length, and recovery takes a
/// record that is too long for the end of the journal.
/// Fix: there is one way into a group, which measures first, also for the store's own operations.
#[test]
fn a_growth_enters_a_nearly_full_group_as_everything_else_does() {
    const EACH: u64 = 36_000;
    let (device, store) = device_and_store(64 << 20);
    commit(&store, (0..10).map(|n| create(500 + n)).collect());
    let id = stuff_journal(&device, &store, EACH);
    // Creates and deletes fill the group until less than a growth record is left.
    let rest = RECORD_BYTES_MAX - RECORD_HEADER_BYTES - EACH as usize * CREATE_BYTES;
    let fits = |deletes: &usize| (rest - deletes * DELETE_BYTES) % CREATE_BYTES < DELETE_BYTES;
    let deletes = (0..10).find(fits).expect("some number of deletes leaves little room");
    let last = id + ((rest - deletes * DELETE_BYTES) / CREATE_BYTES) as u64;
    let mut ops: Vec<Op> = (id..last).map(create).collect();
    ops.extend((0..deletes as u64).map(|n| Op::Delete { id: ObjectId(500 + n) }));
    ordered(&store, ops).unwrap();
    let before = store.space().size_bytes;
    drop(store.reserve(60 << 20).unwrap());
    assert!(store.space().size_bytes > before, "the store has grown");
    commit(&store, vec![create(7)]);
    device.run_until_idle();
    drop(store);
    let reopened: Arc<dyn Device> = device.reopen();
    let store = open(&reopened);
    for id in [7, last - 1] {
        assert!(store.stat(ObjectId(id)).is_some(), "object {id} was acknowledged");
    }
}

/// Symptom: a crash took commits that were acknowledged as durable: "data of record 2 was not written
/// completely", although all of it was present (found by crash enumeration, history 1926).
/// Cause: sums of data were compared with units of the object that has the id at the end of the record. The
/// record itself had deleted the earlier object of that id to which the data belonged.
/// Fix: the number of pages under each sum is derived from the number of sums alone.
#[test]
fn a_name_used_again_in_one_group_loses_nothing_in_a_crash() {
    for (before, after) in [(ReadCheck::Pages, ReadCheck::Caller), (ReadCheck::Caller, ReadCheck::Pages)] {
        let (device, store) = device_and_store(64 << 20);
        let write = |check: ReadCheck, pages: usize| {
            let opts = plain(check);
            let data = vec![pages as u8; pages * 4096].into();
            let (id, at) = (ObjectId(1), 0);
            [Op::Create { id, opts }, Op::Append { id, at, data }]
        };
        // One, two and many pages, and more than a unit.
        for pages in [1, 2, 15, 16, 40] {
            let mut ops: Vec<Op> = write(before, pages).into();
            ops.push(Op::Delete { id: ObjectId(1) });
            ops.extend(write(after, 41 - pages));
            commit(&store, ops);
            let crashed = FaultDevice::with_options(device.image(), FaultOptions::default());
            let crashed: Arc<dyn Device> = crashed;
            let (survivor, report) = Store::open(crashed, &OpenOptions::default()).unwrap();
            assert_eq!(report.tail_dropped, None, "{before:?} to {after:?}, {pages} pages");
            let read = survivor.read(ObjectId(1), 0..u64::MAX, IoClass::Foreground).wait();
            assert_eq!(read.unwrap(), vec![41 - pages as u8; (41 - pages) * 4096]);
            commit(&store, vec![Op::Delete { id: ObjectId(1) }]);
        }
    }
}

/// Symptom: a read of a commit in the open group waited until a group before it was written and the open group, too.
/// Fix: such pages come from memory. Both kinds of sums are checked, and an append continues the last page there.
#[test]
fn pages_of_the_open_group_are_read_from_memory() {
    let options = FaultOptions { record: false, order: CompletionOrder::Fifo, ..FaultOptions::default() };
    let device = FaultDevice::with_options(Image::zeroed(256 << 20), options);
    let dynamic: Arc<dyn Device> = device.clone();
    Store::mkfs(&dynamic, &MkfsOptions { backend: BackendKind::Log, ..MkfsOptions::default() }).unwrap();
    let store = open(&dynamic);
    let put = |id: u64, check: ReadCheck, len: usize| {
        let id = ObjectId(id);
        let txn = Txn::new().create(id, plain(check)).append(id, 0, bytes(len, id.0));
        store.commit(txn, Ack::Ordered).wait().unwrap();
    };
    // The device is not driven, so groups before stay on their way, and the open one stays open.
    let on_their_way = || (device.pending().len(), store.counters());
    let mut before = on_their_way();
    for id in 10.. {
        put(id, ReadCheck::Pages, 5000);
        let now = on_their_way();
        if now.0 == before.0 {
            break;
        }
        before = now;
    }
    put(1, ReadCheck::Pages, 10_000);
    put(2, ReadCheck::Caller, 30_000);
    let before = on_their_way();
    for (id, len) in [(1, 10_000), (2, 30_000)] {
        let wanted = bytes(len, id);
        for range in [0..len, 1..2, 4095..4097, 8192..len, 3000..9000] {
            let read = store.read(ObjectId(id), range.start as u64..range.end as u64, IoClass::Foreground);
            assert_eq!(read.wait().unwrap(), wanted[range]);
        }
    }
    let more = Txn::new().append(ObjectId(1), 10_000, bytes(700, 9));
    store.commit(more, Ack::Ordered).wait().unwrap();
    let read = store.read(ObjectId(1), 9999..10_001, IoClass::Foreground).wait().unwrap();
    assert_eq!(read, [&bytes(10_000, 1)[9999..], &bytes(700, 9)[..1]].concat());
    let now = on_their_way();
    assert_eq!((now.0, now.1.reads), (before.0, before.1.reads), "a command waited, or the device was read");
    drop(store);
}
