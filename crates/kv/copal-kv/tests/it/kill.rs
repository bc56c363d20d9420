//! `kill -9` at random moments of a process that writes from four threads, with an oracle of the required
//! contents.
//!
//! The test starts itself again as the writing process. Each operation is a function of its thread and
//! number, so the oracle knows all contents. The process only reports, line by line into a pipe that outlives
//! it, the operations that it begins and those acknowledged. Every batch also sets its thread's count, so a
//! store shows how far each thread came. A purge is a commit of its own, before the batch that counts it.
//!
//! Invariants, after each kill
//! - The contents are those of the counts: batches are complete or absent.
//! - Everything acknowledged as `Device` or `Process` is there, and nothing that was never begun.
//! - No gap in the commit order: with an operation, everything acknowledged before it began is there.
//! - Objects and value bytes all have an owner (`verify`).
//!
//! `COPAL_KILL_ROUNDS` sets the rounds (default 40), `COPAL_KILL_SEED` the seed: 1 000 rounds by
//! `COPAL_KILL_ROUNDS=1000 cargo test -p copal-kv --test it kill`.

use crate::support::*;
use copal_device::{Device, DeviceOpenError, FileOptions, open_file};
use copal_kv::{Batch, Durability, Keyspace, KeyspaceOptions, Options, Store};
use copal_object::{BackendKind, CheckOptions, MkfsOptions, OpenOptions, Store as Objects, StoreOpenError};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
};

const THREADS: usize = 4;
const KEYS: u64 = 24;
const STORE: &str = "COPAL_KV_KILLED_STORE";
const COUNTS: &str = "COPAL_KV_KILLED_COUNTS";

type Counts = [u64; THREADS];
/// (keyspace, key) -> value
type Content = BTreeMap<(usize, Vec<u8>), Vec<u8>>;

fn setting(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.and_then(|text| text.parse().ok()).unwrap_or(default)
}

enum Change {
    Put(usize, Vec<u8>, Vec<u8>),
    Delete(usize, Vec<u8>),
    DeleteRange(usize, Vec<u8>, Vec<u8>),
    /// All keys except the count.
    Purge(usize),
}

/// How an operation is committed.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Batch,
    Purge,
}

/// The operation of a thread with this number.
struct Operation {
    thread: usize,
    changes: Vec<Change>,
    durability: Durability,
    way: Way,
}

fn key(thread: usize, number: u64) -> Vec<u8> {
    vec![thread as u8, b'k', number as u8]
}

fn count_key(thread: usize) -> Vec<u8> {
    vec![thread as u8, b'#']
}

/// Prefix of all keys of a thread, but not of its count.
fn prefix(thread: usize) -> [u8; 2] {
    [thread as u8, b'k']
}

impl Operation {
    fn of(thread: usize, number: u64) -> Operation {
        let mut random = Random::new((thread as u64) << 40 | number);
        let mut changes = Vec::new();
        let put = |random: &mut Random| {
            let (space, at) = (random.below(2) as usize, random.below(KEYS));
            let len = match random.below(20) {
                0 => 70_000,
                1..4 => 3000 + random.below(6000) as usize,
                4..8 => 600 + random.below(2000) as usize,
                _ => random.below(200) as usize,
            };
            Change::Put(space, key(thread, at), value(number << 8 | at, len))
        };
        let mut way = Way::Batch;
        match random.below(24) {
            0..11 => changes.push(put(&mut random)),
            11..17 => (0..2 + random.below(5)).for_each(|_| changes.push(put(&mut random))),
            17..21 => changes.push(Change::Delete(random.below(2) as usize, key(thread, random.below(KEYS)))),
            21 => {
                way = Way::Purge;
                changes.push(Change::Purge(random.below(2) as usize));
            }
            _ => {
                let from = random.below(KEYS);
                let to = from + 1 + random.below(6);
                changes.push(put(&mut random));
                changes.push(Change::DeleteRange(
                    random.below(2) as usize,
                    key(thread, from),
                    key(thread, to),
                ));
            }
        }
        let count = (number + 1).to_le_bytes().to_vec();
        changes.push(Change::Put(0, count_key(thread), count));
        let durability = match random.below(5) {
            0 => Durability::Device,
            1 => Durability::Deferred,
            _ => Durability::Process,
        };
        Operation { thread, changes, durability, way }
    }

    fn purge(&self, spaces: &[Keyspace; 2]) {
        for change in &self.changes {
            if let Change::Purge(space) = change {
                let purged = spaces[*space].purge_prefix(&prefix(self.thread), self.durability);
                purged.unwrap();
            }
        }
    }

    fn batch(&self, store: &Store, spaces: &[Keyspace; 2]) -> Batch {
        let mut batch = store.batch();
        for change in &self.changes {
            match change {
                Change::Put(space, key, value) => batch.put(&spaces[*space], key, value.clone().into()),
                Change::Delete(space, key) => batch.delete(&spaces[*space], key),
                Change::DeleteRange(space, from, to) => batch.delete_range(&spaces[*space], from, to),
                Change::Purge(_) => &mut batch,
            };
        }
        batch
    }

    fn apply(self, content: &mut Content) {
        for change in self.changes {
            match change {
                Change::Put(space, key, value) => drop(content.insert((space, key), value)),
                Change::Delete(space, key) => drop(content.remove(&(space, key))),
                Change::DeleteRange(space, from, to) => {
                    content.retain(|(s, key), _| *s != space || *key < from || *key >= to);
                }
                Change::Purge(space) => {
                    let prefix = prefix(self.thread);
                    content.retain(|(s, key), _| *s != space || !key.starts_with(&prefix));
                }
            }
        }
    }
}

fn options() -> Options {
    Options { table_bytes: 64 << 10, ..small() }
}

fn open(path: &Path) -> Store {
    if path.is_dir() {
        let objects = loop {
            match Objects::open_dir(path, &OpenOptions::default()) {
                Err(StoreOpenError::Open(DeviceOpenError::Locked { .. })) => std::thread::yield_now(),
                opened => break opened.unwrap().0,
            }
        };
        return Store::open(objects, options()).unwrap();
    }
    let options = FileOptions { allow_cow: true, unsafe_volatile: true, ..FileOptions::default() };
    // Writes in flight may hold the lock a little longer than the killed process lives.
    let device = loop {
        match open_file(path, &options) {
            Err(DeviceOpenError::Locked { .. }) => std::thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    Store::open(open_objects(&device), self::options()).unwrap()
}

fn spaces(store: &Store) -> [Keyspace; 2] {
    let wide = KeyspaceOptions { compress: true, ..KeyspaceOptions::default() };
    [store.keyspace("grouped", grouped()).unwrap(), store.keyspace("plain", wide).unwrap()]
}

fn tell(what: char, thread: usize, number: u64) {
    // One write: lines of several threads do not mix, and each is in the pipe when this returns.
    let line = format!("@{what} {thread} {number}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Writes until it is killed.
fn write_for_ever(store: &Store, thread: usize, mut number: u64) {
    let spaces = spaces(store);
    loop {
        let operation = Operation::of(thread, number);
        let batch = operation.batch(store, &spaces);
        tell('b', thread, number);
        if operation.way == Way::Purge {
            operation.purge(&spaces);
        }
        batch.commit(operation.durability).unwrap();
        tell('e', thread, number);
        match (thread, number % 50) {
            (0, 49) => store.flush().unwrap(),
            (1, 49) => spaces[number as usize % 2].compact_range(all()).unwrap(),
            (2, 9) => {
                // A snapshot sees one state, independent of later writes.
                let snapshot = store.snapshot();
                let walk =
                    || snapshot.iter(&spaces[0], all()).map(|item| item.unwrap().0).collect::<Vec<_>>();
                let (first, counts) = (walk(), count_of(|key| snapshot.get(&spaces[0], key).unwrap()));
                assert_eq!(counts, count_of(|key| snapshot.get(&spaces[0], key).unwrap()));
                assert_eq!(first, walk());
            }
            (2, 30) => store.sync().unwrap(),
            _ => {}
        }
        number += 1;
    }
}

fn count_of<V: AsRef<[u8]>>(get: impl Fn(&[u8]) -> Option<V>) -> Counts {
    std::array::from_fn(|thread| {
        let count = get(&count_key(thread));
        count.map_or(0, |bytes| u64::from_le_bytes(bytes.as_ref().try_into().unwrap()))
    })
}

/// The writing process; does nothing without the variable that names its store.
#[test]
fn the_process_that_is_killed() {
    let Ok(path) = std::env::var(STORE) else { return };
    let counts = std::env::var(COUNTS).unwrap();
    let counts: Vec<u64> = counts.split(',').map(|count| count.parse().unwrap()).collect();
    let store = open(path.as_ref());
    std::thread::scope(|scope| {
        for (thread, count) in counts.into_iter().enumerate() {
            let store = &store;
            scope.spawn(move || write_for_ever(store, thread, count));
        }
    });
}

/// An event that the process reported: `b`egun or `e`nded, thread, operation.
type Event = (char, usize, u64);

/// Starts the writing process and kills it after it has reported `lines` lines.
fn run_and_kill(path: &Path, counts: &Counts, lines: usize) -> Vec<Event> {
    let counts = counts.map(|count| count.to_string()).join(",");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["kill::the_process_that_is_killed", "--exact", "--nocapture"])
        .env(STORE, path)
        .env(COUNTS, counts)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines();
    let mut events = Vec::new();
    let other = Mutex::new(Vec::new());
    let parse = |line: String| {
        let mut words = line.split(' ');
        let event = (|| {
            let what = words.next()?.strip_prefix('@')?.chars().next()?;
            Some((what, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        })();
        if event.is_none() {
            other.lock().unwrap().push(line);
        }
        event
    };
    for line in told.by_ref().map_while(Result::ok) {
        events.extend(parse(line));
        if events.len() >= lines {
            break;
        }
    }
    child.kill().unwrap();
    // Everything in the pipe was reported before the kill.
    events.extend(told.map_while(Result::ok).filter_map(parse));
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "the process ended by itself: {}", other.lock().unwrap().join("\n"));
    events
}

/// Compares the order of the reports with the contents.
fn judge_order(events: &[Event], before: &Counts, found: &Counts, what: &str) {
    let (mut begun, mut acknowledged) = (*before, *before);
    for &(kind, thread, number) in events {
        if kind == 'e' {
            acknowledged[thread] = number + 1;
            let safe = Operation::of(thread, number).durability <= Durability::Process;
            assert!(
                !safe || found[thread] > number,
                "{what}: thread {thread} was told that {number} happened, the store has {found:?}"
            );
        } else {
            begun[thread] = number + 1;
            if found[thread] > number {
                assert!(
                    (0..THREADS).all(|other| found[other] >= acknowledged[other]),
                    "{what}: {number} of thread {thread} is there, and not all of {acknowledged:?} before it: {found:?}"
                );
            }
        }
    }
    let between =
        (0..THREADS).all(|thread| before[thread] <= found[thread] && found[thread] <= begun[thread]);
    assert!(between, "{what}: {before:?} before, {begun:?} begun, {found:?} found");
}

#[test]
fn killed_at_random_moments_the_store_is_a_prefix_of_commit_order() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let create = FileOptions {
        create_size: Some(192 * MIB),
        allow_cow: true,
        unsafe_volatile: true,
        ..FileOptions::default()
    };
    let device: Arc<dyn Device> = open_file(&path, &create).unwrap();
    format(&device);
    drop(device);
    kill_again_and_again(&path, setting("COPAL_KILL_ROUNDS", 40));
}

/// Cleaning and growth: `copal-object`.
#[test]
fn killed_at_random_moments_a_store_in_segments_is_one_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let create = FileOptions {
        create_size: Some(64 * MIB),
        allow_cow: true,
        unsafe_volatile: true,
        ..FileOptions::default()
    };
    let device: Arc<dyn Device> = open_file(&path, &create).unwrap();
    let options =
        MkfsOptions { backend: BackendKind::Log, segment_bytes: Some(1 << 20), ..MkfsOptions::default() };
    Objects::mkfs(&device, &options).unwrap();
    drop(device);
    kill_again_and_again(&path, setting("COPAL_KILL_ROUNDS", 40).div_ceil(2));
}

#[test]
fn killed_at_random_moments_a_store_of_files_is_one_too() {
    let dir = tempfile::tempdir().unwrap();
    Objects::mkfs_dir(dir.path(), &MkfsOptions::default()).unwrap();
    kill_again_and_again(dir.path(), setting("COPAL_KILL_ROUNDS", 40).div_ceil(4));
}

/// A purge may be there without the batch that counts it, but only complete.
fn take_lone_purge(mut purge: Operation, there: &Content, content: &mut Content) {
    purge.changes.retain(|change| matches!(change, Change::Purge(_)));
    let mut purged = content.clone();
    let thread = purge.thread;
    purge.apply(&mut purged);
    let own = |content: &Content| -> Vec<(usize, Vec<u8>)> {
        let keys = content.keys().filter(|(_, key)| key.starts_with(&prefix(thread)));
        keys.cloned().collect()
    };
    if own(there) == own(&purged) {
        *content = purged;
    }
}

fn kill_again_and_again(path: &Path, rounds: u64) {
    let seed = setting("COPAL_KILL_SEED", 1);
    let mut random = Random::new(seed);
    let (mut counts, mut content) = (Counts::default(), Content::new());
    for round in 0..rounds {
        let lines = random.below(if round % 4 == 0 { 20 } else { 900 }) as usize;
        let events = run_and_kill(path, &counts, lines);
        let what = format!("seed {seed}, round {round}");
        let store = open(path);
        let spaces = spaces(&store);
        let found = count_of(|key| spaces[0].get(key).unwrap());
        judge_order(&events, &counts, &found, &what);
        for thread in 0..THREADS {
            for number in counts[thread]..found[thread] {
                Operation::of(thread, number).apply(&mut content);
            }
        }
        counts = found;
        let there: Content = (0..2)
            .flat_map(|space| {
                pairs(&spaces[space]).into_iter().map(move |(key, value)| ((space, key), value))
            })
            .collect();
        for (thread, count) in counts.into_iter().enumerate() {
            let next = Operation::of(thread, count);
            let begun = events.contains(&('b', thread, count));
            if next.way == Way::Purge && begun {
                take_lone_purge(next, &there, &mut content);
            }
        }
        assert!(
            there == content,
            "{what}: with {counts:?} there are {:?} instead of {:?}",
            there.keys().collect::<Vec<_>>(),
            content.keys().collect::<Vec<_>>()
        );
        assert_sound(&store, round % 8 == 0);
        if round % 3 == 0 {
            drop(spaces);
            store.close().unwrap();
        }
    }
    assert!(counts.iter().all(|count| *count > rounds), "hardly anything was written: {counts:?}");
    let store = open(path);
    let report = store.objects().check(&CheckOptions::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.damages);
}
