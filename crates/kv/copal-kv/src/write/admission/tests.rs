//! Power loss around a change of the log, before the flush of the old one.

use crate::{
    Durability, Error, Keyspace, KeyspaceOptions, Options, Store,
    format::entry::KeyspaceId,
    write::{
        admission,
        commit::{WriteOp, WriteRequest, leader},
        log,
    },
};
use copal_device::{
    Device, Image,
    crash::{self, StateLimits},
    fault::{CompletionOrder, Fault, FaultDevice, FaultOptions, WriteFault},
};
use copal_object::{MkfsOptions, OpenOptions, Store as Objects};
use std::{ops::Bound, sync::Arc};

const SIZE: u64 = 64 << 20;

fn device(image: Image, seed: u64, record: bool) -> Arc<FaultDevice> {
    let options = FaultOptions {
        seed,
        order: CompletionOrder::Shuffled,
        max_size: SIZE,
        record,
        ..FaultOptions::default()
    };
    FaultDevice::with_options(image, options)
}

fn open(device: &Arc<dyn Device>) -> Result<Store, Error> {
    let objects = Objects::open(device.clone(), &OpenOptions::default()).unwrap().0;
    let options = Options { memory_bytes: 4 << 20, ..Options::default() };
    Store::open(objects, options)
}

/// Symptom: after power loss the store did not open: the new log began after sequences that no log held.
/// Cause: after power loss any subset of the kill-safe frames may be on the device, and nothing ordered the
/// new log's frames after the old log's. This did not show as long as a flush of the old log followed at
/// once. Fix: the old log is durable before the new one takes its first frame.
#[test]
fn a_crash_before_the_flush_of_the_old_log_leaves_no_gap_between_the_logs() {
    let mut judged = 0;
    for seed in 0..6 {
        let blank = device(Image::zeroed(SIZE), seed, false);
        let dynamic: Arc<dyn Device> = blank.clone();
        Objects::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
        let store = open(&dynamic).unwrap();
        store.keyspace("a", KeyspaceOptions::default()).unwrap();
        store.close().unwrap();
        store.objects().close().unwrap();
        drop(store);
        let recorded = device(blank.image(), seed, true);
        let dynamic: Arc<dyn Device> = recorded.clone();
        let store = open(&dynamic).unwrap();
        let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
        let put = |i: u8| space.put(&[i], &[i; 100], Durability::Process).unwrap();
        {
            let engine = store.engine();
            // The worker is stopped, so the old log is not flushed to a table meanwhile.
            let _still = engine.compactor.stand_still();
            (0..3).for_each(put);
            admission::rotate(engine, &mut engine.writes.writer.lock()).unwrap();
            (3..6).for_each(put);
        }
        let history = recorded.history();
        drop((space, store));
        for cut in crash::all_cuts(&history) {
            let states = cut.states(&StateLimits { exhaustive: 10, samples: 8, seed });
            for index in (0..states.count_all()).step_by(1 + states.count_all() as usize / 24) {
                let what = format!("seed {seed}, step {}, state {index}", cut.step());
                let store = open(&states.get(index).unwrap().device())
                    .unwrap_or_else(|error| panic!("{what}: {error}"));
                let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
                let keys: Vec<u8> =
                    space.iter((Bound::Unbounded, Bound::Unbounded)).map(|item| item.unwrap().0[0]).collect();
                assert!(keys.iter().copied().eq(0..keys.len() as u8), "{what}: {keys:?}");
                judged += 1;
            }
        }
    }
    assert!(judged > 300, "only {judged} states were judged");
}

/// A writer that checked for a closed store just before the close: its turn comes after the last sync.
#[test]
fn a_write_whose_turn_comes_after_the_last_sync_is_refused() {
    let blank = device(Image::zeroed(SIZE), 1, false);
    let dynamic: Arc<dyn Device> = blank.clone();
    Objects::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    let store = open(&dynamic).unwrap();
    let engine = store.engine();
    admission::end_writes(engine).unwrap();
    let op = WriteOp::Delete { key: KeyspaceId(1).key(b"k") };
    let late = WriteRequest::new(vec![op], Durability::Deferred);
    let told = engine
        .writes
        .queue
        .commit(late, |turn, writes| assert!(leader::lead(engine, turn, writes).is_none()));
    assert!(matches!(told, Err(Error::Closed)), "{told:?}");
}

/// Fills a memtable that is not frozen yet, while another one waits for its flush. The caller must stop
/// flusher and worker.
fn fill_both(space: &Keyspace, durability: Durability) {
    let engine = space.engine();
    let mut i = 0u64;
    loop {
        let view = engine.super_version();
        let full = view.active.charged_bytes() >= engine.budget.memtable_bytes();
        if full && !view.frozen.is_empty() {
            return;
        }
        space.put(&i.to_be_bytes(), &[1; 5000], durability).unwrap();
        i += 1;
    }
}

/// Symptom: after a failed flush the writers that waited for it waited forever, and so did the thread that
/// closed the store.
/// Cause: the worker wakes them after a failure, but they checked only for the flush and slept again, holding
/// the writer lock. Fix: they check the poison as well.
#[test]
fn a_writer_that_waits_for_a_flush_gets_its_error() {
    let faulty = device(Image::zeroed(SIZE), 1, false);
    let dynamic: Arc<dyn Device> = faulty.clone();
    Objects::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    let store = open(&dynamic).unwrap();
    let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
    let engine = store.engine();
    let still = engine.compactor.stand_still();
    fill_both(&space, Durability::Process);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| space.put(b"k", b"v", Durability::Process));
        while !engine.signal.someone_waits() {
            std::thread::yield_now();
        }
        faulty.inject(Fault::Write { skip: 0, fault: WriteFault::Error });
        drop(still);
        assert!(matches!(writer.join().unwrap(), Err(Error::Poisoned { .. })));
    });
    assert!(matches!(store.close(), Err(Error::Poisoned { .. })));
}

/// Symptom: deferred writes stayed out of the log as long as the next writer waited for a flush.
/// Cause: the worker logs them when they are due, but not while a thread holds the writer lock, and a thread
/// that waits for a flush holds it.
/// Fix: a thread that is about to wait logs them first.
#[test]
fn deferred_writes_are_in_the_log_before_anyone_waits_for_a_flush() {
    let memory = device(Image::zeroed(SIZE), 1, false);
    let dynamic: Arc<dyn Device> = memory.clone();
    Objects::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    let store = open(&dynamic).unwrap();
    let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
    let engine = store.engine();
    let still = engine.compactor.stand_still();
    fill_both(&space, Durability::Deferred);
    assert!(engine.writes.writer.lock().deferred_since().is_some());
    let given = engine.snapshots.allocated_seq();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| space.put(b"k", b"v", Durability::Deferred));
        while !engine.signal.someone_waits() {
            std::thread::yield_now();
        }
        let active = engine.super_version().active.clone();
        let mut logged = 0;
        log::replay(
            &engine.objects,
            active.generation,
            active.log,
            |_| (),
            |group| {
                logged = group.first_seq + group.ops.len() as u64 - 1;
                Ok(())
            },
            None,
        )
        .unwrap();
        drop(still);
        writer.join().unwrap().unwrap();
        assert_eq!(logged, given, "deferred writes wait for a flush");
    });
}
