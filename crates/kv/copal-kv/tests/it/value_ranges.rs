//! Many parts of values in one call: the bytes of single reads, in fewer commands.

use crate::support::*;
use bytes::Bytes;
use copal_device::{
    Device, Image,
    fault::{CompletionOrder, Fault, FaultDevice, FaultOptions},
};
use copal_kv::{CacheMode, Error, Keyspace, KeyspaceOptions, Store, ValuePart};
use copal_testkit::Random;
use std::{ops::ControlFlow, sync::Arc};

type Answer = Result<Option<Bytes>, Error>;

fn read_parts(space: &Keyspace, keys: &[Vec<u8>], parts: &[ValuePart], budget_bytes: u64) -> Vec<Answer> {
    let mut answers: Vec<Option<Answer>> = parts.iter().map(|_| None).collect();
    space
        .read_parts(keys, parts, budget_bytes, &mut |index, answer| {
            assert!(answers[index].replace(answer).is_none(), "part {index} is answered twice");
            ControlFlow::Continue(())
        })
        .unwrap();
    answers.into_iter().map(Option::unwrap).collect()
}

fn key(number: u64) -> Vec<u8> {
    number.to_be_bytes().to_vec()
}

/// 40 keys with values of 0 to 400 KB: inline, separated, deleted, and one in a memtable.
fn filled(device: &Arc<dyn Device>) -> (Store, Keyspace) {
    format(device);
    let store = Store::open(open_objects(device), small()).unwrap();
    let options = KeyspaceOptions {
        separate_from_bytes: 2000,
        cache: CacheMode::Nothing,
        value_head_bytes: 100,
        ..KeyspaceOptions::default()
    };
    let space = store.keyspace("a", options).unwrap();
    for number in 0..40 {
        space.put(&key(number), &value(number, (number * number * 250) as usize), PROCESS).unwrap();
    }
    space.delete(&key(7), PROCESS).unwrap();
    store.flush().unwrap();
    space.put(&key(2), &value(99, 1500), PROCESS).unwrap();
    (store, space)
}

fn faulty() -> (Arc<FaultDevice>, Arc<dyn Device>) {
    let options = FaultOptions { order: CompletionOrder::Shuffled, record: false, ..FaultOptions::default() };
    let device = FaultDevice::with_options(Image::zeroed(128 * MIB), options);
    let dynamic: Arc<dyn Device> = device.clone();
    (device, dynamic)
}

#[test]
fn parts_are_those_of_single_reads() {
    let (_, device) = faulty();
    let (_store, space) = filled(&device);
    let mut random = Random::new(3);
    let keys: Vec<Vec<u8>> = (0..45).map(key).collect();
    for budget_bytes in [0, 100_000, 8 * MIB] {
        let parts: Vec<ValuePart> = (0..400)
            .map(|_| {
                let (start, len) = (random.below(410_000), 1 << random.below(19));
                let end = if random.one_in(10) { start / 2 } else { start + random.below(len) };
                ValuePart { key: random.index(keys.len()), bytes: start..end }
            })
            .chain([ValuePart { key: 39, bytes: 0..u64::MAX }, ValuePart { key: 1000, bytes: 0..1 }])
            .collect();
        for (part, found) in parts.iter().zip(read_parts(&space, &keys, &parts, budget_bytes)) {
            let alone = keys.get(part.key).and_then(|key| space.get_range(key, part.bytes.clone()).unwrap());
            assert_eq!(found.unwrap(), alone, "{part:?}");
        }
    }
}

#[test]
fn parts_of_many_values_take_few_commands() {
    let (_, device) = faulty();
    let (store, space) = filled(&device);
    let keys: Vec<Vec<u8>> = (0..40).map(key).collect();
    let parts: Vec<ValuePart> =
        (10..40).rev().map(|key| ValuePart { key, bytes: 1000..2000 + key as u64 }).collect();
    let before = (device.counters(), store.stats());
    let found = read_parts(&space, &keys, &parts, 4 * MIB);
    assert!(found.into_iter().all(|found| found.unwrap().is_some()));
    let together = device.counters().reads - before.0.reads;
    assert_eq!(store.stats().gets - before.1.gets, 40);
    let before = device.counters();
    for part in &parts {
        space.get_range(&keys[part.key], part.bytes.clone()).unwrap();
    }
    let alone = device.counters().reads - before.reads;
    assert!(2 * together <= alone, "{together} reads, {alone} one by one");
}

#[test]
fn a_damaged_piece_fails_the_parts_on_it_and_no_other() {
    let (device, dynamic) = faulty();
    let (_store, space) = filled(&dynamic);
    let whole = space.get(&key(39)).unwrap().unwrap();
    let image = device.image();
    let wanted = &whole[100_000..100_016];
    let mut page = vec![0; 4096];
    // The log has the value too.
    for at in (0..image.size()).step_by(4096) {
        image.read(at, &mut page);
        if let Some(within) = page.windows(16).position(|bytes| bytes == wanted) {
            device.inject(Fault::BitFlip { at: at + within as u64, bit: 3 });
        }
    }
    let parts: Vec<ValuePart> =
        (0..60).map(|i| ValuePart { key: 0, bytes: i * 6000..i * 6000 + 5000 }).collect();
    for (part, found) in parts.iter().zip(read_parts(&space, &[key(39)], &parts, 4 * MIB)) {
        // A piece has 64 KiB.
        if part.bytes.start < 128 << 10 && part.bytes.end > 64 << 10 {
            assert!(found.is_err_and(|error| error.is_corruption()), "{part:?}");
        } else {
            assert_eq!(found.unwrap().unwrap(), whole[part.bytes.start as usize..part.bytes.end as usize]);
        }
    }
}

#[test]
fn a_break_ends_the_call() {
    let (_, device) = faulty();
    let (_store, space) = filled(&device);
    let parts: Vec<ValuePart> =
        (0..100).map(|i| ValuePart { key: 0, bytes: i * 4000..i * 4000 + 10 }).collect();
    let mut answers = 0;
    let mut sink = |_, _| {
        answers += 1;
        if answers < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    space.read_parts(&[key(39)], &parts, MIB, &mut sink).unwrap();
    assert_eq!(answers, 3);
}
