//! Many keys in one call: as many reads as one by one, but issued together.

use crate::support::*;
use copal_device::{
    AlignedBuf, Completer, Completion, CompletionDriver, Device, DeviceCounters, DeviceError, Geometry,
    Image, Io, IoClass, IoDone, IoKind, MemoryDevice,
};
use copal_kv::{CacheMode, Keyspace, KeyspaceOptions, Options, Store};
use copal_object::Store as Objects;
use parking_lot::Mutex;
use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
};

/// Device that completes reads only when a thread waits, so that those in flight can be counted.
struct Patient {
    inner: Arc<dyn Device>,
    queue: Arc<Queue>,
}

type Waiting = (Vec<Io>, Completer<Vec<IoDone>>);

struct Queue {
    inner: Arc<dyn Device>,
    waiting: Mutex<VecDeque<Waiting>>,
    most: AtomicUsize,
}

impl CompletionDriver for Queue {
    fn drive(&self) -> bool {
        let Some((ios, completer)) = self.waiting.lock().pop_front() else {
            return self.inner.drive();
        };
        completer.complete(self.inner.submit(ios).wait());
        true
    }
}

impl Device for Patient {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }
    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        let reads = |io: &Io| matches!(io.kind, IoKind::Read(_)) && io.class != IoClass::Background;
        if !ios.iter().all(reads) {
            return self.inner.submit(ios);
        }
        let (completer, completion) = Completion::pair(self.driver());
        let mut waiting = self.queue.waiting.lock();
        waiting.push_back((ios, completer));
        let under_way = waiting.iter().map(|(ios, _)| ios.len()).sum();
        self.queue.most.fetch_max(under_way, SeqCst);
        completion
    }
    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.inner.read_now(at, buf)
    }
    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.inner.write_through(at, buf)
    }
    fn grow(&self, size: u64) -> Result<u64, DeviceError> {
        self.inner.grow(size)
    }
    fn counters(&self) -> DeviceCounters {
        self.inner.counters()
    }
    fn drive(&self) -> bool {
        self.queue.drive()
    }
    fn driver(&self) -> Option<Arc<dyn CompletionDriver>> {
        Some(self.queue.clone())
    }
}

const KEYS: u64 = 6000;

fn key(number: u64) -> [u8; 8] {
    copal_testkit::scattered(number).to_be_bytes()
}

/// Three runs of 1 KB values, some of them separated, nothing cached, every filter loaded.
fn loaded(objects: Objects, mode: CacheMode) -> (Store, Keyspace) {
    let options = Options { memory_bytes: 64 * MIB, ..small() };
    let store = Store::open(objects.clone(), options.clone()).unwrap();
    let space = KeyspaceOptions { separate_from_bytes: 2000, cache: mode, ..KeyspaceOptions::default() };
    let filled = store.keyspace("a", space.clone()).unwrap();
    for run in 0..3 {
        for number in (run..KEYS).step_by(3) {
            let len = if number % 10 == 0 { 3000 } else { 1000 };
            filled.put(&key(number), &value(number, len), PROCESS).unwrap();
        }
        store.flush().unwrap();
    }
    store.close().unwrap();
    drop(filled);
    drop(store);
    let store = Store::open(objects, options).unwrap();
    let space = store.keyspace("a", space).unwrap();
    // Absent keys load the filters, and the index pages with them.
    for number in KEYS..2 * KEYS {
        assert_eq!(space.get(&key(number)).unwrap(), None);
    }
    (store, space)
}

fn patient() -> (Objects, Arc<Queue>) {
    let size = 128 * MIB;
    let inner: Arc<dyn Device> = MemoryDevice::from_image(Image::zeroed(size), size);
    format(&inner);
    let queue =
        Arc::new(Queue { inner: inner.clone(), waiting: Mutex::default(), most: AtomicUsize::new(0) });
    let device: Arc<dyn Device> = Arc::new(Patient { inner, queue: queue.clone() });
    (open_objects(&device), queue)
}

#[test]
fn many_keys_cost_the_reads_of_each_in_a_few_batches() {
    let (objects, queue) = patient();
    let (store, space) = loaded(objects.clone(), CacheMode::Nothing);
    let numbers: Vec<u64> = (0..200).map(|number| number * 29 % (KEYS + 500)).collect();
    let keys: Vec<_> = numbers.iter().map(|number| key(*number)).collect();

    let (before, reads_before) = (store.stats(), objects.counters().reads);
    let alone: Vec<_> = keys.iter().map(|key| space.get(key).unwrap()).collect();
    let (one_by_one, reads_alone) = (store.stats(), objects.counters().reads - reads_before);
    assert_eq!(one_by_one.read_batches, before.read_batches, "a single look-up reads by itself");

    queue.most.store(0, SeqCst);
    let reads_before = objects.counters().reads;
    let together: Vec<_> = space.multi_get(&keys).into_iter().map(Result::unwrap).collect();
    let (after, reads_together) = (store.stats(), objects.counters().reads - reads_before);
    assert_eq!(together, alone);
    for (number, found) in numbers.iter().zip(&together) {
        assert_eq!(found.is_some(), *number < KEYS, "{number}");
    }
    let batched = after.batched_reads - one_by_one.batched_reads;
    let batches = after.read_batches - one_by_one.read_batches;
    assert!(reads_together <= reads_alone / 2, "{reads_together} reads, {reads_alone} one by one");
    assert!(batched > 180, "{batched} of {reads_together} reads went in batches");
    assert!(batches <= 12, "{batches} batches for {batched} reads");
    let most = queue.most.load(SeqCst);
    assert!(most >= 16, "{most} reads were under way at once");
    assert_eq!(after.gets - one_by_one.gets, 200);
}

#[test]
fn rows_and_memtables_answer_without_a_read() {
    let (objects, _) = patient();
    let (store, space) = loaded(objects.clone(), CacheMode::Rows);
    let keys: Vec<_> = (0..100).map(key).collect();
    space.put(&keys[3], b"newer", PROCESS).unwrap();
    space.delete(&keys[4], PROCESS).unwrap();
    let first = space.multi_get(&keys);
    let reads = objects.counters().reads;
    let again = space.multi_get(&keys);
    assert_eq!(objects.counters().reads, reads, "the second time all of them are rows");
    assert!(store.stats().row_hits >= 98);
    for (number, (first, again)) in first.into_iter().zip(again).enumerate() {
        let expected = match number {
            3 => Some(b"newer".to_vec()),
            4 => None,
            _ => Some(value(number as u64, if number % 10 == 0 { 3000 } else { 1000 })),
        };
        assert_eq!(first.unwrap().as_deref(), expected.as_deref(), "{number}");
        assert_eq!(again.unwrap().as_deref(), expected.as_deref(), "{number}");
    }
}

/// Symptom: the look-ups of a window of a restore took 40 reads of neighbouring parts of the index. Cause: the pages of
/// 128 keys were read together, so blocks beside each other were in different calls. Fix: the keys of a window are
/// searched together, and as many pages are read together as there is memory for.
#[test]
fn thousands_of_keys_are_read_in_few_calls() {
    let (objects, _) = patient();
    let (store, space) = loaded(objects.clone(), CacheMode::Nothing);
    let mut keys: Vec<_> = (0..KEYS).step_by(2).map(key).collect();
    keys.sort_unstable();
    let (before, commands_before) = (store.stats(), objects.counters().reads);
    let values = space.multi_get(&keys);
    assert!(values.into_iter().all(|value| value.unwrap().is_some()));
    let (after, commands) = (store.stats(), objects.counters().reads - commands_before);
    let blocks = after.data_block_reads - before.data_block_reads;
    assert!(blocks > 1000, "{blocks} blocks");
    // Two for each run: blocks, and values that are separated.
    let batches = after.read_batches - before.read_batches;
    assert!(batches <= 6, "{batches} calls for {blocks} blocks");
    // The blocks of a run lie side by side, 4 MiB of them: commands of 1 MiB at most. The values are apart.
    assert!(commands < 40, "{commands} commands for {blocks} blocks");
}

/// Symptom: a prune read one block of 1 KiB fourteen times in a row. Cause: a keyspace that caches rows keeps no blocks,
/// and the rows side by side in a block were looked up one after another. Fix: the last blocks stay for a while.
#[test]
fn look_ups_of_neighbours_read_their_block_once() {
    let (objects, _) = patient();
    let (store, space) = loaded(objects, CacheMode::Rows);
    let mut numbers: Vec<u64> = (0..KEYS).collect();
    numbers.sort_unstable_by_key(|number| key(*number));
    let before = store.stats().data_block_reads;
    for number in numbers.iter().take(2000) {
        assert!(space.get(&key(*number)).unwrap().is_some());
    }
    let read = store.stats().data_block_reads - before;
    assert!(read <= 600, "{read} reads of blocks for 2000 rows, four in a block");
}
