//! Reads of many ranges with one call: their answers, commands, memory and damage.

use crate::basics::{bytes, commit, fresh, open, plain, stream};
use bytes::Bytes;
use copal_device::{
    AlignedBuf, Completion, CompletionDriver, Device, DeviceCounters, DeviceError, Geometry, Image, Io,
    IoClass, IoDone, IoKind,
    fault::{CompletionOrder, Fault, FaultDevice, FaultOptions},
};
use copal_object::*;
use copal_testkit::Random;
use std::{
    ops::{ControlFlow, Range},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed},
    },
};

type Answer = Result<Bytes, StoreError>;

/// All answers in the order of the ranges; each range has exactly one.
pub(crate) fn read_many(store: &Store, reads: &[(ObjectId, Range<u64>)], budget_bytes: u64) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = reads.iter().map(|_| None).collect();
    store.read_many(reads, budget_bytes, IoClass::Foreground, &mut |index, answer| {
        assert!(answers[index].replace(answer).is_none(), "range {index} is answered twice");
        ControlFlow::Continue(())
    });
    answers.into_iter().map(|answer| answer.expect("an answer")).collect()
}

fn create(store: &Store, id: u64, check: ReadCheck, data: &Bytes) {
    let txn = Txn::new().create(ObjectId(id), plain(check)).append(ObjectId(id), 0, data.clone());
    store.commit(txn, Ack::Durable).wait().unwrap();
}

fn publish(store: &Store, id: u64, check: ReadCheck, data: &Bytes) {
    let mut writer = store.writer(ObjectId(id), plain(check)).unwrap();
    writer.append(data).unwrap();
    commit(store, vec![Op::Publish(writer.finish().unwrap())]);
}

/// Appends to the objects in turns, so that no two pages of one object are neighbours.
fn create_in_pieces(store: &Store, ids: Range<u64>, data: &Bytes) {
    commit(
        store,
        ids.clone().map(|id| Op::Create { id: ObjectId(id), opts: plain(ReadCheck::Caller) }).collect(),
    );
    for at in (0..data.len()).step_by(4096) {
        let piece = data.slice(at..(at + 4096).min(data.len()));
        let appends =
            ids.clone().map(|id| Op::Append { id: ObjectId(id), at: at as u64, data: piece.clone() });
        commit(store, appends.collect());
    }
}

fn wanted(data: &Bytes, range: &Range<u64>) -> Bytes {
    let end = range.end.min(data.len() as u64);
    data.slice(range.start.min(end) as usize..end as usize)
}

fn reads_of(store: &Store, work: impl FnOnce()) -> DeviceCounters {
    let before = store.counters();
    work();
    store.counters() - before
}

fn with_gap(device: Arc<dyn Device>, gap_bytes: u64) -> Store {
    let options = OpenOptions { gap_bytes: Some(gap_bytes), ..OpenOptions::default() };
    Store::open(device, &options).unwrap().0
}

fn mkfs_options(backend: BackendKind) -> MkfsOptions {
    let segment_bytes = (backend == BackendKind::Log).then_some(1 << 20);
    MkfsOptions { backend, segment_bytes, ..MkfsOptions::default() }
}

const BACKENDS: [BackendKind; 2] = [BackendKind::Cow, BackendKind::Log];

fn faulty(order: CompletionOrder) -> (Arc<FaultDevice>, Store) {
    faulty_on(BackendKind::Cow, order)
}

fn faulty_on(backend: BackendKind, order: CompletionOrder) -> (Arc<FaultDevice>, Store) {
    let options = FaultOptions { order, record: false, seed: 5, ..FaultOptions::default() };
    let device = FaultDevice::with_options(Image::zeroed(64 << 20), options);
    let dynamic: Arc<dyn Device> = device.clone();
    Store::mkfs(&dynamic, &mkfs_options(backend)).unwrap();
    (device, open(&dynamic))
}

/// The device's page with these bytes.
fn page_of(device: &FaultDevice, content: &[u8]) -> u64 {
    let image = device.image();
    let mut page = vec![0; content.len()];
    let found = (0..image.size()).step_by(4096).find(|at| {
        image.read(*at, &mut page);
        page == content
    });
    found.expect("the page is on the device")
}

#[test]
fn any_ranges_of_any_objects_are_answered_as_one_by_one() {
    let orders = [CompletionOrder::Fifo, CompletionOrder::Lifo, CompletionOrder::Shuffled];
    for (backend, order) in BACKENDS.into_iter().flat_map(|backend| orders.map(|order| (backend, order))) {
        let (_device, store) = faulty_on(backend, order);
        let data = bytes(700_000, 1);
        create(&store, 1, ReadCheck::Pages, &data);
        create(&store, 2, ReadCheck::Caller, &data);
        publish(&store, 3, ReadCheck::Pages, &data);
        publish(&store, 4, ReadCheck::Caller, &data);
        create_in_pieces(&store, 5..7, &data);
        commit(&store, vec![Op::Punch { id: ObjectId(2), range: 8192..40_960 }]);
        let mut holed = data.to_vec();
        holed[8192..40_960].fill(0);
        let holed = Bytes::from(holed);
        commit(&store, vec![Op::Create { id: ObjectId(7), opts: stream() }]);
        let mut random = Random::new(9);
        for budget_bytes in [0, 10_000, 300_000, 1 << 30] {
            let reads: Vec<(ObjectId, Range<u64>)> = (0..300)
                .map(|_| {
                    let (start, len) = (random.below(720_000), 1 << random.below(20));
                    let end = if random.one_in(9) { start / 2 } else { start + random.below(len) };
                    (ObjectId(1 + random.below(8)), start..end)
                })
                .collect();
            let found = read_many(&store, &reads, budget_bytes);
            for ((id, range), found) in reads.iter().zip(found) {
                match id.0 {
                    7 => assert!(matches!(found, Err(StoreError::WrongKind(_))), "{found:?}"),
                    8 => assert!(matches!(found, Err(StoreError::NotFound(_))), "{found:?}"),
                    2 => assert_eq!(found.unwrap(), wanted(&holed, range), "{id:?} {range:?}"),
                    _ => assert_eq!(found.unwrap(), wanted(&data, range), "{id:?} {range:?}"),
                }
            }
        }
    }
}

#[test]
fn neighbours_are_read_by_one_command_and_a_page_once() {
    let (device, store) = fresh();
    let data = bytes(8 << 20, 2);
    create(&store, 1, ReadCheck::Caller, &data);
    // 100 ranges, shuffled, 32 KiB apart.
    let reads: Vec<_> =
        (0..100).map(|i| i * 37 % 100 * 32_768).map(|at| (ObjectId(1), at..at + 4096)).collect();
    let budget_bytes = 32 << 20;
    let count = |store: &Store, reads: &[(ObjectId, Range<u64>)]| {
        let done = reads_of(store, || {
            for ((_, range), found) in reads.iter().zip(read_many(store, reads, budget_bytes)) {
                assert_eq!(found.unwrap(), wanted(&data, range));
            }
        });
        (done.reads, done.read_bytes)
    };
    assert_eq!(store.gap_bytes(), 64 << 10);
    // 33 ranges and the 32 gaps between them are less than 1 MiB.
    assert_eq!(count(&store, &reads), (4, 96 * 32_768 + 4 * 4096));
    let same = vec![(ObjectId(1), 100..200); 500];
    assert_eq!(count(&store, &same), (1, 4096), "a page that 500 ranges want is read once");
    let overlapping: Vec<_> = (0..64).map(|i| (ObjectId(1), i * 65_536..i * 65_536 + 300_000)).collect();
    let bytes: u64 = (63 * 65_536 + 300_000u64).next_multiple_of(4096);
    let (commands, read) = count(&store, &overlapping);
    assert!(commands <= 6 && read == bytes, "{commands} commands read {read} bytes of {bytes}");
    drop(store);
    let store = with_gap(device.clone(), 0);
    assert_eq!(count(&store, &reads), (100, 100 * 4096));
    drop(store);
    let store = with_gap(device, 2 << 20);
    assert_eq!(count(&store, &reads).0, 4, "a command is no longer than an I/O");
}

#[test]
fn a_read_of_an_object_in_pieces_joins_them() {
    let (device, store) = fresh();
    let data = bytes(512 << 10, 3);
    create_in_pieces(&store, 1..3, &data);
    let done = reads_of(&store, || {
        let found = store.read(ObjectId(1), 0..u64::MAX, IoClass::Foreground).wait().unwrap();
        assert_eq!(found, data);
    });
    assert!(done.reads <= 2, "{} commands for 128 pages in 1 MiB", done.reads);
    drop(store);
    let store = with_gap(device, 0);
    let done = reads_of(&store, || {
        assert_eq!(read_many(&store, &[(ObjectId(1), 0..u64::MAX)], 0)[0].as_ref().unwrap(), &data);
    });
    assert!(done.reads >= 100, "{} commands without joining", done.reads);
}

#[test]
fn a_bad_page_fails_the_ranges_on_it_and_no_other() {
    let checks = [ReadCheck::Pages, ReadCheck::Caller];
    for (backend, check) in BACKENDS.into_iter().flat_map(|backend| checks.map(|check| (backend, check))) {
        let (device, store) = faulty_on(backend, CompletionOrder::Shuffled);
        let data = bytes(1000 * 4096, 4);
        create(&store, 1, check, &data);
        let reads: Vec<_> = (0..1000u64).map(|i| (ObjectId(1), i * 4096 + 10..i * 4096 + 4000)).collect();
        let bad = page_of(&device, &data[500 * 4096..501 * 4096]);
        device.inject(Fault::ReadError { at: bad, len: 4096 });
        for (index, found) in read_many(&store, &reads, 8 << 20).into_iter().enumerate() {
            match index {
                500 => assert!(matches!(found, Err(StoreError::Device(_))), "{found:?}"),
                _ => assert_eq!(found.unwrap(), wanted(&data, &reads[index].1)),
            }
        }
        // The bad page is in the gap.
        let beside = [(ObjectId(1), 499 * 4096..500 * 4096), (ObjectId(1), 501 * 4096..502 * 4096)];
        for (read, found) in beside.iter().zip(read_many(&store, &beside, 8 << 20)) {
            assert_eq!(found.unwrap(), wanted(&data, &read.1));
        }
        let across = (ObjectId(1), 499 * 4096..501 * 4096);
        assert!(read_many(&store, &[across, reads[0].clone()], 8 << 20)[0].is_err());
        device.heal();
        device.inject(Fault::BitFlip { at: bad, bit: 1 });
        for (index, found) in read_many(&store, &reads, 8 << 20).into_iter().enumerate() {
            match (check, index) {
                (ReadCheck::Pages, 500) => {
                    let Err(StoreError::Corrupt { range, .. }) = found else { panic!("{found:?}") };
                    assert_eq!(range, 500 * 4096..501 * 4096);
                }
                (ReadCheck::Caller, 500) => drop(found.unwrap()),
                _ => assert_eq!(found.unwrap(), wanted(&data, &reads[index].1)),
            }
        }
    }
}

#[test]
fn a_bad_page_between_the_pieces_of_an_object_fails_no_read() {
    let (device, store) = faulty(CompletionOrder::Fifo);
    let (data, between) = (bytes(64 << 10, 5), bytes(4096, 6));
    for at in (0..data.len()).step_by(4096) {
        let first = if at == 0 { vec![1, 2] } else { vec![] };
        commit(
            &store,
            first
                .into_iter()
                .map(|id| Op::Create { id: ObjectId(id), opts: plain(ReadCheck::Caller) })
                .collect(),
        );
        let append = |id, data| Op::Append { id: ObjectId(id), at: at as u64, data };
        commit(&store, vec![append(1, data.slice(at..at + 4096)), append(2, between.clone())]);
    }
    device.inject(Fault::ReadError { at: page_of(&device, &between), len: 4096 });
    for class in [IoClass::Foreground, IoClass::Background] {
        let done = reads_of(&store, || {
            let found = store.read(ObjectId(1), 0..u64::MAX, class).wait().unwrap();
            assert_eq!(found, data);
        });
        assert_eq!(done.reads, 16, "one command fails, then each piece is read");
    }
}

/// A device that counts the bytes of reads in flight.
struct CountedReads {
    below: Arc<dyn Device>,
    in_flight: Arc<AtomicI64>,
    most: AtomicI64,
    calls: AtomicUsize,
}

impl Device for CountedReads {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }
    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        let reads = ios.iter().filter(|io| matches!(io.kind, IoKind::Read(_)));
        let bytes: i64 = reads.map(|io| io.kind.len_bytes() as i64).sum();
        let now = self.in_flight.fetch_add(bytes, Relaxed) + bytes;
        self.most.fetch_max(now, Relaxed);
        self.calls.fetch_add(1, Relaxed);
        let in_flight = Arc::clone(&self.in_flight);
        self.below.submit(ios).map(move |done| {
            in_flight.fetch_sub(bytes, Relaxed);
            done
        })
    }
    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.below.read_now(at, buf)
    }
    fn write_through(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.below.write_through(at, buf)
    }
    fn grow(&self, size: u64) -> Result<u64, DeviceError> {
        self.below.grow(size)
    }
    fn counters(&self) -> DeviceCounters {
        self.below.counters()
    }
    fn drive(&self) -> bool {
        self.below.drive()
    }
    fn driver(&self) -> Option<Arc<dyn CompletionDriver>> {
        self.below.driver()
    }
}

fn counted(backend: BackendKind) -> (Arc<CountedReads>, Store) {
    let options = FaultOptions { order: CompletionOrder::Fifo, record: false, ..FaultOptions::default() };
    let below: Arc<dyn Device> = FaultDevice::with_options(Image::zeroed(64 << 20), options);
    Store::mkfs(&below, &mkfs_options(backend)).unwrap();
    let (in_flight, most, calls) = (Arc::default(), AtomicI64::default(), AtomicUsize::default());
    let device = Arc::new(CountedReads { below, in_flight, most, calls });
    let store = open(&(device.clone() as Arc<dyn Device>));
    (device, store)
}

#[test]
fn a_million_ranges_take_the_memory_of_the_budget() {
    BACKENDS.into_iter().for_each(a_million_ranges_on);
}

fn a_million_ranges_on(backend: BackendKind) {
    let (device, store) = counted(backend);
    let data = bytes(16 << 20, 7);
    create(&store, 1, ReadCheck::Caller, &data);
    let mut random = Random::new(1);
    let reads: Vec<_> = (0..1_000_000)
        .map(|_| random.below(16 << 20))
        .map(|at| (ObjectId(1), at..at + 1 + at % 50))
        .collect();
    let budget_bytes = 4 << 20;
    device.most.store(0, Relaxed);
    let mut answered = vec![false; reads.len()];
    let done = reads_of(&store, || {
        store.read_many(&reads, budget_bytes, IoClass::Background, &mut |index, answer| {
            assert!(!std::mem::replace(&mut answered[index], true), "range {index} is answered twice");
            assert_eq!(answer.unwrap(), wanted(&data, &reads[index].1));
            ControlFlow::Continue(())
        });
    });
    assert!(answered.iter().all(|answered| *answered));
    let most = device.most.load(Relaxed) as u64;
    assert!(most <= budget_bytes, "{most} bytes were in flight");
    // Each of the four windows reads the object once, and a batch of 512 ranges ends a command.
    assert!(done.read_bytes <= 5 * (16 << 20), "{} bytes were read", done.read_bytes);
    assert!(done.reads <= 2200, "{} commands", done.reads);
}

#[test]
fn a_break_ends_the_call_and_later_ranges_are_not_read() {
    let (device, store) = counted(BackendKind::Log);
    create(&store, 1, ReadCheck::Pages, &bytes(16 << 20, 8));
    let reads: Vec<_> = (0..64).map(|i| (ObjectId(1), i << 18..(i << 18) + 4096)).collect();
    let mut answers = 0;
    let before = device.calls.load(Relaxed);
    store.read_many(&reads, 16 << 10, IoClass::Background, &mut |_, answer| {
        answer.unwrap();
        answers += 1;
        if answers < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    });
    let calls = device.calls.load(Relaxed) - before;
    assert!(answers == 3 && calls < 10, "{answers} answers, {calls} commands");
    commit(&store, vec![Op::Delete { id: ObjectId(1) }]);
    store.close().unwrap();
}

/// A sink that changes the objects of the read, on a store that is nearly full: freed pages wait for readers, and
/// the reader must not wait for the sink.
#[test]
fn a_sink_may_overwrite_the_objects_that_are_read() {
    BACKENDS.into_iter().for_each(a_sink_overwrites_objects_on);
}

fn a_sink_overwrites_objects_on(backend: BackendKind) {
    let (_device, store) = counted(backend);
    for id in 1..4 {
        create(&store, id, ReadCheck::Pages, &bytes(10 << 20, id));
    }
    let reads: Vec<_> = (0..60).map(|i| (ObjectId(1 + i % 3), i << 17..(i << 17) + 40_000)).collect();
    let mut round = 10;
    store.read_many(&reads, 1 << 20, IoClass::Foreground, &mut |index, answer| {
        assert_eq!(answer.unwrap().len(), 40_000);
        if index % 4 == 0 {
            round += 1;
            commit(
                &store,
                vec![Op::Write { id: ObjectId(1 + round % 3), at: 0, data: bytes(10 << 20, round) }],
            );
        }
        ControlFlow::Continue(())
    });
}
