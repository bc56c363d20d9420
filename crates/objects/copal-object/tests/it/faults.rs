//! Devices that fail: fencing, damage on reads, orders of completion.

use crate::{
    basics::{bytes, commit, open, plain, stream},
    ranges::read_many,
};
use copal_device::{Device, Image, IoClass, fault::*};
use copal_object::*;
use copal_testkit::FailingReads;
use std::sync::Arc;

fn store(order: CompletionOrder) -> (Arc<FaultDevice>, Arc<dyn Device>, Store) {
    let device = FaultDevice::with_options(
        Image::zeroed(64 << 20),
        FaultOptions { order, record: false, ..FaultOptions::default() },
    );
    let dyn_device: Arc<dyn Device> = device.clone();
    Store::mkfs(&dyn_device, &MkfsOptions::default()).unwrap();
    let store = open(&dyn_device);
    (device, dyn_device, store)
}

#[test]
fn nothing_is_acknowledged_after_a_failed_write_or_flush() {
    for fault in [
        Fault::Write { skip: 0, fault: WriteFault::Error },
        Fault::Write { skip: 1, fault: WriteFault::Error },
        Fault::Flush { skip: 0, fault: FlushFault::Error },
    ] {
        let (device, _, store) = store(CompletionOrder::Fifo);
        let id = ObjectId(1);
        commit(
            &store,
            vec![
                Op::Create { id, opts: plain(ReadCheck::Pages) },
                Op::Append { id, at: 0, data: bytes(10, 1) },
            ],
        );
        device.inject(fault);
        let append = |at| vec![Op::Append { id, at, data: bytes(5000, 2) }];
        let failed = store.commit(Txn::new().ops(append(10)), Ack::Durable).wait();
        assert!(matches!(failed, Err(StoreError::Device(_))), "{fault:?}: {failed:?}");
        let fenced = store.commit(Txn::new().ops(append(5010)), Ack::Ordered).wait();
        assert!(matches!(fenced, Err(StoreError::Fenced)));
        assert!(store.sync(Lsn(u64::MAX)).wait().is_err() && store.close().is_err());
        device.heal();
        let again: Arc<dyn Device> = device.reopen();
        let store = open(&again);
        let found = store.read(id, 0..10, IoClass::Foreground).wait().unwrap();
        assert_eq!(found, bytes(10, 1));
        commit(&store, vec![Op::Delete { id }]);
    }
}

/// Symptom: a host that ran full inside a write (under a copy-on-write file system, a thin volume or a file
/// with holes) counted as a failed disk.
/// Cause: the store reported a failed write, and afterwards only that one had failed.
/// Fix: every later write names the full host, and nothing acknowledged is lost.
#[test]
fn a_host_that_runs_full_in_a_write_is_named_until_the_store_is_reopened() {
    let write = Fault::Write { skip: 0, fault: WriteFault::HostFull };
    let flush = Fault::Flush { skip: 0, fault: FlushFault::HostFull };
    for fault in [write, flush] {
        let (device, _, store) = store(CompletionOrder::Fifo);
        let id = ObjectId(1);
        commit(&store, vec![Op::Create { id, opts: plain(ReadCheck::Pages) }]);
        let append = |at| Txn::new().append(id, at, bytes(5000, 2));
        store.commit(append(0), Ack::Durable).wait().unwrap();
        device.inject(fault);
        for _ in 0..2 {
            let refused = store.commit(append(5000), Ack::Durable).wait().unwrap_err();
            assert!(refused.is_host_full() && !refused.is_no_space(), "{fault:?}: {refused}");
        }
        let refused = store.append_frame(id, bytes(10, 3), None, Ack::Ordered).wait();
        assert!(refused.unwrap_err().is_host_full());
        assert!(store.checkpoint().unwrap_err().is_host_full());
        assert!(store.close().unwrap_err().is_host_full());
        let again: Arc<dyn Device> = device.reopen();
        let store = open(&again);
        let found = store.read(id, 0..5000, IoClass::Foreground).wait().unwrap();
        assert_eq!(found, bytes(5000, 2));
        commit(&store, vec![Op::Delete { id }]);
    }
}

#[test]
fn a_failed_frame_fences_the_store() {
    let (device, _, store) = store(CompletionOrder::Fifo);
    let id = ObjectId(1);
    commit(&store, vec![Op::Create { id, opts: stream() }]);
    store.append_frame(id, bytes(10, 1), None, Ack::Durable).wait().unwrap();
    device.inject(Fault::Write { skip: 0, fault: WriteFault::Error });
    assert!(matches!(
        store.append_frame(id, bytes(10, 2), None, Ack::Durable).wait(),
        Err(StoreError::Device(_))
    ));
    assert!(matches!(
        store.append_frame(id, bytes(10, 3), None, Ack::Ordered).wait(),
        Err(StoreError::Fenced)
    ));
    device.heal();
    let again: Arc<dyn Device> = device.reopen();
    let store = open(&again);
    let mut reader = store.frames(id, FramePos(0)).unwrap();
    assert_eq!(reader.next_frame().unwrap().unwrap().1, bytes(10, 1));
}

#[test]
fn a_read_of_bytes_in_flight_returns_them() {
    for order in [CompletionOrder::Fifo, CompletionOrder::Lifo, CompletionOrder::Shuffled] {
        let (_, _, store) = store(order);
        let id = ObjectId(1);
        for check in [ReadCheck::Pages, ReadCheck::Caller] {
            let ops =
                vec![Op::Create { id, opts: plain(check) }, Op::Append { id, at: 0, data: bytes(9000, 1) }];
            store.commit(Txn::new().ops(ops), Ack::Ordered).wait().unwrap();
            let found = store.read(id, 0..u64::MAX, IoClass::Foreground).wait().unwrap();
            assert_eq!(found, bytes(9000, 1));
            // The last page is in flight: merged from memory.
            for i in 0..5 {
                store
                    .commit(Txn::new().append(id, 9000 + 100 * i, bytes(100, i)), Ack::Ordered)
                    .wait()
                    .unwrap();
            }
            let found = read_many(&store, &[(id, 9300..9400), (id, 0..10)], 1 << 20);
            assert_eq!(found[0].as_ref().unwrap(), &bytes(100, 3));
            assert_eq!(found[1].as_ref().unwrap(), &bytes(9000, 1).slice(..10));
            commit(&store, vec![Op::Delete { id }]);
        }
    }
}

/// Concurrent waiters share a flush.
#[test]
fn waiting_commits_and_frames_share_flushes() {
    let (_, _, store) = store(CompletionOrder::Fifo);
    let id = ObjectId(1);
    commit(
        &store,
        vec![
            Op::Create { id, opts: stream() },
            Op::Create { id: ObjectId(2), opts: plain(ReadCheck::Pages) },
        ],
    );
    store.append_frame(id, bytes(10, 0), None, Ack::Durable).wait().unwrap();
    let before = store.counters();
    let mut frames = Vec::new();
    let mut commits = Vec::new();
    for i in 0..16u64 {
        commits.push(store.commit(Txn::new().append(ObjectId(2), i * 4096, bytes(4096, i)), Ack::Durable));
        frames.push(store.append_frame(id, bytes(100, i), None, Ack::Durable));
    }
    for frame in frames {
        frame.wait().unwrap();
    }
    for commit in commits {
        commit.wait().unwrap();
    }
    let flushes = (store.counters() - before).flushes;
    assert!(flushes <= 3, "{flushes} flushes for 32 durable operations");
}

/// OBJ-14 as used by copal-kv: value first, pointer after, one flush for both.
#[test]
fn a_value_and_the_frame_that_points_to_it_are_one_flush() {
    let (_, dyn_device, store) = store(CompletionOrder::Fifo);
    let (log, values) = (ObjectId(1), ObjectId(2));
    commit(
        &store,
        vec![
            Op::Create { id: log, opts: stream() },
            Op::Create { id: values, opts: plain(ReadCheck::Caller) },
        ],
    );
    store.append_frame(log, bytes(10, 0), None, Ack::Durable).wait().unwrap();
    let before = store.counters();
    let lsn = store.commit(Txn::new().append(values, 0, bytes(100_000, 5)), Ack::Ordered).wait().unwrap();
    store.append_frame(log, bytes(50, 1), Some(lsn), Ack::Durable).wait().unwrap();
    let done = store.counters() - before;
    assert_eq!((done.flushes, done.fua_writes), (1, 0));
    drop(store);
    let store = open(&dyn_device);
    assert_eq!(store.read(values, 0..u64::MAX, IoClass::Foreground).wait().unwrap(), bytes(100_000, 5));
}

#[test]
fn a_damaged_sector_fails_the_read_and_nothing_else() {
    let (device, dyn_device, store) = store(CompletionOrder::Fifo);
    let id = ObjectId(1);
    commit(
        &store,
        vec![
            Op::Create { id, opts: plain(ReadCheck::Pages) },
            Op::Append { id, at: 0, data: bytes(9000, 1) },
        ],
    );
    store.close().unwrap();
    drop(store);
    // Each data page in turn loses a bit; a read reports its position.
    let store = open(&dyn_device);
    let image = device.image();
    let wanted = bytes(9000, 1);
    let mut page = vec![0; 4096];
    let place = (0..16_384u64)
        .find(|index| {
            image.read(index * 4096, &mut page);
            page[..] == wanted[4096..8192]
        })
        .unwrap();
    device.inject(Fault::BitFlip { at: place * 4096 + 7, bit: 1 });
    let error = store.read(id, 5000..5001, IoClass::Foreground).wait().unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { range, .. } if range == (4096..8192)));
    assert!(store.read(id, 0..4096, IoClass::Foreground).wait().is_ok());
    let report = store.check(&CheckOptions { data: true, repair: true }).unwrap();
    assert_eq!(report.damages, [StoreDamage::Object { id, range: 4096..8192 }]);
    assert!(!report.is_clean());
    device.inject(Fault::ReadError { at: place * 4096, len: 4096 });
    assert!(matches!(store.read(id, 5000..5001, IoClass::Foreground).wait(), Err(StoreError::Device(_))));
    commit(&store, vec![Op::Delete { id }]);
}

/// T6: a lost or misdirected write, or a flipped bit, is reported after a clean close: by the opening, a read
/// or the check. No read returns wrong bytes.
#[test]
fn one_lost_or_misdirected_write_is_never_read_as_if_nothing_had_happened() {
    let mut reported = 0;
    for seed in 0..90u64 {
        let mut random = copal_testkit::Random::new(seed);
        let mut next = move |below| random.below(below);
        let (device, dyn_device, store) = store(CompletionOrder::Shuffled);
        let log = ObjectId(9);
        let objects: Vec<ObjectId> = (1..4).map(ObjectId).collect();
        let creates = objects.iter().map(|&id| Op::Create { id, opts: plain(ReadCheck::Pages) });
        commit(&store, creates.chain([Op::Create { id: log, opts: stream() }]).collect());
        let mut model = vec![Vec::new(); 3];
        let mut frames = Vec::new();
        let skip = next(40) as u32;
        device.inject(match seed % 3 {
            0 => Fault::Write { skip, fault: WriteFault::Lost },
            1 => Fault::Write { skip, fault: WriteFault::Misdirected { to: next(3000) * 4096 } },
            _ => Fault::BitFlip { at: (272 + next(3000)) * 4096 + next(4096), bit: next(8) as u8 },
        });
        for step in 0..30 {
            let which = next(3) as usize;
            let data = bytes(1 + next(9000) as usize, seed * 1000 + step);
            let (at, len) = (next(12_000) as usize, data.len());
            let content: &mut Vec<u8> = &mut model[which];
            content.resize(content.len().max(at + len), 0);
            content[at..at + len].copy_from_slice(&data);
            let ack = if next(3) == 0 { Ack::Durable } else { Ack::Ordered };
            if store.commit(Txn::new().write(objects[which], at as u64, data), ack).wait().is_err() {
                // Old bytes to merge with were damaged: that is a report too.
                break;
            }
            let frame = bytes(1 + next(3000) as usize, step);
            store.append_frame(log, frame.clone(), None, ack).wait().unwrap();
            frames.push(frame);
        }
        let complete = frames.len() == 30;
        store.close().unwrap();
        drop(store);
        let Ok((store, _)) = Store::open(dyn_device, &OpenOptions::default()) else {
            reported += 1;
            continue;
        };
        let clean = store.check(&CheckOptions { data: true, repair: false }).unwrap().is_clean();
        reported += usize::from(!clean || !complete);
        for (id, content) in objects.iter().zip(&model) {
            match store.read(*id, 0..u64::MAX, IoClass::Foreground).wait() {
                Ok(found) => assert!(found == content[..] || !complete, "seed {seed}: {id:?} reads wrong"),
                Err(error) => assert!(error.is_corruption() && !clean, "seed {seed}: {error}"),
            }
        }
        let mut reader = store.frames(log, FramePos(0)).unwrap();
        for frame in &frames {
            match reader.next_frame() {
                Ok(found) => assert_eq!(found.map(|found| found.1).as_ref(), Some(frame), "seed {seed}"),
                Err(error) => {
                    assert!(error.is_corruption() && !clean, "seed {seed}: {error}");
                    break;
                }
            }
        }
    }
    assert!(reported > 10, "only {reported} faults struck live data");
}

/// Symptom: a commit that comes after a frame was acknowledged as written while the frame was still in
/// flight; a kill then lost both.
/// Cause: it waited only for its own writes.
/// Fix: it waits for the writes of its frames too.
#[test]
fn a_commit_after_a_frame_is_written_when_the_frame_is() {
    let (device, _, store) = store(CompletionOrder::Fifo);
    let (log, id) = (ObjectId(1), ObjectId(2));
    commit(
        &store,
        vec![Op::Create { id: log, opts: stream() }, Op::Create { id, opts: plain(ReadCheck::Pages) }],
    );
    store.append_frame(log, bytes(10, 0), None, Ack::Durable).wait().unwrap();
    let pos = store.append_frame(log, bytes(10, 1), None, Ack::Ordered).wait().unwrap();
    let mut written = store.commit(Txn::new().append(id, 0, bytes(10, 2)).after(log, pos), Ack::Written);
    let frame = device.pending().first().unwrap().id;
    for io in device.pending().into_iter().filter(|io| io.id != frame) {
        device.complete(io.id);
    }
    assert!(written.try_take().is_none(), "the frame is still on its way");
    // The stream may be deleted; the commit still waits for the frame that it came after.
    store.commit(Txn::new().delete(log), Ack::Ordered).wait().unwrap();
    assert!(written.try_take().is_none());
    assert!(device.complete(frame));
    written.wait().unwrap();
}

/// Result of a read-only opening: numbers of replayed and dropped records, and the content of two objects.
fn opened(
    device: Arc<dyn Device>,
    accept_tail_loss: bool,
) -> Result<(String, Vec<u8>, usize), StoreOpenError> {
    let options = OpenOptions { read_only: true, accept_tail_loss, ..OpenOptions::default() };
    let (store, mut report) = Store::open(device, &options)?;
    report.superblock_copies_repaired = 0;
    report.checkpoint_pages_repaired = 0;
    let plain = store.read(ObjectId(1), 0..20_000, IoClass::Foreground).wait();
    let mut frames = store.frames(ObjectId(2), FramePos(0)).unwrap();
    let mut count = 0;
    while let Ok(Some(_)) = frames.next_frame() {
        count += 1;
    }
    Ok((format!("{report:?}"), plain.unwrap_or_default().to_vec(), count))
}

/// Symptom: `EMFILE`, `ESTALE` and a single `EIO` while a store was opened were reported as damage, or as a
/// missing store.
/// Cause: readers of superblocks and of the checkpoint took each error of the device for damaged bytes.
/// Fix: an opening tries each read twice, and an error that says nothing about the medium is an error of the
/// opening.
#[test]
fn a_read_of_an_opening_that_fails_is_no_damage() {
    let (device, dyn_device, store) = store(CompletionOrder::Fifo);
    let append = |at, data| vec![Op::Append { id: ObjectId(1), at, data }];
    commit(&store, vec![Op::Create { id: ObjectId(1), opts: plain(ReadCheck::Pages) }]);
    commit(&store, vec![Op::Create { id: ObjectId(2), opts: stream() }]);
    commit(&store, append(0, bytes(12_000, 1)));
    store.close().unwrap();
    let store = open(&dyn_device);
    commit(&store, append(12_000, bytes(8_000, 2)));
    for frame in 0..5 {
        let frame = store.append_frame(ObjectId(2), bytes(3000, frame), None, Ack::Durable);
        frame.wait().unwrap();
    }
    // The process dies.
    let device: Arc<dyn Device> = device.reopen();
    let expected = opened(Arc::clone(&device), false).unwrap();
    assert_eq!((expected.1.len(), expected.2), (20_000, 5));
    let (eio, emfile, estale) = (5, 24, 116);
    const ALWAYS: u64 = 1 << 40;
    for (errno, times, accept_tail_loss) in [
        (eio, 1, false),
        (eio, 2, false),
        (emfile, 1, false),
        (emfile, 2, false),
        (emfile, 2, true),
        (emfile, ALWAYS, false),
        (estale, 1, false),
        (estale, 2, true),
        (estale, ALWAYS, true),
    ] {
        let mut passed = 0;
        for first in 0.. {
            let failing = FailingReads::over(Arc::clone(&device), first..first + times, errno);
            let found = opened(failing.clone(), accept_tail_loss);
            if failing.reads() <= first {
                break;
            }
            match found {
                // Reads after the opening have their own errors.
                Ok((report, plain, frames)) => {
                    assert_eq!(report, expected.0, "{errno} at {first}");
                    assert!(plain.is_empty() || plain == expected.1);
                    assert!(frames <= expected.2);
                    passed += 1;
                }
                Err(StoreOpenError::Device(error)) => {
                    assert!(times > 1, "{errno} at {first}, once: {error}");
                    assert_eq!(error.is_passing(), errno != eio);
                }
                Err(error) => panic!("{errno} at {first}, {times} times: {error:?}"),
            }
        }
        assert!(passed > 0);
    }
}

/// All reads fail: it is unknown whether there is a store.
#[test]
fn a_device_that_gives_nothing_is_not_called_empty() {
    let (_, device, store) = store(CompletionOrder::Fifo);
    store.close().unwrap();
    for errno in [5, 24] {
        let failing = FailingReads::over(Arc::clone(&device), 0..u64::MAX, errno);
        let found = opened(failing, false);
        assert!(matches!(found, Err(StoreOpenError::Device(_))), "{errno}: {found:?}");
    }
}
