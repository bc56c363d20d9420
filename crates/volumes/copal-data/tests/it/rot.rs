//! Flipped bits anywhere on the device: every read returns the written bytes or an error, and the check
//! reports all unreadable items.

use crate::stack::{MIB, body, everything, open};
use copal_data::{LocalOptions, LocalStore};
use copal_device::fault::FaultDevice;
use copal_device::{Device, Image};
use copal_testkit::Random;
use copal_volume::{PutOptions, ReadOptions, VolumeOptions, VolumeStore};
use std::sync::Arc;

const SIZES: [usize; 8] = [0, 50, 1000, 4096, 5000, 60_000, 300_000, 4_500_000];

fn name(n: usize) -> Vec<u8> {
    format!("file {n}").into_bytes()
}

/// Image of the device of a closed store with files of every layout in two volumes.
fn image() -> Image {
    let device = FaultDevice::new(64 * MIB, 5);
    let dyn_device: Arc<dyn Device> = device.clone();
    crate::stack::format(&dyn_device);
    let store = open(&dyn_device);
    for volume in ["a", "b"] {
        let vid = store.create_volume("", volume, &VolumeOptions::default()).expect("create a volume");
        for (n, size) in SIZES.into_iter().enumerate() {
            let body = body(n as u64, size);
            let put = store.put(vid, &name(n), body, &PutOptions::default());
            put.expect("put");
            if n == 4 {
                store.kv().flush().expect("flush");
            }
        }
    }
    store.kv().flush().expect("flush");
    store.close().expect("close");
    device.image()
}

/// Opens without panicking; `None`: the store refuses.
fn try_open(device: Arc<dyn Device>) -> Option<LocalStore> {
    let options = copal_object::OpenOptions::default();
    let (objects, _) = copal_object::Store::open(device, &options).ok()?;
    let kv = copal_kv::Store::open(objects, copal_kv::Options::default()).ok()?;
    LocalStore::open_with(kv, LocalOptions::default()).ok()
}

#[test]
fn a_flipped_bit_is_never_read_as_something_else() {
    const ROUNDS: u64 = 100;
    let image = image();
    let mut random = Random::new(9);
    // Only bytes that were ever written are flipped.
    let mut buf = vec![0; 4096];
    let written: Vec<u64> = (0..image.size() / 4096)
        .map(|page| page * 4096)
        .filter(|&at| {
            image.read(at, &mut buf);
            buf.iter().any(|&byte| byte != 0)
        })
        .collect();
    let (mut refused, mut unreadable, mut sound) = (0, 0, 0);
    for round in 0..ROUNDS {
        let mut damaged = image.clone();
        // Metadata is a small part of the store; half of the flips hit its pages.
        let page = if round % 2 == 0 {
            random.below(written.len() as u64)
        } else {
            random.below(written.len() as u64 / 8)
        };
        let at = written[page as usize] + random.below(4096);
        let mut byte = [0];
        damaged.read(at, &mut byte);
        byte[0] ^= 1 << random.below(8);
        damaged.write(at, &byte);
        let what = format!("bit flipped at {at}");
        let Some(store) = try_open(FaultDevice::from_image(damaged, 1)) else {
            refused += 1;
            continue;
        };
        let mut failed = 0;
        for volume in ["a", "b"] {
            let Ok(vid) = store.open_volume(volume) else {
                failed += 1;
                continue;
            };
            for (n, size) in SIZES.into_iter().enumerate() {
                let options = ReadOptions::default();
                match store.get(vid, &name(n), 0..u64::MAX, &options) {
                    Ok(read) => assert!(read == body(n as u64, size), "{what}: wrong bytes"),
                    Err(error) if error.is_corruption() => failed += 1,
                    Err(error) => panic!("{what}: file {n} of {volume}: {error}"),
                }
                let middle = size as u64 / 2..size as u64 / 2 + 500;
                if let Ok(read) = store.get(vid, &name(n), middle.clone(), &options) {
                    let end = size.min(middle.end as usize);
                    let expected = body(n as u64, size).slice(middle.start as usize..end);
                    assert!(read == expected, "{what}: wrong bytes in a part");
                }
            }
        }
        let options = everything();
        let report = store.check(&options, &mut |_| {}).expect("check");
        if failed > 0 {
            unreadable += 1;
            assert!(!report.is_clean(), "{what}: the check found nothing");
        } else {
            sound += 1;
        }
    }
    assert!(
        unreadable > 0 && sound > 0,
        "the test reaches both outcomes: {refused} refused, {unreadable} unreadable, {sound} sound"
    );
}
