//! The cleaner of the `log` backend: full stores are filled again after deletes, and no byte changes.

use crate::{
    basics::{bytes, commit, plain, stream},
    conformance::Backend,
    model,
};
use bytes::Bytes;
use copal_device::{
    Device, IoClass, MemoryDevice,
    emulated::{Hdd, HddProfile, Ssd, SsdProfile},
};
use copal_object::*;
use copal_testkit::Random;
use std::{
    collections::BTreeMap,
    sync::{Arc, mpsc},
    time::Duration,
};

/// Length of a store, and of its segments.
const STORE: u64 = 256 << 20;
const SEGMENT: u32 = 1 << 20;

fn in_segments(page_bytes: u32) -> (Arc<dyn Device>, Store) {
    let device: Arc<dyn Device> = MemoryDevice::new(STORE);
    let options = MkfsOptions {
        backend: BackendKind::Log,
        segment_bytes: Some(SEGMENT),
        page_bytes: Some(page_bytes),
        ..MkfsOptions::default()
    };
    Store::mkfs(&device, &options).unwrap();
    let store = open_limited(&device);
    (device, store)
}

/// Opens a store that does not grow.
fn open_limited(device: &Arc<dyn Device>) -> Store {
    let options = OpenOptions { max_size_bytes: Some(STORE), ..OpenOptions::default() };
    Store::open(Arc::clone(device), &options).unwrap().0
}

/// Objects and their content by seed and length.
type Things = BTreeMap<u64, (u64, usize)>;

fn put(store: &Store, random: &mut Random, id: u64, things: &mut Things) -> bool {
    let len = [900, 5000, 30_000, 150_000][random.below(4) as usize];
    let (id, len, seed) = (ObjectId(id), 1 + random.below(len) as usize, random.below(1 << 40));
    let data = bytes(len, seed);
    let check = [ReadCheck::Pages, ReadCheck::Caller][random.below(2) as usize];
    let result = if random.one_in(3) {
        let mut writer = store.writer(id, plain(check)).unwrap();
        writer.append(&data).and_then(|()| writer.finish()).and_then(|staged| {
            let committed = store.commit(Txn::new().publish(staged), Ack::Ordered);
            committed.wait()
        })
    } else {
        let ops = vec![Op::Create { id, opts: plain(check) }, Op::Append { id, at: 0, data }];
        store.commit(Txn::new().ops(ops), Ack::Ordered).wait()
    };
    match result {
        Ok(_) => {
            things.insert(id.0, (seed, len));
            true
        }
        Err(StoreError::NoSpace { .. }) => false,
        Err(error) => panic!("{error}"),
    }
}

/// Puts objects until 20 in a row found no space; returns the bytes of all.
fn fill(store: &Store, random: &mut Random, next: &mut u64, things: &mut Things) -> u64 {
    let mut refused = 0;
    while refused < 20 {
        *next += 1;
        refused = if put(store, random, *next, things) { 0 } else { refused + 1 };
    }
    store.space().live_bytes
}

fn compare(store: &Store, things: &Things) {
    for (&id, &(seed, len)) in things {
        let found = store.read(ObjectId(id), 0..u64::MAX, IoClass::Foreground).wait().unwrap();
        assert!(found == bytes(len, seed), "object {id}");
    }
}

/// Fills a store, deletes a part, and fills it again, several times.
fn fill_and_delete(seed: u64) {
    let page_bytes = [4096, 8192, 16_384][(seed % 3) as usize];
    let (device, mut store) = in_segments(page_bytes);
    let mut random = Random::new(seed);
    let (mut things, mut next) = (Things::new(), 0);
    let first = fill(&store, &mut random, &mut next, &mut things);
    for round in 0..3 {
        let one_in = 2 + random.below(6);
        let dead: Vec<u64> = things.keys().copied().filter(|_| random.one_in(one_in)).collect();
        for id in dead {
            store.commit(Txn::new().delete(ObjectId(id)), Ack::Ordered).wait().unwrap();
            things.remove(&id);
        }
        let again = fill(&store, &mut random, &mut next, &mut things);
        assert!(again * 100 >= first * 97, "seed {seed}, round {round}: {again} of {first} bytes");
        if random.one_in(2) {
            store.close().unwrap();
        }
        drop(store);
        store = open_limited(&device);
        compare(&store, &things);
    }
    let report = store.check(&CheckOptions { data: true, repair: false }).unwrap();
    assert!(report.is_clean(), "{report:?}");
}

/// Fails if `run` takes longer than any sound run.
fn watched(seed: u64, run: fn(u64)) {
    let (done, ended) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        run(seed);
        done.send(()).unwrap();
    });
    if ended.recv_timeout(Duration::from_secs(300)) == Err(mpsc::RecvTimeoutError::Timeout) {
        panic!("seed {seed}: a call hangs");
    }
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_full_store_is_filled_again_after_deletes() {
    let seeds = std::env::var("COPAL_FILL_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(6);
    (0..seeds).for_each(|seed| watched(seed, fill_and_delete));
}

fn nearly_full() -> (Backend, Store) {
    let (device, store) = in_segments(4096);
    let mut writer = store.writer(ObjectId(5000), plain(ReadCheck::Caller)).unwrap();
    let len = store.space().free_bytes.saturating_sub(12 << 20);
    (0..len >> 16).for_each(|_| writer.append(&vec![7; 1 << 16]).unwrap());
    store.commit(Txn::new().publish(writer.finish().unwrap()), Ack::Durable).wait().unwrap();
    (Backend::Memory(device), store)
}

#[test]
fn a_random_history_on_a_nearly_full_store_reads_like_the_model() {
    model::a_random_history_reads_like_the_model_beside(nearly_full, 4, ObjectId(5000));
}

/// Clones keep their shared pages when the cleaner moves them; frames keep their order.
#[test]
fn clones_and_frames_move_with_their_segment() {
    let (device, store) = in_segments(4096);
    let ordered = |ops| store.commit(Txn::new().ops(ops), Ack::Ordered).wait().unwrap();
    ordered(vec![Op::Create { id: ObjectId(1), opts: stream() }]);
    let (mut frames, mut clones) = (Vec::new(), Vec::new());
    for index in 0..200u64 {
        let payload = bytes(100 + (index as usize * 97) % 9000, index);
        store.append_frame(ObjectId(1), payload.clone(), None, Ack::Ordered).wait().unwrap();
        frames.push(payload);
        let (id, garbage, clone) = (ObjectId(1000 + index), ObjectId(2000 + index), ObjectId(3000 + index));
        let create = |id, seed| {
            vec![
                Op::Create { id, opts: plain(ReadCheck::Caller) },
                Op::Append { id, at: 0, data: bytes(90_000, seed) },
            ]
        };
        ordered(create(id, 10_000 + index));
        ordered(vec![Op::Clone { from: id, to: clone }]);
        ordered(create(garbage, index));
        // One of both is changed, so that they share some pages only.
        ordered(vec![Op::Write { id: clone, at: 20_000, data: bytes(9000, index) }]);
        clones.push((id, clone, index));
    }
    for index in 0..200 {
        ordered(vec![Op::Delete { id: ObjectId(2000 + index) }]);
    }
    // More space than is free comes from the deleted objects.
    let mut more = Vec::new();
    let mut random = Random::new(5);
    let mut things = Things::new();
    for id in 5000.. {
        if !put(&store, &mut random, id, &mut things) {
            break;
        }
        more.push(id);
    }
    let check = |store: &Store| {
        for &(id, clone, index) in &clones {
            let mut want = bytes(90_000, 10_000 + index).to_vec();
            let found = |id| store.read(id, 0..u64::MAX, IoClass::Foreground).wait().unwrap();
            assert!(found(id) == want[..], "object {}", id.0);
            want[20_000..29_000].copy_from_slice(&bytes(9000, index));
            assert!(found(clone) == want[..], "clone {}", clone.0);
        }
        let mut reader = store.frames(ObjectId(1), FramePos(0)).unwrap();
        for (number, frame) in frames.iter().enumerate() {
            let (at, payload): (FramePos, Bytes) = reader.next_frame().unwrap().unwrap();
            assert_eq!((at.0, &payload), (number as u64, frame));
        }
        assert!(reader.next_frame().unwrap().is_none());
        compare(store, &things);
    };
    check(&store);
    drop(store);
    let store = open_limited(&device);
    check(&store);
    // All clones die: every page of theirs is free again, shared ones too.
    for &(id, clone, _) in &clones {
        store.commit(Txn::new().delete(id).delete(clone), Ack::Ordered).wait().unwrap();
    }
    store.sync(Lsn(u64::MAX)).wait().unwrap();
    let dead = store.space();
    let live: usize = things.values().map(|(_, len)| len + 8192).sum();
    assert!(dead.live_bytes < live as u64 + (4 << 20), "{dead:?}");
    assert!(store.check(&CheckOptions { data: true, repair: false }).unwrap().is_clean());
}

/// A store in segments grows by whole segments, and its records go on in the new ones before a checkpoint knows them.
#[test]
fn a_store_that_grew_opens_again_after_a_kill() {
    let device: Arc<dyn Device> = MemoryDevice::new(64 << 20);
    let options =
        MkfsOptions { backend: BackendKind::Log, segment_bytes: Some(SEGMENT), ..MkfsOptions::default() };
    Store::mkfs(&device, &options).unwrap();
    let mut store = open_limited(&device);
    let mut random = Random::new(3);
    let (mut things, mut next) = (Things::new(), 0);
    let sizes: Vec<u64> = (0..6)
        .map(|_| {
            for _ in 0..900 {
                next += 1;
                put(&store, &mut random, next, &mut things);
            }
            drop(std::mem::replace(&mut store, open_limited(&device)));
            compare(&store, &things);
            store.space().size_bytes
        })
        .collect();
    assert!(sizes[5] > 2 * sizes[0], "{sizes:?}");
    assert!(store.check(&CheckOptions { data: true, repair: false }).unwrap().is_clean());
}

/// Symptom: a store with free bytes refused a transaction that replaced an object by another one.
/// Cause: the rests of segments that records and checkpoints are appended to counted as free.
/// Fix: only pages that data can get count, however records and checkpoints go on.
#[test]
fn a_store_that_is_never_full_refuses_no_replacement() {
    let hdd = || -> Arc<dyn Device> { Hdd::new(64 << 20, HddProfile::default()) };
    let memory = || -> Arc<dyn Device> { MemoryDevice::new(64 << 20) };
    let disks: [&dyn Fn() -> Arc<dyn Device>; 2] = [&memory, &hdd];
    for disk in disks {
        let device = disk();
        let options =
            MkfsOptions { backend: BackendKind::Log, segment_bytes: Some(SEGMENT), ..MkfsOptions::default() };
        Store::mkfs(&device, &options).unwrap();
        let options = OpenOptions { max_size_bytes: Some(64 << 20), ..OpenOptions::default() };
        let store = Store::open(Arc::clone(&device), &options).unwrap().0;
        let mut random = Random::new(7);
        let mut live = Vec::new();
        let put = |random: &mut Random, id: u64, old: Vec<u64>| {
            let data = bytes(3000 + random.below(50_000) as usize, id);
            let txn = Txn::new().create(ObjectId(id), plain(ReadCheck::Caller)).append(ObjectId(id), 0, data);
            let txn = old.into_iter().fold(txn, |txn, old| txn.delete(ObjectId(old)));
            store.commit(txn, Ack::Ordered).wait().unwrap();
        };
        for id in 1..8000 {
            let space = store.space();
            // Two of them are longer than any new one, on average.
            let dead = if space.free_bytes < 200 << 10 { 2 } else { 0 };
            let old = (0..dead).map(|_| live.swap_remove(random.below(live.len() as u64) as usize)).collect();
            put(&mut random, id, old);
            live.push(id);
        }
    }
}

/// Symptom: a caller that waited for space never returned.
/// Cause: all parts of a batch had died before it was read, and the round stayed in its last step.
/// Fix: the round takes the next batch.
#[test]
fn owners_that_die_before_their_batch_is_read_do_not_stop_the_cleaner() {
    watched(0, |_| {
        let device: Arc<dyn Device> = Hdd::new(64 << 20, HddProfile::default());
        let options =
            MkfsOptions { backend: BackendKind::Log, segment_bytes: Some(SEGMENT), ..MkfsOptions::default() };
        Store::mkfs(&device, &options).unwrap();
        let options = OpenOptions { max_size_bytes: Some(64 << 20), ..OpenOptions::default() };
        let store = Store::open(Arc::clone(&device), &options).unwrap().0;
        let put = |id| {
            let (id, data) = (ObjectId(id), bytes(28 << 10, id));
            let txn = Txn::new().create(id, plain(ReadCheck::Caller)).append(id, 0, data);
            store.commit(txn, Ack::Ordered).wait()
        };
        let delete = |id| {
            store.commit(Txn::new().delete(ObjectId(id)), Ack::Ordered).wait().unwrap();
        };
        let full = (1..).find(|&id| put(id).is_err()).unwrap();
        for round in 0..4 {
            // Half of each segment is dead, so the next object that finds no room starts a round.
            (1..full).filter(|id| id % 2 == round % 2).for_each(delete);
            store.sync(Lsn(u64::MAX)).wait().unwrap();
            (1..full).filter(|id| id % 2 != round % 2).for_each(delete);
            assert!((1..full * 9 / 10).all(|id| put(id).is_ok()), "round {round}");
            (full * 9 / 10..full).for_each(|id| drop(put(id)));
            let missing = (1..full).filter(|&id| store.stat(ObjectId(id)).is_none());
            missing.collect::<Vec<_>>().into_iter().for_each(|id| {
                drop(
                    store
                        .commit(Txn::new().create(ObjectId(id), plain(ReadCheck::Caller)), Ack::Ordered)
                        .wait(),
                );
            });
        }
    });
}

// Symptom: a store that was half empty refused transactions of many small writes with `NoSpace`. Cause: the rest of a
// segment had room for the data of a group, but not for its operations too, so that an empty group was to be closed
// first, again and again. Fix: a group moves to the next segment if data and operations do not fit.
#[test]
fn a_group_of_many_small_writes_finds_room_at_the_end_of_a_segment() {
    let device: Arc<dyn Device> = MemoryDevice::new(64 << 20);
    let options =
        MkfsOptions { backend: BackendKind::Log, segment_bytes: Some(1 << 20), ..MkfsOptions::default() };
    Store::mkfs(&device, &options).unwrap();
    let (store, _) = Store::open(device, &OpenOptions::default()).unwrap();
    let objects = 100;
    for id in 1..=objects {
        commit(
            &store,
            vec![
                Op::Create { id: ObjectId(id), opts: plain(ReadCheck::Caller) },
                Op::Append { id: ObjectId(id), at: 0, data: bytes(64 * 4096, id) },
            ],
        );
    }
    let mut random = Random::new(5);
    for round in 0..600 {
        let mut write = || Op::Write {
            id: ObjectId(1 + random.below(objects)),
            at: random.below(64) * 4096,
            data: bytes(4096, round),
        };
        let ops: Vec<Op> = (0..1 + round % 40).map(|_| write()).collect();
        store.commit(Txn::new().ops(ops), Ack::Ordered).wait().unwrap();
    }
    assert!(store.check(&CheckOptions { data: true, repair: false }).unwrap().is_clean());
}

/// Pages of an object, and pages that one transaction overwrites.
const OBJECT_PAGES: u64 = 256;
const OVERWRITES: u64 = 32;

/// Symptom: a store in segments that was 80 % full refused to overwrite pages at random.
/// Cause: a segment that a round did not empty, since operations changed parts of it meanwhile, was not tried again. Its
/// few pages kept it from being used, until no room was left to clean others. Copies of such parts also took the last
/// segment to which pages could move.
/// Fix: such a segment stays a candidate, a round leaves a segment over, and one is lent where more become free for it.
#[test]
fn pages_of_a_store_that_is_80_percent_full_are_overwritten_at_random() {
    // Its commands take time, so operations come between those of a round.
    let device: Arc<dyn Device> =
        Ssd::new(STORE, SsdProfile { queue_depth: 128, ..SsdProfile::default() }.with_spare(0.07));
    let options = MkfsOptions { backend: BackendKind::Log, ..MkfsOptions::default() };
    Store::mkfs(&device, &options).unwrap();
    let store = Store::open(device, &OpenOptions::default()).unwrap().0;
    let mut random = Random::new(11);
    let mut objects = Vec::new();
    while store.space().live_bytes * 10 < store.space().size_bytes * 8 {
        let id = ObjectId(2 + objects.len() as u64);
        let data = Bytes::from(vec![objects.len() as u8; (OBJECT_PAGES * 4096) as usize]);
        let ops = vec![Op::Create { id, opts: plain(ReadCheck::Caller) }, Op::Append { id, at: 0, data }];
        store.commit(Txn::new().ops(ops), Ack::Ordered).wait().unwrap();
        objects.push(id);
    }
    let content = bytes(4096, 3);
    for round in 0..objects.len() as u64 * OBJECT_PAGES / OVERWRITES {
        let mut txn = Txn::new();
        for _ in 0..OVERWRITES {
            let id = objects[random.below(objects.len() as u64) as usize];
            txn = txn.write(id, random.below(OBJECT_PAGES) * 4096, content.clone());
        }
        let written = store.commit(txn, Ack::Ordered).wait();
        assert!(written.is_ok(), "round {round}: {written:?}; {:?}, {:?}", store.space(), store.segments());
    }
}
