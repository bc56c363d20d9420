//! Isolation of concurrent batches and snapshots, checked on a recorded history.
//!
//! Each writer's batches count up a key of its own, rewrite keys of its own as a function of that count, and
//! write two keys that all writers share. So a snapshot shows how many batches of each writer it contains: a
//! vector.
//!
//! Invariants
//! - Batches are atomic: a writer's keys are those of its count, and the two shared keys are of the same
//!   batch, which the snapshot contains.
//! - Snapshots are prefixes of one order: of any two vectors one is nowhere less than the other (no long
//!   fork).
//! - Real time: a snapshot contains everything acknowledged before it was taken, and nothing begun after it
//!   was.
//! - A snapshot answers the same later, by look-up and by iterator.

use crate::support::*;
use copal_kv::{Durability, Keyspace, Snapshot, Store};
use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
};

const WRITERS: usize = 4;
const READERS: usize = 2;
const BATCHES: u64 = 250;
const OWN_KEYS: u8 = 6;

type Vector = [u64; WRITERS];

/// Times on one clock: when each batch began and was acknowledged.
#[derive(Clone, Copy, Default)]
struct Span {
    began: u64,
    acknowledged: u64,
}

struct Seen {
    before: u64,
    after: u64,
    vector: Vector,
}

struct History<'a> {
    store: &'a Store,
    spaces: [Keyspace; 2],
    clock: AtomicU64,
    done: AtomicBool,
    seen: Mutex<Vec<Seen>>,
}

fn own_key(writer: usize, index: u8) -> Vec<u8> {
    vec![b'a' + writer as u8, index]
}

/// The batch that last wrote one of a writer's own keys, after `count` batches.
fn last_write(count: u64, index: u8) -> Option<u64> {
    (0..count).rev().find(|batch| (batch + u64::from(index)) % 3 != 0)
}

fn token(writer: usize, batch: u64) -> u64 {
    (writer as u64) << 32 | batch
}

fn number(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes[..8].try_into().unwrap())
}

impl History<'_> {
    fn now(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    fn write(&self, writer: usize) -> Vec<Span> {
        let mut random = Random::new(writer as u64);
        let mut spans = Vec::new();
        for batch in 0..BATCHES {
            let mut ops = self.store.batch();
            for index in (0..OWN_KEYS).filter(|index| (batch + u64::from(*index)) % 3 != 0) {
                let len = [16, 700, 4000][random.below(3) as usize];
                let mut bytes = token(writer, batch).to_le_bytes().to_vec();
                bytes.resize(len, index);
                ops.put(&self.spaces[usize::from(index) % 2], &own_key(writer, index), bytes.into());
            }
            for space in &self.spaces {
                ops.put(space, b"shared", token(writer, batch).to_le_bytes().to_vec().into());
            }
            ops.put(&self.spaces[0], &own_key(writer, b'#'), (batch + 1).to_le_bytes().to_vec().into());
            let durability =
                [Durability::Device, Durability::Process, Durability::Deferred][random.below(3) as usize];
            let began = self.now();
            spans.push(Span { began, acknowledged: u64::MAX });
            ops.commit(durability).unwrap();
            spans[batch as usize].acknowledged = self.now();
        }
        spans
    }

    /// Batches in a snapshot, with a check that they are complete.
    fn look(&self, snapshot: &Snapshot) -> Vector {
        let get = |space: usize, key: &[u8]| snapshot.get(&self.spaces[space], key).unwrap();
        let vector: Vector =
            std::array::from_fn(|writer| get(0, &own_key(writer, b'#')).map_or(0, |bytes| number(&bytes)));
        for (writer, count) in vector.iter().enumerate() {
            for index in 0..OWN_KEYS {
                let found = get(usize::from(index) % 2, &own_key(writer, index)).map(|bytes| number(&bytes));
                let expected = last_write(*count, index).map(|batch| token(writer, batch));
                assert_eq!(found, expected, "writer {writer}, key {index} of {vector:?}");
            }
        }
        let shared = [0, 1].map(|space| get(space, b"shared").map(|bytes| number(&bytes)));
        assert_eq!(shared[0], shared[1], "half a batch is visible in {vector:?}");
        if let Some(token) = shared[0] {
            let (writer, batch) = ((token >> 32) as usize, token & u64::from(u32::MAX));
            assert!(batch < vector[writer], "{batch} of {writer} is visible and not in {vector:?}");
        }
        vector
    }

    fn read(&self) {
        while !self.done.load(SeqCst) {
            let before = self.now();
            let snapshot = self.store.snapshot();
            let after = self.now();
            let vector = self.look(&snapshot);
            assert_eq!(self.look(&snapshot), vector, "a snapshot changed");
            let walked = snapshot.iter(&self.spaces[0], all()).map(Result::unwrap);
            for (key, value) in walked.filter(|(key, _)| key.len() == 2 && key[1] == b'#') {
                assert_eq!(number(&value), vector[usize::from(key[0] - b'a')], "the walk sees another state");
            }
            self.seen.lock().unwrap().push(Seen { before, after, vector });
        }
    }
}

#[test]
fn snapshots_under_threads_are_prefixes_of_one_order_of_whole_batches() {
    let fixture = Fixture::new(256 * MIB, small());
    let history = History {
        store: &fixture.store,
        spaces: [fixture.space("a", grouped()), fixture.space("b", grouped())],
        clock: AtomicU64::new(1),
        done: AtomicBool::new(false),
        seen: Mutex::default(),
    };
    let spans: Vec<Vec<Span>> = std::thread::scope(|scope| {
        let history = &history;
        let writers: Vec<_> = (0..WRITERS).map(|writer| scope.spawn(move || history.write(writer))).collect();
        let readers: Vec<_> = (0..READERS).map(|_| scope.spawn(|| history.read())).collect();
        scope.spawn(|| {
            while !history.done.load(SeqCst) {
                history.store.flush().unwrap();
                history.spaces[1].compact_range(all()).unwrap();
            }
        });
        let spans = writers.into_iter().map(|writer| writer.join()).collect::<Vec<_>>();
        history.done.store(true, SeqCst);
        readers.into_iter().for_each(|reader| reader.join().unwrap());
        spans.into_iter().map(Result::unwrap).collect()
    });
    let mut seen = history.seen.into_inner().unwrap();
    assert!(seen.len() > 20, "only {} snapshots were taken", seen.len());
    for Seen { before, after, vector } in &seen {
        for (writer, spans) in spans.iter().enumerate() {
            let must = spans.iter().filter(|span| span.acknowledged < *before).count() as u64;
            let may = spans.iter().filter(|span| span.began < *after).count() as u64;
            assert!(
                must <= vector[writer] && vector[writer] <= may,
                "writer {writer}: {must} acknowledged before, {may} begun, {vector:?} seen"
            );
        }
    }
    // In the order of their sums, prefixes of one order grow in every part.
    seen.sort_by_key(|seen| seen.vector.iter().sum::<u64>());
    for pair in seen.windows(2) {
        let (a, b) = (&pair[0].vector, &pair[1].vector);
        assert!(a.iter().zip(b).all(|(a, b)| a <= b), "{a:?} and {b:?} are of no one order");
    }
    assert_sound(&fixture.store, true);
}

/// One history, for any promised durability.
#[test]
fn how_a_commit_is_made_changes_no_answer() {
    let mut answers = Vec::new();
    for way in 0..6u64 {
        let mut fixture = Fixture::new(128 * MIB, small());
        let mut random = Random::new(77);
        let mut choice = Random::new(1000 + way);
        for _ in 0..2 {
            let spaces = [fixture.space("a", grouped()), fixture.space("b", Default::default())];
            for _ in 0..300u64 {
                let mut batch = fixture.store.batch();
                for _ in 0..1 + random.below(4) {
                    let space = &spaces[random.below(2) as usize];
                    let (from, tag) = (random.below(60) as u8, random.below(1 << 30));
                    match random.below(8) {
                        0 => batch.delete(space, &[from]),
                        1 => batch.delete_range(space, &[from], &[from + 1 + random.below(5) as u8]),
                        _ => batch.put(space, &[from], value(tag, [9, 800, 5000][tag as usize % 3]).into()),
                    };
                }
                let any = [Durability::Device, Durability::Process, Durability::Deferred];
                let durability = any[if way < 3 { way } else { choice.below(3) } as usize];
                batch.commit(durability).unwrap();
                if way > 2 && choice.below(40) == 0 {
                    fixture.store.flush().unwrap();
                }
            }
            answers.push((way, spaces.each_ref().map(pairs)));
            drop(spaces);
            fixture = fixture.reopen(small(), way % 2 == 0);
        }
    }
    let (first, others) = answers.split_at(2);
    for (index, (way, answer)) in others.iter().enumerate() {
        assert!(*answer == first[index % 2].1, "way {way} answers otherwise");
    }
}
