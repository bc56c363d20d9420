//! Power loss at every point of short histories. The device is recorded, the real object layer and the real
//! engine open each state that a crash may leave, and the test checks the result.
//!
//! Invariants
//! - The contents are those after some operation: not before the last one acknowledged as durable, not after
//!   the last one begun. So batches are complete or absent, and there is no gap in the commit order.
//! - Every object and value byte has an owner, and none is missing.
//! - The store keeps working, and a second opening finds the same.

use crate::support::*;
use bytes::Bytes;
use copal_device::{
    Device, DeviceHistory, Image,
    crash::{self, StateLimits},
    fault::{CompletionOrder, FaultDevice, FaultOptions},
};
use copal_kv::{Durability, Keyspace, KeyspaceOptions, Options, Store};
use std::{collections::BTreeMap, sync::Arc};

type Map = BTreeMap<(u8, Vec<u8>), Vec<u8>>;

/// End of one operation: the device step of its acknowledgement, and whether that promised durability.
struct Acknowledged {
    step: usize,
    durable: bool,
}

struct Recorded {
    history: DeviceHistory,
    /// `states[i]`: the contents after `i` operations.
    states: Vec<Map>,
    begun: Vec<usize>,
    ended: Vec<Acknowledged>,
}

fn options() -> Options {
    Options { table_bytes: 16 << 10, ..small() }
}

/// Odd seeds let the tiers fill instead of merging to the bottom at once.
fn options_of_seed(seed: u64) -> Options {
    Options { bottom_share: [10, 0][(seed % 2) as usize], ..options() }
}

fn values() -> KeyspaceOptions {
    KeyspaceOptions {
        group_prefix_len: 1,
        separate_from_bytes: 500,
        direct_from_bytes: 3000,
        ..KeyspaceOptions::default()
    }
}

fn spaces(store: &Store) -> [Keyspace; 2] {
    [store.keyspace("a", values()).unwrap(), store.keyspace("b", KeyspaceOptions::default()).unwrap()]
}

struct Recorder {
    device: Arc<FaultDevice>,
    store: Store,
    spaces: [Keyspace; 2],
    random: Random,
    recorded: Recorded,
    tag: u64,
}

impl Recorder {
    fn new(seed: u64) -> Recorder {
        // Writes of mkfs and creation are not part of the history.
        let options_of = |record| FaultOptions {
            seed,
            order: CompletionOrder::Shuffled,
            max_size: 64 * MIB,
            record,
            ..FaultOptions::default()
        };
        let device = FaultDevice::with_options(Image::zeroed(64 * MIB), options_of(false));
        let dynamic: Arc<dyn Device> = device.clone();
        format(&dynamic);
        let store = Store::open(open_objects(&dynamic), options()).unwrap();
        drop(spaces(&store));
        store.close().unwrap();
        store.objects().close().unwrap();
        drop(store);
        let device = FaultDevice::with_options(device.image(), options_of(true));
        let dynamic: Arc<dyn Device> = device.clone();
        let store = Store::open(open_objects(&dynamic), options_of_seed(seed)).unwrap();
        let spaces = spaces(&store);
        let recorded = Recorded {
            history: device.history(),
            states: vec![Map::new()],
            begun: Vec::new(),
            ended: Vec::new(),
        };
        Recorder { device, store, spaces, random: Random::new(seed), recorded, tag: seed << 20 }
    }

    fn key(&mut self) -> Vec<u8> {
        vec![b"xy"[self.random.below(2) as usize], b'0' + self.random.below(6) as u8]
    }

    fn value(&mut self) -> Vec<u8> {
        self.tag += 1;
        let len = [20, 700, 3500, 9000][self.random.below(4) as usize];
        value(self.tag, len)
    }

    /// Runs one operation; `model` applies it to the expected contents.
    fn operation(&mut self, durable: bool, model: impl FnOnce(&mut Map), run: impl FnOnce(&Recorder)) {
        let mut state = self.recorded.states.last().unwrap().clone();
        model(&mut state);
        self.recorded.states.push(state);
        self.recorded.begun.push(self.device.step());
        run(self);
        self.recorded.ended.push(Acknowledged { step: self.device.step(), durable });
    }

    fn step(&mut self) {
        let durability =
            [Durability::Device, Durability::Process, Durability::Deferred][self.random.below(3) as usize];
        let durable = durability == Durability::Device;
        let space = self.random.below(2) as u8;
        let at = usize::from(space);
        match self.random.below(20) {
            0..8 => {
                let (key, value) = (self.key(), self.value());
                self.operation(
                    durable,
                    |map| drop(map.insert((space, key.clone()), value.clone())),
                    |this| this.spaces[at].put(&key, &value, durability).unwrap(),
                );
            }
            8..10 => {
                let key = self.key();
                self.operation(
                    durable,
                    |map| drop(map.remove(&(space, key.clone()))),
                    |this| this.spaces[at].delete(&key, durability).unwrap(),
                );
            }
            10..14 => {
                let puts: Vec<_> = (0..3).map(|i| (i % 2, self.key(), self.value())).collect();
                let gone = self.key();
                self.operation(
                    durable,
                    |map| {
                        for (space, key, value) in &puts {
                            map.insert((*space, key.clone()), value.clone());
                        }
                        map.remove(&(1, gone.clone()));
                    },
                    |this| {
                        let mut batch = this.store.batch();
                        for (space, key, value) in &puts {
                            batch.put(&this.spaces[usize::from(*space)], key, Bytes::from(value.clone()));
                        }
                        batch.delete(&this.spaces[1], &gone);
                        batch.commit(durability).unwrap();
                    },
                );
            }
            14 => {
                let prefix = self.key()[..1].to_vec();
                self.operation(
                    durable,
                    |map| map.retain(|(s, key), _| *s != space || !key.starts_with(&prefix)),
                    |this| this.spaces[at].purge_prefix(&prefix, durability).unwrap(),
                );
            }
            15..17 => self.operation(false, |_| {}, |this| this.store.flush().unwrap()),
            17..19 => self.operation(false, |_| {}, |this| this.spaces[at].compact_range(all()).unwrap()),
            _ => self.operation(true, |_| {}, |this| this.store.sync().unwrap()),
        }
    }

    fn finish(self) -> Recorded {
        let Recorder { device, store, spaces, mut recorded, .. } = self;
        drop(spaces);
        drop(store);
        recorded.history = device.history();
        recorded
    }
}

fn content(spaces: &[Keyspace; 2]) -> Map {
    let mut map = Map::new();
    for (space, keyspace) in spaces.iter().enumerate() {
        map.extend(pairs(keyspace).into_iter().map(|(key, value)| ((space as u8, key), value)));
    }
    map
}

impl Recorded {
    /// The least and the greatest number of operations that a state at `step` may contain.
    fn bounds(&self, step: usize) -> (usize, usize) {
        let durable = |(_, end): &(usize, &Acknowledged)| end.durable && end.step <= step;
        let least = self.ended.iter().enumerate().filter(durable).map(|(i, _)| i + 1).max().unwrap_or(0);
        let most = self.begun.iter().filter(|begun| **begun <= step).count();
        (least, most)
    }

    fn judge(&self, device: Arc<dyn Device>, step: usize, what: &str) {
        let (least, most) = self.bounds(step);
        let objects = open_objects(&device);
        // Checked before anything is swept: a crash leaves leftovers, never damage or leaks.
        let looking = Options { read_only: true, ..options() };
        let looked = Store::open(objects.clone(), looking).unwrap_or_else(|error| panic!("{what}: {error}"));
        let report = looked.verify(false).unwrap();
        assert!(report.is_sound(), "{what}, read-only: {:#?}", report.problems);
        drop(looked);
        let store = Store::open(objects.clone(), options()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = content(&spaces(&store));
        let fits = (least..=most).any(|i| self.states[i] == found);
        assert!(fits, "{what}: no state from {least} to {most} has {:?}", found.keys().collect::<Vec<_>>());
        let report = store.verify(false).unwrap();
        assert!(report.is_sound(), "{what}: {:#?}", report.problems);
        // The store works, and its new contents survive the next kill.
        let [a, _] = spaces(&store);
        a.put(b"x0", b"after", DEVICE).unwrap();
        let found = content(&spaces(&store));
        drop((a, store));
        drop(objects);
        let store = Store::open(open_objects(&device), options()).unwrap();
        assert_eq!(content(&spaces(&store)), found, "{what}: the second opening differs");
        assert!(store.verify(false).unwrap().is_sound(), "{what}");
    }
}

/// Crashes during the recovery from a crash must not lose anything that was durable before.
fn crash_again(recorded: &Recorded, state: &crash::CrashState, step: usize, what: &str) -> u64 {
    let device = state.fault_device(7);
    let dynamic: Arc<dyn Device> = device.clone();
    let store = Store::open(open_objects(&dynamic), options()).unwrap();
    store.flush().unwrap();
    drop(store);
    let mut judged = 0;
    for cut in crash::cuts(&device.history()) {
        let states = cut.states(&StateLimits { exhaustive: 4, samples: 2, seed: 7 });
        let again = states.get(cut.step() as u64 % states.count_all()).unwrap();
        recorded.judge(again.device(), step, &format!("{what}, then step {} of the recovery", cut.step()));
        judged += 1;
    }
    judged
}

/// Every step of the history, with some states of each, drawn from all subsets of the unflushed writes.
fn enumerate(seed: u64, operations: usize, states_per_cut: u64) -> u64 {
    let mut recorder = Recorder::new(seed);
    for _ in 0..operations {
        recorder.step();
    }
    let recorded = recorder.finish();
    let mut random = Random::new(seed + 1);
    let mut judged = 0;
    for cut in crash::all_cuts(&recorded.history) {
        let states = cut.states(&StateLimits { exhaustive: 8, samples: 16, seed });
        let count = states.count_all();
        for pick in 0..states_per_cut.min(count) {
            let index = if count <= states_per_cut { pick } else { random.below(count) };
            let state = states.get(index).unwrap();
            let what = format!("seed {seed}, step {}, state {index}", cut.step());
            recorded.judge(state.device(), cut.step(), &what);
            judged += 1;
            if judged % 64 == 0 {
                judged += crash_again(&recorded, &state, cut.step(), &what);
            }
        }
    }
    judged
}

#[test]
fn after_power_loss_the_store_is_a_prefix_of_commit_order() {
    let judged: u64 = (0..40).map(|seed| enumerate(seed, 14, 3)).sum();
    assert!(judged > 4000, "only {judged} states were judged");
}

#[test]
fn after_power_loss_in_a_longer_history_too() {
    let judged: u64 = (100..104).map(|seed| enumerate(seed, 80, 2)).sum();
    assert!(judged > 1000, "only {judged} states were judged");
}

/// Kill-safe writes around a change of the log: a crash may keep any subset of them, and no subset may hold
/// the new log's writes without the old log's.
#[test]
fn a_new_log_never_outlives_the_end_of_the_old_one() {
    let mut judged = 0;
    for seed in 200..208 {
        let mut recorder = Recorder::new(seed);
        for round in 0..3u8 {
            for i in 0..2u8 {
                let (key, value) = (vec![b'x', round, i], value(u64::from(round), 100));
                recorder.operation(
                    false,
                    |map| drop(map.insert((0, key.clone()), value.clone())),
                    |this| this.spaces[0].put(&key, &value, PROCESS).unwrap(),
                );
            }
            if round < 2 {
                recorder.operation(false, |_| {}, |this| this.store.flush().unwrap());
            }
        }
        let recorded = recorder.finish();
        let mut random = Random::new(seed);
        for cut in crash::all_cuts(&recorded.history) {
            let states = cut.states(&StateLimits { exhaustive: 14, samples: 0, seed });
            let count = states.count_all();
            for _ in 0..count.min(12) {
                let index = random.below(count);
                let what = format!("seed {seed}, step {}, state {index}", cut.step());
                recorded.judge(states.get(index).unwrap().device(), cut.step(), &what);
                judged += 1;
            }
        }
    }
    assert!(judged > 1000, "only {judged} states were judged");
}
