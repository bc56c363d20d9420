//! Rescue of readable rows: a store that lost any one page loses only the contents of that page.

use crate::stack::{MIB, body, format, open};
use copal_data::{LocalOptions, LocalStore, rescue};
use copal_device::fault::FaultDevice;
use copal_device::{Device, Image};
use copal_object::{CheckOptions, RangeCoverage, SummedData};
use copal_volume::{PutOptions, ReadOptions, VolumeOptions, VolumeStore};
use std::sync::Arc;

const FILES: u64 = 40;

/// A closed store with its rows in tables, and its pages with a checksum that hold bytes of the engine.
fn image() -> (Image, Vec<u64>) {
    let device = FaultDevice::new(64 * MIB, 5);
    let dynamic: Arc<dyn Device> = device.clone();
    format(&dynamic);
    let store = open(&dynamic);
    let spared = VolumeOptions { spare_copies: true, ..VolumeOptions::default() };
    for (name, options) in [("roots", spared), ("rest", VolumeOptions::default())] {
        let vid = store.create_volume("", name, &options).unwrap();
        for n in 0..FILES {
            store.put(vid, &file(n), body(n, 60), &PutOptions::default()).unwrap();
        }
        // Deleted files stay deleted.
        let gone = store.put(vid, b"gone", body(1, 60), &PutOptions::default()).unwrap();
        store.delete(vid, b"gone", gone.fid).unwrap();
    }
    let short_lived = store.create_volume("", "short-lived", &VolumeOptions::default()).unwrap();
    store.remove_volume(short_lived, copal_volume::RemoveMode::WithFiles).unwrap();
    store.kv().flush().unwrap();
    let mut pages = Vec::new();
    let all = CheckOptions { data: true, repair: false };
    store.close().unwrap();
    drop(store);
    let (objects, _) = copal_object::Store::open(dynamic, &copal_object::OpenOptions::default()).unwrap();
    let report = objects.check_coverage(&all, &mut |range, covered| {
        if matches!(covered, RangeCoverage::Summed(SummedData::Object(_) | SummedData::Frame(_))) {
            pages.extend(range.step_by(4096));
        }
    });
    assert!(report.unwrap().is_clean());
    objects.close().unwrap();
    (device.image(), pages)
}

fn file(n: u64) -> Vec<u8> {
    format!("file {n}").into_bytes()
}

/// Result of the rescue of an image.
fn saved(image: Image) -> LocalStore {
    let options =
        copal_object::OpenOptions { read_only: true, salvage: true, ..copal_object::OpenOptions::default() };
    let (objects, _) = copal_object::Store::open(FaultDevice::from_image(image, 1), &options).unwrap();
    let options = copal_kv::Options { read_only: true, salvage: true, ..copal_kv::Options::default() };
    let from = copal_kv::Store::open(objects, options).unwrap();
    let device: Arc<dyn Device> = FaultDevice::new(64 * MIB, 7);
    format(&device);
    let (objects, _) = copal_object::Store::open(device, &copal_object::OpenOptions::default()).unwrap();
    let to = copal_kv::Store::open(objects, copal_kv::Options::default()).unwrap();
    rescue(&from, &to, &mut |_| true).unwrap();
    LocalStore::open_with(to, LocalOptions::default()).unwrap()
}

/// Symptom: one flipped bit in the block with the rows of volumes, and nothing was rescued. The next volume
/// id was lost, so new volumes got the ids of old ones. Cause: these rows existed once. Fix: they have second
/// copies in another block, and the next volume id follows from the existing volumes.
#[test]
fn no_damaged_page_costs_a_volume_or_a_file_with_a_spare_copy() {
    let (image, pages) = image();
    assert!(pages.len() > 8, "{pages:?}");
    let mut lost = 0;
    for at in pages {
        let mut damaged = image.clone();
        let mut byte = [0];
        damaged.read(at + 70, &mut byte);
        damaged.write(at + 70, &[byte[0] ^ 4]);
        let store = saved(damaged);
        let volumes = store.list_volumes("", None, 10).unwrap();
        let names: Vec<&str> = volumes.iter().map(|(name, _)| &name[..]).collect();
        assert_eq!(names, ["rest", "roots"], "page at {at}");
        for (name, vid) in &volumes {
            assert_eq!(store.open_volume(name).unwrap(), *vid);
            let read = |name: &[u8]| store.get(*vid, name, 0..u64::MAX, &ReadOptions::default());
            let here =
                (0..FILES).filter(|n| read(&file(*n)).is_ok_and(|read| read == body(*n, 60))).count() as u64;
            assert!(here == FILES || name != "roots", "page at {at}: {here} files");
            lost += FILES - here;
            assert!(read(b"gone").is_err(), "page at {at}");
        }
        let new = store.create_volume("", "new", &VolumeOptions::default()).unwrap();
        assert!(volumes.iter().all(|(_, vid)| *vid < new), "page at {at}: {new:?}");
        let report = store.check(&copal_data::CheckOptions::default(), &mut |_| {}).unwrap();
        assert_eq!(report.damage, [], "page at {at}");
    }
    assert!(lost > 0, "a file without a spare copy was in one of them");
}
