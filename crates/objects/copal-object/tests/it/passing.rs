//! Passing errors, such as a missing descriptor, in salvage openings, in openings of a truncated store, and
//! in checks. They are errors, and never damage, zeros or a reason for an older state.
//!
//! Symptom: `fsck` reported damage, and a rescue took an older state, when the system had no descriptor for a
//! moment.
//! Cause: each of these readers takes an unreadable sector for damaged bytes.
//! Fix: a passing error ends each of them. Without that line a test below fails.

use crate::basics::{bytes, commit, open, plain, stream};
use bytes::Bytes;
use copal_device::{Device, DeviceError, Image, IoClass, MemoryDevice, fault::*};
use copal_object::*;
use copal_testkit::FailingReads;
use std::sync::Arc;

const EIO: i32 = 5;
const EMFILE: i32 = 24;
const ALWAYS: u64 = 1 << 40;
/// Number of consecutive failing reads: each reader retries some of them.
const TIMES: [u64; 6] = [1, 2, 3, 4, 8, ALWAYS];

/// A store of two states with all kinds of objects; its process died.
fn image() -> Image {
    let options = FaultOptions { order: CompletionOrder::Fifo, record: false, ..FaultOptions::default() };
    let device = FaultDevice::with_options(Image::zeroed(64 << 20), options);
    let dyn_device: Arc<dyn Device> = device.clone();
    let options = MkfsOptions { journal_bytes: Some(256 << 10), ..MkfsOptions::default() };
    Store::mkfs(&dyn_device, &options).unwrap();
    let store = open(&dyn_device);
    for (id, opts, len) in
        [(1, plain(ReadCheck::Pages), 12_000), (2, plain(ReadCheck::Caller), 20_000), (3, stream(), 0)]
    {
        let id = ObjectId(id);
        commit(&store, vec![Op::Create { id, opts }]);
        if len > 0 {
            let data = bytes(len, id.0);
            commit(&store, vec![Op::Append { id, at: 0, data }]);
        }
    }
    let mut writer = store.writer(ObjectId(4), plain(ReadCheck::Pages)).unwrap();
    writer.append(&bytes(30_000, 4)).unwrap();
    commit(&store, vec![Op::Publish(writer.finish().unwrap())]);
    store.close().unwrap();
    drop(store);
    let store = open(&dyn_device);
    store.checkpoint().unwrap();
    for frame in 0..3 {
        let frame = store.append_frame(ObjectId(3), bytes(3000, frame), None, Ack::Durable);
        frame.wait().unwrap();
    }
    // No later record says that its data is flushed.
    let (id, at) = (ObjectId(1), 12_000);
    let data = bytes(8000, 5);
    commit(&store, vec![Op::Append { id, at, data }]);
    drop(store);
    device.reopen().image()
}

fn device(image: &Image) -> Arc<dyn Device> {
    MemoryDevice::from_image(image.clone(), u64::MAX)
}

/// The report of an opening, and the bytes of its objects.
fn opened(device: Arc<dyn Device>, options: &OpenOptions) -> Result<(String, Vec<Bytes>), DeviceError> {
    let (store, report) = Store::open(device, options).map_err(|error| match error {
        StoreOpenError::Device(error) => error,
        error => panic!("an error that passes is no reason for: {error}"),
    })?;
    let read = |id| {
        let read = store.read(ObjectId(id), 0..u64::MAX, IoClass::Foreground).wait();
        read.map_err(|error| match error {
            StoreError::Device(error) => error,
            error => panic!("an error that passes is no reason for: {error}"),
        })
    };
    let objects = [1, 2, 4].into_iter().map(read);
    Ok((format!("{report:?}"), objects.collect::<Result<_, _>>()?))
}

/// Each read of `look` in turn fails, with some of the following ones: the result is the usual one, or the
/// passing error.
fn fails_at_each_read<T: PartialEq + std::fmt::Debug>(
    image: &Image,
    look: impl Fn(Arc<dyn Device>) -> Result<T, DeviceError>,
) {
    let expected = look(device(image)).unwrap();
    for times in TIMES {
        let mut refused = 0;
        for first in 0.. {
            let failing = FailingReads::over(device(image), first..first.saturating_add(times), EMFILE);
            let found = look(failing.clone());
            if failing.reads() <= first {
                break;
            }
            match found {
                Ok(found) => assert_eq!(found, expected, "{times} times from read {first} on"),
                Err(error) => {
                    assert!(error.is_passing(), "{error}");
                    refused += 1;
                }
            }
        }
        // Retried reads may hide a few errors.
        assert!(times < ALWAYS || refused > 0);
    }
}

#[test]
fn a_rescue_opens_the_newest_state_or_says_that_it_cannot_be_read_now() {
    let options = OpenOptions { read_only: true, salvage: true, ..OpenOptions::default() };
    fails_at_each_read(&image(), |device| opened(device, &options));
}

#[test]
fn an_opening_that_may_drop_the_tail_drops_nothing_for_an_error_that_passes() {
    let options = OpenOptions { read_only: true, accept_tail_loss: true, ..OpenOptions::default() };
    fails_at_each_read(&image(), |device| opened(device, &options));
}

#[test]
fn a_store_that_was_cut_off_is_not_called_so_for_an_error_that_passes() {
    let mut image = image();
    image.resize(image.size() - (1 << 20));
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    assert!(opened(device(&image), &options).unwrap().0.contains("cut_bytes: 1048576"));
    fails_at_each_read(&image, |device| opened(device, &options));
}

/// The findings of a check.
fn checked(device: Arc<dyn Device>) -> Result<String, DeviceError> {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let (store, _) = Store::open(device, &options).map_err(|error| match error {
        StoreOpenError::Device(error) => error,
        error => panic!("an error that passes is no reason for: {error}"),
    })?;
    let options = CheckOptions { data: true, repair: false };
    let report = store.check(&options).map_err(|error| match error {
        StoreError::Device(error) => error,
        error => panic!("an error that passes is no reason for: {error}"),
    })?;
    Ok(format!("{report:?}"))
}

#[test]
fn a_check_finds_the_damage_or_reports_that_it_cannot_read_now() {
    fails_at_each_read(&image(), checked);
}

/// A damaged sector makes the check read the units around it one by one, and then these reads fail.
#[test]
fn a_check_that_looks_closer_and_cannot_read_now_names_no_damage() {
    let image = image();
    let all = FailingReads::over(device(&image), 0..0, EIO);
    checked(all.clone()).unwrap();
    let mut refused = 0;
    for first in 0..all.reads() {
        let damaged = FailingReads::over(device(&image), first..first + 2, EIO);
        let failing = FailingReads::over(damaged, first + 2..ALWAYS, EMFILE);
        match checked(failing.clone()) {
            Ok(report) => assert!(failing.reads() <= first + 2, "from read {first} on: {report}"),
            Err(error) if failing.reads() > first + 2 => {
                assert!(error.is_passing(), "from read {first} on: {error}");
                refused += 1;
            }
            Err(_) => {}
        }
    }
    assert!(refused > 0);
}
