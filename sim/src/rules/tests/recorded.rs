//! Gets that the engine itself recorded, read and played.

use super::super::{
    filters::Filters,
    merge::Inheritance,
    play::{Driving, Player},
    random::{Random, Zipf, mix},
    trace,
    tree::Tree,
};
use super::runs;
use copal_device::{Device, MemoryDevice};
use copal_filter::{Kind, rules::RuleKind};
use copal_kv::{Durability, KeyspaceOptions, Options, Store};
use copal_object::{MkfsOptions, OpenOptions, Store as Objects};
use std::{
    fs::File,
    io::{self, BufReader, Write},
    sync::Arc,
};

const KEYS: u64 = 20_000;

fn store() -> Store {
    let device: Arc<dyn Device> = MemoryDevice::new(64 << 20);
    Objects::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = Objects::open(device, &OpenOptions::default()).unwrap();
    Store::open(objects, Options::default()).unwrap()
}

/// Existing keys are even, absent ones odd.
fn key(number: u64, there: bool) -> [u8; 8] {
    (mix(number) << 1 | u64::from(!there)).to_be_bytes()
}

#[test]
fn gets_of_a_running_store_are_recorded_and_play() {
    let store = store();
    let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
    for number in 1..=KEYS {
        let put = space.put(&key(number, true), &[7; 20], Durability::Deferred);
        put.unwrap();
    }
    store.flush().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gets.txt");
    space.get(b"before").unwrap();
    store.record_gets(Box::new(File::create(&path).unwrap())).unwrap();
    let (mut random, zipf) = (Random(3), Zipf::new(KEYS, 1.1));
    let mut asked = Vec::new();
    for round in 0..6000 {
        let mut draw = || (zipf.rank(&mut random), random.below(2) == 0);
        let wanted: Vec<_> = (0..[1, 1, 4][round % 3]).map(|_| draw()).collect();
        let keys: Vec<_> = wanted.iter().map(|&(number, there)| key(number, there)).collect();
        let found = match &keys[..] {
            [one] => vec![space.get(one)],
            many => space.multi_get(many),
        };
        for ((_, there), found) in wanted.iter().zip(found) {
            assert_eq!(found.unwrap().is_some(), *there);
            asked.push(*there);
        }
    }
    assert_eq!(store.stop_recording_gets().unwrap(), asked.len() as u64);
    space.get(b"behind").unwrap();
    assert_eq!(store.stop_recording_gets().unwrap(), 0);

    let recorded = trace::read(BufReader::new(File::open(path).unwrap())).unwrap();
    assert_eq!(recorded.store_keys, KEYS);
    let found: Vec<bool> = recorded.gets.iter().map(|get| get.home.is_some()).collect();
    assert_eq!(found, asked);
    let partitions = KEYS.div_ceil(u64::from(copal_filter::KEYS_PER_PARTITION));
    let tree = Tree::modelled(&runs("flushed:1002").scaled(partitions), Kind::Ribbon);
    let driving = Driving {
        budget_bytes: tree.keys / 2,
        batch: 64,
        paper: false,
        merge_every: 0,
        inheritance: Inheritance::Units,
    };
    let play = |tree: Tree| {
        let mut player = Player::new(tree, 1, RuleKind::Classes.build(), driving).unwrap();
        let mut gets = recorded.gets.iter().copied();
        let parts = player.play(asked.len() as u64, 4, || gets.next()).unwrap();
        let all: u64 = parts.iter().map(|part| part.gets).sum();
        assert_eq!(all, asked.len() as u64);
        player.reads
    };
    let drawn = play(tree);
    // The same with real filters, built of the found keys and of numbered ones.
    let real = Tree::real(&runs("flushed:1002").scaled(partitions), Kind::Ribbon, &recorded.found).unwrap();
    let mut filters = Filters::new(&real, 1);
    for partition in 0..real.shapes.len() as u32 {
        filters.set(&real, partition, 15).unwrap();
    }
    for &key in &recorded.found {
        let run = real.run_of(key).unwrap();
        assert!(filters.passes(&real, real.partition(run, key), key));
    }
    let asked_for_real = play(real);
    assert_eq!(asked_for_real.hits, drawn.hits);
    let (real, drawn) = (asked_for_real.false_per_get(), drawn.false_per_get());
    assert!((real / drawn - 1.0).abs() < 0.25, "{real} where {drawn} were drawn");
}

#[test]
fn a_key_that_was_stored_after_its_first_look_up_is_in_no_filter() {
    let text = b"copal gets 1\nkeys 3\n-0a\n+0a\n+0b\n+0b\n-0c\n";
    let recorded = trace::read(&text[..]).unwrap();
    assert_eq!((recorded.gets.len(), recorded.found.len()), (5, 1));
    assert_eq!(recorded.found[0], recorded.gets[2]);
}

/// A writer that is full after a number of bytes.
struct Narrow(usize);

impl Write for Narrow {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_truncated_trace_is_refused() {
    let store = store();
    let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
    for room in [0, 20_000] {
        store.record_gets(Box::new(Narrow(room))).unwrap();
        for number in 0..2000 {
            assert!(space.get(&key(number, true)).unwrap().is_none(), "Gets go on");
        }
        let error = store.stop_recording_gets().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
