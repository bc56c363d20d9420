//! One program on disks of different kinds: it names none, and the probe of each disk chooses the store's backend.

use crate::support::{DEVICE, MIB, Random, all, assert_sound, pairs, small, value};
use copal_device::{
    Device, Image,
    emulated::{Hdd, HddProfile, PacedHdd, PacedSsd, Ssd, SsdProfile, WallClock},
    probe::{DeviceProbe, DeviceProfile, ProbeOptions, ProfileBackend},
};
use copal_kv::{KeyspaceOptions, Options, Store};
use copal_object::{BackendKind, MkfsOptions, OpenOptions, Store as Objects};
use std::{collections::BTreeMap, sync::Arc};

const DISK_BYTES: u64 = 64 << 30;

/// Probes a disk and makes the store that its figures suggest.
fn make_store(device: &Arc<dyn Device>) -> DeviceProfile {
    let profile = DeviceProbe::new(&**device, ProbeOptions::of(&**device)).run(&mut |_| ()).unwrap();
    let backend = match profile.backend {
        ProfileBackend::Cow => BackendKind::Cow,
        ProfileBackend::Log => BackendKind::Log,
    };
    let options = MkfsOptions { backend, profile: Some(profile.clone()), ..MkfsOptions::default() };
    Objects::mkfs(device, &options).unwrap();
    profile
}

fn open(device: &Arc<dyn Device>, options: Options) -> (Objects, Store) {
    let (objects, _) = Objects::open(Arc::clone(device), &OpenOptions::default()).unwrap();
    (objects.clone(), Store::open(objects, options).unwrap())
}

/// Random puts and deletes, durable ones among them, over flushes, merges, a kill and a close; compared with a map.
/// Returns the pairs at the end.
fn run_program(device: &Arc<dyn Device>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let options = || Options { threads: false, ..small() };
    let mut model = BTreeMap::new();
    let mut random = Random::new(5);
    let (mut objects, mut store) = open(device, options());
    for round in 0..4 {
        let rows = store.keyspace("rows", KeyspaceOptions::default()).unwrap();
        for step in 0..1500u64 {
            let key = format!("key {:04}", random.index(2000)).into_bytes();
            let mut batch = store.batch();
            if random.index(4) == 0 {
                batch.delete(&rows, &key);
                model.remove(&key);
            } else {
                let bytes = value(round * 10_000 + step, [100, 900, 9000][random.index(3)]);
                batch.put(&rows, &key, bytes.clone().into());
                model.insert(key, bytes);
            }
            batch.commit(if step % 50 == 49 { DEVICE } else { copal_kv::Durability::Deferred }).unwrap();
        }
        assert!(pairs(&rows).into_iter().eq(model.clone()), "round {round}");
        drop(rows);
        if round % 2 == 1 {
            store.close().unwrap();
            objects.close().unwrap();
        }
        drop((store, objects));
        (objects, store) = open(device, options());
    }
    assert_sound(&store, true);
    let rows = store.keyspace("rows", KeyspaceOptions::default()).unwrap();
    let found = pairs(&rows);
    assert!(found.iter().cloned().eq(model));
    assert_eq!(rows.iter(all()).count(), found.len());
    found
}

#[test]
fn one_program_runs_on_every_disk_and_the_probe_chooses_the_backend() {
    let flash = |unit_bytes| SsdProfile { unit_bytes, ..SsdProfile::default() };
    let disks: [(Arc<dyn Device>, BackendKind, u32); 3] = [
        (Hdd::new(DISK_BYTES, HddProfile::default()), BackendKind::Log, 4096),
        (Ssd::new(DISK_BYTES, flash(4096)), BackendKind::Cow, 4096),
        (Ssd::new(DISK_BYTES, flash(16_384)), BackendKind::Cow, 16_384),
    ];
    let mut first = None;
    for (device, backend, page_bytes) in disks {
        let profile = make_store(&device);
        assert_eq!(profile.page_bytes, page_bytes, "{profile}");
        if backend == BackendKind::Log {
            let gap = profile.gap_bytes as f64 / MIB as f64;
            assert!((1.5..=3.5).contains(&gap), "{profile}");
        }
        let (objects, _) = Objects::open(Arc::clone(&device), &OpenOptions::default()).unwrap();
        assert_eq!((objects.backend(), objects.gap_bytes()), (backend, profile.gap_bytes));
        objects.close().unwrap();
        drop(objects);
        let found = run_program(&device);
        assert!(*first.get_or_insert_with(|| found.clone()) == found, "the same answers on every disk");
    }
}

/// Threads that wait for a disk on the wall clock share its commands.
#[test]
fn writers_with_threads_share_the_commands_of_a_paced_disk() {
    const WRITERS: u64 = 8;
    const PUTS: u64 = 20;
    let contents = || Box::new(Image::zeroed(512 << 20));
    let clock = || Arc::new(WallClock::new());
    let disks: [Arc<dyn Device>; 2] = [
        PacedHdd::new(contents(), HddProfile::default(), clock()).unwrap(),
        PacedSsd::new(contents(), SsdProfile::consumer(), clock()).unwrap(),
    ];
    for (device, backend) in disks.into_iter().zip([BackendKind::Log, BackendKind::Cow]) {
        Objects::mkfs(&device, &MkfsOptions { backend, ..MkfsOptions::default() }).unwrap();
        let (objects, store) = open(&device, small());
        let rows = store.keyspace("rows", KeyspaceOptions::default()).unwrap();
        let before = device.counters();
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let (store, rows) = (&store, &rows);
                scope.spawn(move || {
                    for put in 0..PUTS {
                        let mut batch = store.batch();
                        batch.put(rows, &(writer * 1000 + put).to_be_bytes(), value(put, 200).into());
                        batch.commit(DEVICE).unwrap();
                    }
                });
            }
        });
        let done = device.counters() - before;
        let durable = done.fua_writes + done.flushes;
        assert!((1..WRITERS * PUTS).contains(&durable), "{backend:?}: {done:?}");
        drop(rows);
        store.close().unwrap();
        objects.close().unwrap();
        drop((store, objects));
        let (_objects, store) = open(&device, small());
        let rows = store.keyspace("rows", KeyspaceOptions::default()).unwrap();
        assert_eq!(pairs(&rows).len() as u64, WRITERS * PUTS, "{backend:?}");
    }
}
