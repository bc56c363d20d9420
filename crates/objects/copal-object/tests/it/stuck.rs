//! Operations that must end, and not block others: readers of a fenced store, commits beside a check, a full
//! store.

use crate::basics::{bytes, commit, open, plain, stream};
use copal_device::{
    AlignedBuf, Completion, CompletionDriver, Device, DeviceCounters, DeviceError, Geometry, Image, Io,
    IoDone, MemoryDevice,
    fault::{CompletionOrder, Fault, FaultDevice, FaultOptions, WriteFault},
};
use copal_object::*;
use std::{
    sync::{Arc, atomic::AtomicBool, atomic::Ordering::SeqCst, mpsc},
    time::Duration,
};

/// Far longer than any operation here: one that has not ended by then hangs.
const FOR_EVER: Duration = Duration::from_secs(120);

fn create(id: u64) -> Op {
    let opts = plain(ReadCheck::Caller);
    Op::Create { id: ObjectId(id), opts }
}

fn ordered(store: &Store, ops: Vec<Op>) -> Result<Lsn, StoreError> {
    let txn = Txn::new().ops(ops);
    store.commit(txn, Ack::Ordered).wait()
}

/// Runs `work` on a separate thread; `None` if it hangs.
fn unless_it_hangs<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    receiver.recv_timeout(FOR_EVER).ok()
}

/// Symptom: `next_frame` never returned after a failed write.
/// Cause: it waited for a frame in flight that would never complete.
/// Fix: a failure ends the wait for all frames in flight.
#[test]
fn a_reader_of_a_fenced_store_is_answered() {
    let device = FaultDevice::new(64 << 20, 1);
    let dynamic: Arc<dyn Device> = device.clone();
    Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    let store = open(&dynamic);
    let id = ObjectId(1);
    commit(&store, vec![Op::Create { id, opts: stream() }]);
    store.append_frame(id, bytes(100, 1), None, Ack::Durable).wait().unwrap();
    device.inject(Fault::Write { skip: 0, fault: WriteFault::Error });
    store.append_frame(id, bytes(100, 2), None, Ack::Ordered).wait().unwrap();
    let lsn = ordered(&store, vec![create(5)]).unwrap();
    assert!(store.sync(lsn).wait().is_err());
    let read = unless_it_hangs(move || {
        let mut frames = store.frames(id, FramePos(0)).unwrap();
        let first = frames.next_frame().map(|frame| frame.map(|(pos, _)| pos.0));
        (first, frames.next_frame().map(drop))
    });
    let (first, second) = read.expect("next_frame returns");
    assert_eq!(first.unwrap(), Some(0));
    assert!(matches!(second, Err(StoreError::Device(_))), "{second:?}");
}

/// A device whose long reads wait until the test releases them.
struct SlowReads {
    below: Arc<dyn Device>,
    hold: AtomicBool,
    inside: AtomicBool,
}

impl Device for SlowReads {
    fn geometry(&self) -> Geometry {
        self.below.geometry()
    }
    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        self.below.submit(ios)
    }
    fn read_now(&self, at: u64, buf: AlignedBuf) -> Result<AlignedBuf, DeviceError> {
        if buf.len() > 64 << 10 {
            self.inside.store(true, SeqCst);
            while self.hold.load(SeqCst) {
                std::thread::yield_now();
            }
        }
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

/// Symptom: overwriting stopped while `check` read one large object.
/// Cause: freed pages queued up behind the oldest pin of any pages.
/// Fix: a pin names its pages, and other freed pages do not wait for it.
#[test]
fn overwriting_goes_on_while_another_object_is_checked() {
    let below = MemoryDevice::from_image(Image::zeroed(64 << 20), 64 << 20);
    Store::mkfs(&below, &MkfsOptions::default()).unwrap();
    let device = Arc::new(SlowReads { below, hold: AtomicBool::new(false), inside: AtomicBool::new(false) });
    let store = open(&(device.clone() as Arc<dyn Device>));
    for (id, len) in [(5, 4 << 20), (6, 12 << 20)] {
        let data = bytes(len, 1);
        let id = ObjectId(id);
        commit(&store, vec![create(id.0), Op::Append { id, at: 0, data }]);
    }
    device.hold.store(true, SeqCst);
    device.inside.store(false, SeqCst);
    let looked = store.clone();
    let check = std::thread::spawn(move || {
        let options = CheckOptions { data: true, repair: false };
        looked.check(&options).map(|report| report.is_clean())
    });
    while !device.inside.load(SeqCst) {
        std::thread::yield_now();
    }
    // More than is free, several times over.
    let writer = store.clone();
    let written = unless_it_hangs(move || {
        for n in 0..8 {
            let (id, data) = (ObjectId(6), bytes(12 << 20, n));
            commit(&writer, vec![Op::Write { id, at: 0, data }]);
        }
    });
    device.hold.store(false, SeqCst);
    assert!(check.join().unwrap().unwrap(), "the check finds nothing");
    assert!(written.is_some(), "overwriting waits for the check");
}

/// A store that may not grow beyond `max_size`.
fn limited(max_size: u64) -> (Arc<FaultDevice>, Store) {
    let options =
        FaultOptions { max_size, record: false, order: CompletionOrder::Fifo, ..FaultOptions::default() };
    let device = FaultDevice::with_options(Image::zeroed(64 << 20), options);
    let dynamic: Arc<dyn Device> = device.clone();
    Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    let store = open(&dynamic);
    (device, store)
}

/// Fills a store with objects of three sizes; returns the first of them.
fn fill(store: &Store) -> ObjectId {
    for (len, from) in [(1 << 20, 1000), (64 << 10, 2000), (4096, 3000)] {
        for id in (from..from + 900).map(ObjectId) {
            let data = bytes(len, 3);
            if ordered(store, vec![create(id.0), Op::Append { id, at: 0, data }]).is_err() {
                break;
            }
        }
    }
    store.checkpoint().unwrap();
    ObjectId(1000)
}

/// Creates empty objects, and deletes one after each thousand, until that is refused.
fn crowd(store: &Store) -> StoreError {
    let mut id = 1 << 20;
    loop {
        let made = ordered(store, (id..id + 1000).map(create).collect());
        id += 1000;
        let freed = made.and_then(|_| ordered(store, vec![Op::Delete { id: ObjectId(id - 1) }]));
        if let Err(error) = freed {
            return error;
        }
        assert!(id < 4 << 20, "empty objects take space too");
    }
}

/// Symptom: in a full store, delete and close never returned.
/// Cause: empty objects lengthen the tables and take no pages, so the next checkpoint did not fit, and the
/// journal was full.
/// Fix: the pages of the next checkpoint are computed with each operation and kept free. A checkpoint
/// replaces the record of the open group if the journal has no room for it.
#[test]
fn a_full_store_takes_deletes_closes_and_opens_again() {
    let (device, store) = limited(64 << 20);
    let victim = fill(&store);
    let refused = crowd(&store);
    assert!(refused.is_no_space(), "{refused}");
    let other = store.clone();
    let deleted = unless_it_hangs(move || {
        let txn = Txn::new().delete(victim);
        other.commit(txn, Ack::Durable).wait().map(drop)
    });
    deleted.expect("the delete returns").unwrap();
    let killed: Arc<dyn Device> = device.reopen();
    drop(store);
    let opened = unless_it_hangs(move || open(&killed)).expect("opening returns");
    assert!(opened.stat(victim).is_none());
    unless_it_hangs(move || opened.close()).expect("close returns").unwrap();
}

/// See [`a_full_store_takes_deletes_closes_and_opens_again`]; here nothing is deleted.
#[test]
fn a_full_store_closes() {
    let (_device, store) = limited(64 << 20);
    fill(&store);
    crowd(&store);
    unless_it_hangs(move || store.close()).expect("close returns").unwrap();
}

/// Symptom: `reserve(u64::MAX)` overflowed, and smaller impossible sizes made the store grow in vain.
/// Cause: pages were added up before anything was compared.
/// Fix: sizes beyond any device are refused first.
#[test]
fn an_impossible_reservation_is_refused_and_grows_nothing() {
    let (_device, store) = limited(1 << 30);
    let before = store.space().size_bytes;
    for bytes in [u64::MAX, u64::MAX - 4096, 1 << 63, 1 << 60] {
        let other = store.clone();
        let refused = unless_it_hangs(move || other.reserve(bytes).map(drop)).expect("reserve returns");
        assert!(matches!(refused, Err(StoreError::NoSpace { .. })), "{refused:?}");
        assert_eq!(store.space().size_bytes, before);
    }
}

/// Symptom: one flipped bit in frames that were trimmed long ago made the kept ones unreadable.
/// Cause: the search for the first kept frame walks over earlier frames, and stopped there.
/// Fix: damage before the trim is skipped.
#[test]
fn rot_in_trimmed_frames_harms_no_kept_one() {
    let device = FaultDevice::new(64 << 20, 1);
    let dynamic: Arc<dyn Device> = device.clone();
    Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    let store = open(&dynamic);
    let id = ObjectId(1);
    commit(&store, vec![Op::Create { id, opts: stream() }]);
    for n in 0..10u8 {
        let payload = vec![0xa0 + n; 200].into();
        store.append_frame(id, payload, None, Ack::Durable).wait().unwrap();
    }
    let upto = FramePos(8);
    commit(&store, vec![Op::TrimStream { id, upto }]);
    let kept = |store: &Store| {
        let mut frames = store.frames(id, FramePos(0)).unwrap();
        std::iter::from_fn(|| frames.next_frame().unwrap())
            .map(|(pos, payload)| (pos.0, payload[0]))
            .collect::<Vec<_>>()
    };
    let image = device.image();
    let frame_at = |n: u8| {
        (0..image.size() / 4096).map(|page| page * 4096).find(|&at| {
            let mut page = [0; 264];
            image.read(at, &mut page);
            page[64..].iter().all(|&byte| byte == 0xa0 + n)
        })
    };
    for rotten in [0, 3, 7] {
        let at = frame_at(rotten).expect("the frame is somewhere") + 100;
        device.inject(Fault::BitFlip { at, bit: 1 });
        assert_eq!(kept(&store), [(8, 0xa8), (9, 0xa9)], "in the open store, frame {rotten}");
    }
    store.close().unwrap();
    drop(store);
    let reopened: Arc<dyn Device> = device.reopen();
    let (store, report) = Store::open(reopened, &OpenOptions::default()).unwrap();
    assert!(report.damaged_streams.is_empty(), "{report:?}");
    assert_eq!(kept(&store), [(8, 0xa8), (9, 0xa9)]);
    let next = store.append_frame(id, bytes(9, 9), None, Ack::Durable).wait();
    assert_eq!(next.unwrap(), FramePos(10));
}

/// Symptom: in a store that cannot grow, a commit never returned while a caller held a raw extent of a
/// deleted stream.
/// Cause: the pages under it counted as held by ordinary pins, which end by themselves.
/// Fix: lasting pins are counted separately, and no operation waits for their pages.
#[test]
fn a_commit_does_not_wait_for_the_place_of_a_deleted_stream() {
    let (_device, store) = limited(64 << 20);
    let id = ObjectId(1);
    commit(&store, vec![Op::Create { id, opts: stream() }]);
    let extent = store.raw_extent(id, 4 << 20).unwrap().unwrap();
    commit(&store, vec![Op::Delete { id }]);
    let other = store.clone();
    let filled = unless_it_hangs(move || {
        (1000..2000).find_map(|id| {
            let (data, id) = (bytes(1 << 20, id), ObjectId(id));
            let ops = vec![create(id.0), Op::Append { id, at: 0, data }];
            ordered(&other, ops).err().map(|error| (id, error))
        })
    });
    let (id, refused) = filled.expect("the commit returns").expect("the store is full");
    assert!(refused.is_no_space(), "{refused}");
    // The pages become available once the extent is dropped.
    drop(extent);
    let data = bytes(1 << 20, id.0);
    let again = unless_it_hangs(move || ordered(&store, vec![create(id.0), Op::Append { id, at: 0, data }]));
    again.expect("the commit returns").unwrap();
}
