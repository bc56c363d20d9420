use super::*;
use crate::{
    Ack, CreateOptions, MkfsOptions, ObjectId, Op, OpenOptions, ReadCheck, Store, Txn, format::run::PageRun,
    tables::TableEntry,
};
use bytes::Bytes;
use copal_device::{
    AlignedBuf, Completion, Device, DeviceCounters, DeviceError, Geometry, Io, IoClass, IoDone, IoKind,
    MemoryDevice,
};
use std::{
    collections::BTreeMap,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

fn fresh() -> Store {
    let device: Arc<dyn Device> = MemoryDevice::new(64 << 20);
    Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    Store::open(device, &OpenOptions::default()).unwrap().0
}

fn commit(store: &Store, ops: Vec<Op>) {
    store.commit(Txn::new().ops(ops), Ack::Durable).wait().unwrap();
}

fn object(store: &Store, id: u64, pages: usize) {
    let opts = CreateOptions { check: ReadCheck::Caller, ..CreateOptions::default() };
    let data = Bytes::from(vec![id as u8; pages * 4096]);
    let id = ObjectId(id);
    commit(store, vec![Op::Create { id, opts }, Op::Append { id, at: 0, data }]);
}

/// Every extent with the number of its owners.
fn extents(store: &Store) -> BTreeMap<PageRun, usize> {
    let state = store.inner.state.lock();
    let mut runs = BTreeMap::new();
    for (_, entry) in state.tables.entries.iter() {
        if let TableEntry::Object(object) = entry {
            object.map.iter().for_each(|extent| *runs.entry(extent.run).or_default() += 1);
        }
    }
    runs
}

/// The parts of all passes, each read as a whole.
fn parts(store: &Store, place: u64) -> Vec<(u64, PageRun)> {
    let mut order = ScrubOrder::new(place);
    let mut found = Vec::new();
    while order.plan(&store.inner) {
        let part = order.first().unwrap();
        assert!(order.place() <= part.at);
        found.push((part.at, part.run));
        order.advance(part.run.end());
        assert!(order.place() >= part.at);
    }
    found
}

/// In tests eight parts are in memory, so a store of more objects takes several passes.
#[test]
fn parts_come_once_each_and_in_the_order_of_their_addresses() {
    let store = fresh();
    for id in 1..40 {
        object(&store, id, 1 + (id % 19) as usize);
    }
    commit(&store, (1..40).step_by(3).map(|id| Op::Delete { id: ObjectId(id) }).collect());
    let found = parts(&store, 0);
    assert!(found.is_sorted() && found.len() > 20, "{found:?}");
    let mut counted = BTreeMap::new();
    found.iter().for_each(|(_, run)| *counted.entry(*run).or_default() += 1);
    assert_eq!(counted, extents(&store));
    // From a place within an extent, its rest and all behind it.
    let (_, middle) = found.iter().find(|(_, run)| run.pages > 4 && run.at > found[9].0).unwrap();
    let rest = parts(&store, middle.at + 2);
    assert_eq!(rest[0], (middle.at + 2, *middle));
    assert_eq!(rest.len(), found.iter().filter(|(_, run)| run.end() > middle.at + 2).count());
}

/// Symptom: a scrub over more clones of one object than parts in memory would not end.
/// Cause: all of them begin at the page up to which the pass has found everything.
/// Fix: such a pass goes on behind that page.
#[test]
fn more_clones_of_one_place_than_parts_in_memory_do_not_stop_the_order() {
    let store = fresh();
    object(&store, 1, 3);
    object(&store, 2, 3);
    commit(&store, (10..40).map(|id| Op::Clone { from: ObjectId(1), to: ObjectId(id) }).collect());
    let found = parts(&store, 0);
    assert_eq!(found.iter().map(|(_, run)| run).collect::<std::collections::BTreeSet<_>>().len(), 2);
    assert!(found.is_sorted());
}

#[test]
fn the_place_of_a_scrub_survives_its_encoding_and_no_other_bytes_are_taken_for_one() {
    use crate::format::scrub_place::ScrubPlace;
    let place = ScrubPlace { page: 0x0102_0304, damages: 7 };
    let bytes = place.encode();
    assert_eq!(ScrubPlace::decode(&bytes).unwrap(), place);
    for at in 0..bytes.len() {
        let mut flipped = bytes.clone();
        flipped[at] ^= 1;
        assert!(ScrubPlace::decode(&flipped).is_err(), "byte {at}");
        assert!(ScrubPlace::decode(&bytes[..at]).is_err(), "{at} bytes");
    }
}

/// A device that looks at the pins of its store with each read of the background class.
struct PinWatch {
    below: Arc<dyn Device>,
    store: OnceLock<Store>,
    reads: AtomicU64,
    most_pinned: AtomicU64,
    others: AtomicU64,
}

impl PinWatch {
    fn note(&self, class: IoClass) {
        let Some(store) = self.store.get() else { return };
        let is_background = class == IoClass::Background;
        if is_background { &self.reads } else { &self.others }.fetch_add(1, Ordering::Relaxed);
        self.most_pinned.fetch_max(store.inner.state.lock().space.pinned(), Ordering::Relaxed);
    }
}

impl Device for PinWatch {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }

    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        ios.iter().filter(|io| matches!(io.kind, IoKind::Read(_))).for_each(|io| self.note(io.class));
        self.below.submit(ios)
    }

    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        self.note(IoClass::Foreground);
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
}

/// At most 64 MiB are pinned at a time, and all reads behind the metadata are of the background class. Long extents,
/// a long stream and many clones would pin more if they were pinned as they are.
#[test]
fn a_scrub_pins_little_at_a_time_and_reads_in_the_background() {
    let below: Arc<dyn Device> = MemoryDevice::new(1 << 30);
    Store::mkfs(&below, &MkfsOptions::default()).unwrap();
    let watch = Arc::new(PinWatch {
        below,
        store: OnceLock::new(),
        reads: AtomicU64::new(0),
        most_pinned: AtomicU64::new(0),
        others: AtomicU64::new(0),
    });
    let store = Store::open(watch.clone(), &OpenOptions::default()).unwrap().0;
    let (large, log) = (ObjectId(1), ObjectId(2));
    let stream = CreateOptions { kind: crate::ObjectKind::Stream, ..CreateOptions::default() };
    let mut writer = store.writer(large, CreateOptions::default()).unwrap();
    (0..24).for_each(|byte| writer.append(&vec![byte; 1 << 20]).unwrap());
    let txn = Txn::new().publish(writer.finish().unwrap()).create(log, stream);
    store.commit(txn, Ack::Durable).wait().unwrap();
    for _ in 0..30 {
        let frame = Bytes::from(vec![7; 900_000]);
        store.append_frame(log, frame, None, Ack::Ordered).wait().unwrap();
    }
    object(&store, 3, 1500);
    commit(&store, (10..40).map(|id| Op::Clone { from: ObjectId(3), to: ObjectId(id) }).collect());
    store.checkpoint().unwrap();
    let mut scrub = store.scrub();
    scrub.step(&mut |damage| panic!("{damage}")).unwrap();
    assert!(watch.store.set(store.clone()).is_ok());
    while scrub.step(&mut |damage| panic!("{damage}")).unwrap().is_some() {
        assert_eq!(store.inner.state.lock().space.pinned(), 0);
    }
    let (reads, pinned) = (watch.reads.load(Ordering::Relaxed), watch.most_pinned.load(Ordering::Relaxed));
    assert!(reads > 60, "{reads} reads");
    assert!((200..16_384).contains(&pinned), "{pinned} pages");
    assert_eq!(watch.others.load(Ordering::Relaxed), 0);
}
