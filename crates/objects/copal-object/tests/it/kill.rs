//! `kill -9` at random moments of a process that replaces objects in a store in segments: beside the cleaner, growth
//! and a scrub that keeps its place.
//!
//! The test starts itself again as the writing process, which reports each replacement before it and after its durable
//! acknowledgement. `COPAL_KILL_ROUNDS` sets the rounds (default 12), `COPAL_KILL_SEED` the seed.

use crate::basics::{bytes, plain};
use copal_device::{Device, DeviceOpenError, FileOptions, IoClass, open_file};
use copal_object::*;
use copal_testkit::Random;
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

const STORE: &str = "COPAL_OBJECT_KILLED_STORE";
const PLAN: &str = "COPAL_OBJECT_KILLED_PLAN";
const MIB: u64 = 1 << 20;
const OBJECT_BYTES: usize = 48 << 10;

/// Limits of a round.
#[derive(Clone, Copy)]
struct KillRound {
    max_bytes: u64,
    /// Objects that are replaced: four fifths of the store.
    objects: u64,
    seed: u64,
}

impl KillRound {
    /// The store may grow by a few segments in each round.
    fn new(round: u64, seed: u64) -> KillRound {
        let max_bytes = (64 + 4 * round) * MIB;
        KillRound { max_bytes, objects: max_bytes * 4 / 5 / OBJECT_BYTES as u64, seed: seed * 1000 + round }
    }
}

fn setting(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

fn open(path: &Path, max_bytes: u64) -> Store {
    let options = FileOptions { allow_cow: true, unsafe_volatile: true, ..FileOptions::default() };
    // Writes in flight may hold the lock a little longer than the killed process lives.
    let device: Arc<dyn Device> = loop {
        match open_file(path, &options) {
            Err(DeviceOpenError::Locked { .. }) => std::thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    let options = OpenOptions { max_size_bytes: Some(max_bytes), ..OpenOptions::default() };
    Store::open(device, &options).unwrap().0
}

/// Puts content `number` under `id`, in place of the present one.
fn replace(store: &Store, id: u64, number: u64, ack: Ack) {
    let id = ObjectId(id);
    let old = if store.stat(id).is_some() { Txn::new().delete(id) } else { Txn::new() };
    let txn = old.create(id, plain(ReadCheck::Pages)).append(id, 0, bytes(OBJECT_BYTES, number));
    store.commit(txn, ack).wait().unwrap();
}

fn tell(what: char, id: u64, number: u64) {
    // One write, so that the line is in the pipe when this returns.
    let _ = std::io::stderr().write_all(format!("@{what} {id} {number}\n").as_bytes());
}

/// Replaces objects until it is killed. Does nothing in an ordinary run of the tests.
#[test]
fn the_process_that_is_killed() {
    let Ok(path) = std::env::var(STORE) else { return };
    let plan = std::env::var(PLAN).unwrap();
    let plan: Vec<u64> = plan.split(',').map(|number| number.parse().unwrap()).collect();
    let store = open(path.as_ref(), plan[0]);
    let mut random = Random::new(plan[2]);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                let mut scrub = store.scrub();
                while scrub.step(&mut |damage| panic!("{damage}")).unwrap().is_some() {
                    scrub.keep_place();
                }
            }
        });
        let mut missing: Vec<u64> = (0..plan[1]).filter(|id| store.stat(ObjectId(*id)).is_none()).collect();
        for number in plan[2] << 20.. {
            let new = if number % 2 == 0 { missing.pop() } else { None };
            let id = new.unwrap_or_else(|| random.below(plan[1]));
            tell('b', id, number);
            replace(&store, id, number, Ack::Durable);
            tell('e', id, number);
        }
    });
}

/// Starts the process, kills it after `lines` of its reports, and returns them all.
fn run_and_kill(path: &Path, round: KillRound, lines: usize) -> Vec<(char, u64, u64)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["kill::the_process_that_is_killed", "--exact", "--nocapture"])
        .env(STORE, path)
        .env(PLAN, format!("{},{},{}", round.max_bytes, round.objects, round.seed))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
    let mut other = Vec::new();
    let mut parse = |line: String| {
        let mut words = line.strip_prefix('@').unwrap_or_default().split(' ');
        let event = (|| {
            let what = words.next()?.chars().next()?;
            Some((what, words.next()?.parse().ok()?, words.next()?.parse().ok()?))
        })();
        if event.is_none() {
            other.push(line);
        }
        event
    };
    let mut events: Vec<_> = told.by_ref().filter_map(&mut parse).take(lines).collect();
    child.kill().unwrap();
    // Everything in the pipe was reported before the kill.
    events.extend(told.filter_map(&mut parse));
    let status = child.wait().unwrap();
    assert_eq!(status.signal(), Some(9), "the process ended by itself: {}", other.join("\n"));
    events
}

#[test]
fn killed_at_random_moments_no_acknowledged_object_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let (rounds, seed) = (setting("COPAL_KILL_ROUNDS", 12), setting("COPAL_KILL_SEED", 1));
    let create = FileOptions {
        create_size: Some(64 * MIB),
        allow_cow: true,
        unsafe_volatile: true,
        ..FileOptions::default()
    };
    let device: Arc<dyn Device> = open_file(&path, &create).unwrap();
    let options =
        MkfsOptions { backend: BackendKind::Log, segment_bytes: Some(256 << 10), ..MkfsOptions::default() };
    Store::mkfs(&device, &options).unwrap();
    drop(device);
    let first = KillRound::new(0, seed);
    let store = open(&path, first.max_bytes);
    let mut truth: BTreeMap<u64, u64> = (0..first.objects).map(|id| (id, id)).collect();
    truth.iter().for_each(|(&id, &number)| replace(&store, id, number, Ack::Ordered));
    store.close().unwrap();
    drop(store);
    let mut random = Random::new(seed);
    for number in 0..rounds {
        let round = KillRound::new(number, seed);
        let lines = random.below(if number % 4 == 0 { 20 } else { 700 }) as usize;
        let events = run_and_kill(&path, round, lines);
        let begun = events.last().filter(|event| event.0 == 'b').map(|event| (event.1, event.2));
        truth.extend(events.iter().filter(|event| event.0 == 'e').map(|event| (event.1, event.2)));
        let store = open(&path, round.max_bytes);
        for (&id, content) in &mut truth {
            let found = store.read(ObjectId(id), 0..u64::MAX, IoClass::Foreground).wait().unwrap();
            match begun.filter(|begun| begun.0 == id) {
                Some((_, next)) if found == bytes(OBJECT_BYTES, next) => *content = next,
                _ => assert!(found == bytes(OBJECT_BYTES, *content), "round {number}: object {id}"),
            }
        }
        if let Some((id, next)) = begun
            && store.stat(ObjectId(id)).is_some()
        {
            truth.entry(id).or_insert(next);
        }
        let report = store.check(&CheckOptions { data: true, repair: false }).unwrap();
        assert!(report.is_clean(), "round {number}: {:?}", report.damages);
    }
    let size = std::fs::metadata(&path).unwrap().len();
    assert!(size > 64 * MIB, "{size} bytes: the store never grew");
}
