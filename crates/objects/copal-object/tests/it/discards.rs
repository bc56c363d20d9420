//! Discards of free space: a block device gets deleted bytes back, a file and a turning disk get none.

use crate::basics::{bytes, commit, plain};
use copal_device::{
    AlignedBuf, Completion, Device, DeviceCounters, DeviceError, FileOptions, Geometry, Io, IoClass, IoDone,
    IoKind, MemoryDevice, open_file,
};
use copal_object::*;
use std::{path::Path, sync::Arc, time::Duration};

const MIB: u64 = 1 << 20;

/// A device in memory that is no file: discarded bytes are its own.
struct BlockDevice {
    below: Arc<dyn Device>,
    rotational: bool,
    /// It does not support discards.
    refuses: bool,
}

impl BlockDevice {
    fn of(rotational: bool, refuses: bool) -> Arc<dyn Device> {
        Arc::new(BlockDevice { below: MemoryDevice::new(256 << 20), rotational, refuses })
    }
}

impl Device for BlockDevice {
    fn geometry(&self) -> Geometry {
        Geometry { gives_back: false, rotational: self.rotational, ..self.below.geometry() }
    }

    fn submit(&self, ios: Vec<Io>) -> Completion<Vec<IoDone>> {
        match &ios[..] {
            [Io { at, kind: IoKind::Discard(len), .. }] if self.refuses => {
                let source = std::io::Error::from_raw_os_error(95);
                let result = Err(DeviceError::io("discard", *at, *len, source));
                Completion::ready(vec![IoDone { result, buf: None }])
            }
            _ => self.below.submit(ios),
        }
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

    fn can_grow(&self) -> bool {
        false
    }

    fn counters(&self) -> DeviceCounters {
        self.below.counters()
    }

    fn drive(&self) -> bool {
        false
    }
}

fn options(backend: BackendKind) -> MkfsOptions {
    MkfsOptions { backend, ..MkfsOptions::default() }
}

fn open(device: &Arc<dyn Device>, discard: DiscardMode) -> Store {
    let options = OpenOptions { discard, ..OpenOptions::default() };
    Store::open(Arc::clone(device), &options).unwrap().0
}

/// Fills most of the store with objects of 1 MiB and deletes all but `kept` of them.
fn fill_and_delete(store: &Store, kept: u64) {
    let count = store.space().free_bytes / MIB * 3 / 4;
    for id in 1..=count {
        let mut writer = store.writer(ObjectId(id), plain(ReadCheck::Caller)).unwrap();
        writer.append(&bytes(MIB as usize, id)).unwrap();
        commit(store, vec![Op::Publish(writer.finish().unwrap())]);
    }
    for id in kept + 1..=count {
        store.commit(Txn::new().delete(ObjectId(id)), Ack::Ordered).wait().unwrap();
    }
    store.checkpoint().unwrap();
    store.checkpoint().unwrap();
}

fn holds(store: &Store, kept: u64) {
    for id in 1..=kept {
        let read = store.read(ObjectId(id), 0..u64::MAX, IoClass::Foreground).wait().unwrap();
        assert!(read == bytes(MIB as usize, id), "object {id}");
    }
    let report = store.check(&CheckOptions { data: true, ..CheckOptions::default() }).unwrap();
    assert!(report.is_clean(), "{:?}", report.damages);
}

#[test]
fn what_is_deleted_is_discarded_and_nothing_else() {
    for backend in [BackendKind::Cow, BackendKind::Log] {
        let device = BlockDevice::of(false, false);
        Store::mkfs(&device, &options(backend)).unwrap();
        let store = open(&device, DiscardMode::Auto);
        assert!(store.discards().is_on);
        let before = store.counters();
        fill_and_delete(&store, 5);
        let done = store.counters() - before;
        let deleted = done.write_bytes - 5 * MIB;
        assert!(done.discard_bytes >= deleted / 10 * 9, "{} of {deleted} bytes", done.discard_bytes);
        assert!(done.discard_bytes / done.discards >= MIB, "{done:?}");
        holds(&store, 5);
        let space = store.space();
        let parts = space.live_bytes + space.staged_bytes + space.quarantine_bytes + space.reserved_bytes;
        assert_eq!((space.size_bytes, space.quarantine_bytes), (parts + space.free_bytes, 0), "{backend:?}");
        drop(store);
        let store = open(&device, DiscardMode::Off);
        holds(&store, 5);
    }
}

#[test]
fn disks_that_turn_and_files_are_not_discarded() {
    let discards = |device: Arc<dyn Device>, mode| {
        Store::mkfs(&device, &MkfsOptions::default()).unwrap();
        let store = open(&device, mode);
        fill_and_delete(&store, 1);
        store.counters().discards
    };
    assert_eq!(discards(BlockDevice::of(true, false), DiscardMode::Auto), 0);
    assert!(discards(BlockDevice::of(true, false), DiscardMode::On) > 0);
    assert_eq!(discards(BlockDevice::of(false, false), DiscardMode::Off), 0);
    // A file: its blocks would go to the file system.
    assert_eq!(discards(MemoryDevice::new(256 << 20), DiscardMode::On), 0);
}

/// A device that says it takes discards and refuses them: callers see nothing of it.
#[test]
fn a_refused_discard_changes_nothing_and_is_the_last() {
    for backend in [BackendKind::Cow, BackendKind::Log] {
        let device = BlockDevice::of(false, true);
        Store::mkfs(&device, &options(backend)).unwrap();
        let store = open(&device, DiscardMode::Auto);
        fill_and_delete(&store, 5);
        assert_eq!(store.discards(), StoreDiscards { is_on: false, failed: 1 });
        holds(&store, 5);
        store.close().unwrap();
        drop(store);
        assert!(open(&device, DiscardMode::Auto).discards().is_on, "the next opening tries again");
    }
}

/// Bytes that a zram disk stores, and the memory they take.
fn stored(number: &str) -> [u64; 2] {
    let text = std::fs::read_to_string(format!("/sys/block/zram{number}/mm_stat")).unwrap();
    let fields: Vec<u64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    [fields[0], fields[2]]
}

#[expect(clippy::print_stdout, reason = "the figures are a result")]
fn gives_memory_back(number: &str, backend: BackendKind) {
    let device = open_file(Path::new(&format!("/dev/zram{number}")), &FileOptions::default()).unwrap();
    Store::mkfs(&device, &options(backend)).unwrap();
    let store = open(&device, DiscardMode::Auto);
    assert!(store.discards().is_on);
    let ids: Vec<ObjectId> = (1..=150).map(ObjectId).collect();
    for id in &ids {
        let mut writer = store.writer(*id, plain(ReadCheck::Caller)).unwrap();
        writer.append(&bytes(MIB as usize, id.0)).unwrap();
        commit(&store, vec![Op::Publish(writer.finish().unwrap())]);
    }
    let full = stored(number);
    for id in &ids {
        store.commit(Txn::new().delete(*id), Ack::Ordered).wait().unwrap();
    }
    store.checkpoint().unwrap();
    let fell = || stored(number).iter().zip(full).all(|(now, full)| *now <= full / 10);
    for _ in 0..500 {
        if fell() {
            println!("{}: {full:?} bytes became {:?}", backend.name(), stored(number));
            return store.close().unwrap();
        }
        std::thread::sleep(Duration::from_millis(20));
        // As the owner of a store does while it is idle.
        store.write_clean_mark().unwrap();
    }
    panic!("{backend:?}: {full:?} bytes became {:?}", stored(number));
}

#[test]
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn a_disk_in_memory_gives_back_nine_tenths_after_everything_is_deleted() {
    let Ok(number) = std::fs::read_to_string("/sys/class/zram-control/hot_add") else {
        return eprintln!("skipped: no zram here (root and modprobe zram make one)");
    };
    let number = number.trim();
    let outcome = std::panic::catch_unwind(|| {
        for backend in [BackendKind::Cow, BackendKind::Log] {
            if let Err(error) = std::fs::write(format!("/sys/block/zram{number}/disksize"), "256M") {
                return eprintln!("skipped: no disk in memory: {error}");
            }
            gives_memory_back(number, backend);
            std::fs::write(format!("/sys/block/zram{number}/reset"), "1").unwrap();
        }
    });
    let _ = std::fs::write(format!("/sys/block/zram{number}/reset"), "1");
    let _ = std::fs::write("/sys/class/zram-control/hot_remove", number);
    outcome.unwrap();
}
