//! Kills of the process at every amount of unlogged data: the page cache survives, and a device write in
//! flight completes or does not. Many kills of one store in a row.
//!
//! The oracle: everything acknowledged as kill-safe is there, and the contents are those after some
//! operation. Then the page-cache log alone: a power loss that tears it, and a session that continues after
//! that.

use super::*;
use copal_device::fault::FaultDevice;
use copal_testkit::Random;

const KEYS: u64 = 12;

/// Values up to 50 KB stay in log and memtable.
fn inline(store: &Store) -> Keyspace {
    let options = KeyspaceOptions {
        group_prefix_len: 1,
        separate_from_bytes: 60_000,
        direct_from_bytes: 60_000,
        ..KeyspaceOptions::default()
    };
    store.keyspace("k", options).unwrap()
}

fn content_of(space: &Keyspace) -> Map {
    let pair = |item: Result<(bytes::Bytes, bytes::Bytes), crate::Error>| {
        let (key, value) = item.unwrap();
        (key.to_vec(), value.to_vec())
    };
    space.iter(ALL).map(pair).collect()
}

fn new_device(seed: u64) -> Arc<FaultDevice> {
    let options = FaultOptions {
        seed,
        order: CompletionOrder::Shuffled,
        max_size: SIZE,
        record: false,
        ..FaultOptions::default()
    };
    let device = FaultDevice::with_options(Image::zeroed(SIZE), options);
    let dynamic: Arc<dyn Device> = device.clone();
    copal_object::Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    device
}

fn open(device: &Arc<FaultDevice>, flaw: Option<Flaw>) -> Store {
    let dynamic: Arc<dyn Device> = device.clone();
    Store::open(objects(&dynamic), options(flaw)).unwrap()
}

/// Parameters of one session: the durabilities it uses, and the limit of its value lengths.
fn session(random: &mut Random) -> (Vec<Durability>, u64) {
    use Durability::{Deferred, Device, Process};
    let mixtures: [&[Durability]; 4] = [
        &[Process],
        &[Process, Process, Process, Deferred],
        &[Process, Deferred, Device],
        &[Process, Process, Process, Process, Process, Device],
    ];
    let mixture = mixtures[random.below(4) as usize].to_vec();
    (mixture, [40, 900, 12_000, 50_000][random.below(4) as usize])
}

/// Kills a store `rounds` times. Returns the number of groups that went through the page-cache log, or the
/// first problem.
fn killed(seed: u64, rounds: u64, flaw: Option<Flaw>) -> Result<u64, String> {
    let mut random = Random::new(seed);
    let mut device = new_device(seed);
    let mut allowed = vec![Map::new()];
    let (mut through, mut tag) = (0, 0);
    for round in 0..=rounds {
        let store = open(&device, flaw);
        let space = inline(&store);
        let found = content_of(&space);
        if !allowed.contains(&found) {
            let sizes: Vec<_> = found.iter().map(|(key, value)| (key, value.len())).collect();
            return Err(format!("seed {seed}, round {round}: none of {} states is {sizes:?}", allowed.len()));
        }
        let report = store.verify(false).unwrap();
        if !report.is_sound() {
            return Err(report.problems.join("; "));
        }
        let (mixture, longest) = session(&mut random);
        let mut states = vec![found];
        let mut safe = 0;
        for _ in 0..random.below(120) {
            let mut state = states.last().unwrap().clone();
            let durability = mixture[random.below(mixture.len() as u64) as usize];
            let key = vec![b'x', b'0' + random.below(KEYS) as u8];
            tag += 1;
            match random.below(14) {
                0 => {
                    space.delete(&key, durability).unwrap();
                    state.remove(&key);
                }
                // Too long for the page-cache log: a group of its own.
                1 if longest > 900 => {
                    let value = value(tag, 59_000 + random.below(4000) as usize);
                    space.put(&key, &value, durability).unwrap();
                    state.insert(key, value);
                }
                _ => {
                    let value = value(tag, random.below(longest) as usize);
                    space.put(&key, &value, durability).unwrap();
                    state.insert(key, value);
                }
            }
            states.push(state);
            if durability != Durability::Deferred {
                safe = states.len() - 1;
            }
        }
        through += store.stats().kill_safe_groups;
        if random.below(6) == 0 {
            store.close().unwrap();
            safe = states.len() - 1;
        }
        device = device.reopen();
        drop((space, store));
        allowed = states.split_off(safe);
    }
    Ok(through)
}

fn is_caught_by_kills(flaw: Flaw) {
    let caught = (0..12).any(|seed| killed(seed, 12, Some(flaw)).is_err());
    assert!(caught, "{flaw:?} went unnoticed");
}

#[test]
fn kill_safe_writes_survive_a_kill() {
    let through: u64 = (0..6).map(|seed| killed(seed, 12, None).unwrap()).sum();
    assert!(through > 1000, "only {through} groups went through the page-cache log");
}

#[test]
fn a_group_that_passes_the_room_by_is_caught() {
    is_caught_by_kills(Flaw::PageCacheLogPassedBy);
}

#[test]
fn a_bay_that_is_reused_early_is_caught() {
    is_caught_by_kills(Flaw::HalfReusedEarly);
}

/// A power loss tears the page-cache log. The next session writes as much again, is killed, and must not
/// continue with records of the first one.
fn torn_and_continued(flaw: Option<Flaw>) -> Result<u64, String> {
    let mut recorder = Recorder::new(5, None);
    // The first put makes the page-cache log; the others are recorded in it.
    for i in 0..7u8 {
        recorder.put(&[b'x', i], value(u64::from(i), 2900), Durability::Process);
    }
    let Recorder { device, store, space, states, .. } = recorder;
    assert!(store.stats().kill_safe_groups >= 5);
    let history = device.history();
    drop((space, store));
    let limits = StateLimits { exhaustive: 12, samples: 64, seed: 5 };
    let Some(cut) = crash::all_cuts(&history).last() else {
        return Err("there is no end".to_owned());
    };
    let all = cut.states(&limits);
    let count = all.count_all();
    let mut judged = 0;
    for index in (0..count).step_by((count / 96).max(1) as usize) {
        let Some(state) = all.get(index) else { continue };
        judged += 1;
        let device = state.fault_device(index);
        let dynamic: Arc<dyn Device> = device.clone();
        let store = Store::open(objects(&dynamic), options(flaw)).unwrap();
        let mut found = content(&store)?;
        if !states.contains(&found) {
            return Err(format!("state {index} holds {:?}", found.keys().collect::<Vec<_>>()));
        }
        let space = keyspace(&store).unwrap();
        for i in 0..2u8 {
            let value = value(100 + u64::from(i), 2900);
            space.put(&[b'y', i], &value, Durability::Process).unwrap();
            found.insert(vec![b'y', i], value);
        }
        let device = device.reopen();
        drop((space, store));
        let dynamic: Arc<dyn Device> = device.clone();
        let store = Store::open(objects(&dynamic), options(None)).unwrap();
        if content(&store)? != found {
            let keys: Vec<_> = content(&store)?.into_keys().collect();
            return Err(format!("state {index}: after the kill there are {keys:?}"));
        }
    }
    Ok(judged)
}

#[test]
fn the_next_session_does_not_continue_a_torn_page_cache_log() {
    let judged = torn_and_continued(None).unwrap();
    assert!(judged >= 64, "only {judged} states");
}

#[test]
fn a_session_that_takes_over_the_last_ones_room_is_caught() {
    assert!(torn_and_continued(Some(Flaw::SessionGoesOn)).is_err());
}
