//! Power loss at every step of short histories of each kind. Unflushed writes are present, lost or torn, in
//! every combination while there are few; the store is opened on the result and checked. A normal run takes
//! some states of each step, a run on demand all of them.
//!
//! The oracle
//! - The contents are those after some operation: not before the last one acknowledged as durable, not after
//!   the last one begun. Batches and purges are complete or absent; there is no gap in the commit order.
//! - Every object of the engine has an owner and every owner its objects. The bytes of a value object are
//!   live, dead or padding, each once, and completely dead pages occupy nothing.
//! - The store keeps working, and its contents survive another kill.
//!
//! Not here: long random histories (tests/it/crash.rs), the object layer's own rules (`copal-object`).

mod kills;
mod kinds;

use crate::{
    Durability, Keyspace, KeyspaceOptions, Options, Store, broken::Flaw, tree::value::pointer::VALUE_PAGE,
};
use copal_device::{
    Device, Image,
    crash::{self, StateLimits},
    fault::{CompletionOrder, FaultDevice, FaultOptions},
};
use copal_object::{MkfsOptions, OpenOptions};
use std::{collections::BTreeMap, ops::Bound, sync::Arc};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const SIZE: u64 = 64 << 20;
const ALL: (Bound<&[u8]>, Bound<&[u8]>) = (Bound::Unbounded, Bound::Unbounded);

/// Number of open blocks up to which every subset is a state; beyond, fixed and sampled subsets.
const EXHAUSTIVE: u32 = 5;
const SAMPLES: u32 = 2;

/// Number of states to check per step. All of them take minutes: `COPAL_CRASH_STATES=1000000` on demand.
fn states_per_step() -> u64 {
    let wanted = std::env::var("COPAL_CRASH_STATES").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(8)
}

fn options(flaw: Option<Flaw>) -> Options {
    Options { memory_bytes: 4 << 20, table_bytes: 16 << 10, broken: flaw, ..Options::default() }
}

fn keyspace(store: &Store) -> Result<Keyspace, crate::Error> {
    let options = KeyspaceOptions {
        group_prefix_len: 1,
        separate_from_bytes: 500,
        direct_from_bytes: 3000,
        value_head_bytes: 16,
        ..KeyspaceOptions::default()
    };
    store.keyspace("a", options)
}

fn objects(device: &Arc<dyn Device>) -> copal_object::Store {
    copal_object::Store::open(device.clone(), &OpenOptions::default()).unwrap().0
}

/// Bytes that depend only on `tag`.
pub(crate) fn value(tag: u64, len: usize) -> Vec<u8> {
    copal_testkit::Random::new(tag).bytes(len)
}

/// A store on a recorded device, and its expected contents after each operation.
struct Recorder {
    device: Arc<FaultDevice>,
    store: Store,
    space: Keyspace,
    states: Vec<Map>,
    /// Device step at which each operation began, and at which it was acknowledged as durable, if it was.
    begun: Vec<usize>,
    durable: Vec<Option<usize>>,
}

impl Recorder {
    fn new(seed: u64, flaw: Option<Flaw>) -> Recorder {
        Recorder::with_options(seed, options(flaw))
    }

    fn with_options(seed: u64, recorded: Options) -> Recorder {
        let fault = |record| FaultOptions {
            seed,
            order: CompletionOrder::Shuffled,
            max_size: SIZE,
            record,
            ..FaultOptions::default()
        };
        // Writes of mkfs and of the keyspace's creation are not part of the history.
        let device = FaultDevice::with_options(Image::zeroed(SIZE), fault(false));
        let dynamic: Arc<dyn Device> = device.clone();
        copal_object::Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
        let store = Store::open(objects(&dynamic), options(None)).unwrap();
        keyspace(&store).unwrap();
        store.close().unwrap();
        store.objects().close().unwrap();
        drop(store);
        let device = FaultDevice::with_options(device.image(), fault(true));
        let dynamic: Arc<dyn Device> = device.clone();
        let store = Store::open(objects(&dynamic), recorded).unwrap();
        Recorder {
            device,
            space: keyspace(&store).unwrap(),
            store,
            states: vec![Map::new()],
            begun: Vec::new(),
            durable: Vec::new(),
        }
    }

    fn operation(&mut self, durable: bool, model: impl FnOnce(&mut Map), run: impl FnOnce(&Recorder)) {
        let mut state = self.states.last().unwrap().clone();
        model(&mut state);
        self.states.push(state);
        self.begun.push(self.device.step());
        run(self);
        self.durable.push(durable.then(|| self.device.step()));
    }

    fn put(&mut self, key: &[u8], value: Vec<u8>, durability: Durability) {
        self.operation(
            durability == Durability::Device,
            |map| drop(map.insert(key.to_vec(), value.clone())),
            |this| this.space.put(key, &value, durability).unwrap(),
        );
    }

    fn delete(&mut self, key: &[u8], durability: Durability) {
        self.operation(
            durability == Durability::Device,
            |map| drop(map.remove(key)),
            |this| this.space.delete(key, durability).unwrap(),
        );
    }

    fn purge(&mut self, prefix: &[u8], durability: Durability) {
        self.operation(
            durability == Durability::Device,
            |map| map.retain(|key, _| !key.starts_with(prefix)),
            |this| this.space.purge_prefix(prefix, durability).unwrap(),
        );
    }

    fn flush(&mut self) {
        self.operation(false, |_| {}, |this| this.store.flush().unwrap());
    }

    fn compact(&mut self) {
        self.operation(false, |_| {}, |this| this.space.compact_range(ALL).unwrap());
    }

    /// Checks the states that a crash may leave at every step, `states_per_step` of each. Returns the
    /// problems, and the number of states.
    fn judge_all(self, seed: u64, states_per_step: u64) -> (Vec<String>, u64) {
        let Recorder { device, store, space, states, begun, durable } = self;
        drop((space, store));
        let history = device.history();
        let limits = StateLimits { exhaustive: EXHAUSTIVE, samples: SAMPLES, seed };
        let (mut wrong, mut judged) = (Vec::new(), 0);
        for cut in crash::all_cuts(&history) {
            let acknowledged = |end: &Option<usize>| end.is_some_and(|end| end <= cut.step());
            let least = durable.iter().rposition(acknowledged).map_or(0, |i| i + 1);
            let most = begun.iter().filter(|begun| **begun <= cut.step()).count();
            let all = cut.states(&limits);
            let count = all.count_all();
            let picks = count.min(states_per_step);
            for pick in 0..picks {
                // All of them, or as many at equal distances.
                let index = (u128::from(pick) * u128::from(count) / u128::from(picks)) as u64;
                let Some(state) = all.get(index) else { continue };
                judged += 1;
                let judge = || judge(&state.device(), &states[least..=most]);
                let verdict = std::panic::catch_unwind(std::panic::AssertUnwindSafe(judge))
                    .unwrap_or_else(|_| Err("it panicked".to_owned()));
                if let Err(why) = verdict {
                    wrong.push(format!("step {}: {why}\n{}", cut.step(), state.describe()));
                }
                // One is enough to fail, or to show that a control is detected.
                if !wrong.is_empty() {
                    return (wrong, judged);
                }
            }
        }
        (wrong, judged)
    }
}

fn content(store: &Store) -> Result<Map, String> {
    let space = keyspace(store).map_err(|error| error.to_string())?;
    let pair = |item: Result<(bytes::Bytes, bytes::Bytes), crate::Error>| {
        let (key, value) = item.map_err(|error| error.to_string())?;
        Ok((key.to_vec(), value.to_vec()))
    };
    space.iter(ALL).map(pair).collect()
}

/// Opens the state that a crash left and checks it; `allowed`: its permitted contents.
fn judge(device: &Arc<dyn Device>, allowed: &[Map]) -> Result<(), String> {
    let open = || Store::open(objects(device), options(None)).map_err(|error| error.to_string());
    let store = open()?;
    let mut found = content(&store)?;
    if !allowed.contains(&found) {
        return Err(format!("holds {:?}", found.keys().collect::<Vec<_>>()));
    }
    sound(&store)?;
    let after = value(7, 5000);
    let space = keyspace(&store).map_err(|error| error.to_string())?;
    let put = space.put(b"xafter", &after, Durability::Device);
    put.map_err(|error| error.to_string())?;
    found.insert(b"xafter".to_vec(), after);
    if content(&store)? != found {
        return Err("a write brought up something else, too".to_owned());
    }
    drop((space, store));
    let store = open()?;
    if content(&store)? != found {
        return Err("the second opening differs".to_owned());
    }
    sound(&store)
}

/// Checks names, accounts and the occupied bytes of value objects.
fn sound(store: &Store) -> Result<(), String> {
    let report = store.verify(false).map_err(|error| error.to_string())?;
    if !report.is_sound() {
        return Err(report.problems.join("; "));
    }
    let engine = store.engine();
    let tree = engine.stored.tree.lock();
    for (object, value) in &tree.manifest.state.values {
        let stat = engine.objects.stat(*object).ok_or("a value object is missing")?;
        let live = stat.len.next_multiple_of(VALUE_PAGE) - value.dead.whole_pages(VALUE_PAGE);
        if stat.allocated_bytes > live {
            let occupied = stat.allocated_bytes;
            return Err(format!("value object {} occupies {occupied} of {live} live bytes", object.0));
        }
    }
    Ok(())
}
