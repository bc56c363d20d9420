//! A closed store leaves the objects to whoever opens them next.

use crate::support::*;
use copal_kv::{Error, Keyspace, KeyspaceOptions, Store};
use copal_object::{ObjectId, Stat, Store as Objects};

fn listed(objects: &Objects) -> Vec<Stat> {
    objects.list(ObjectId(0), 10_000)
}

fn filled(store: &Store) -> Keyspace {
    let space = store.keyspace("a", grouped()).unwrap();
    for i in 0..50u64 {
        space.put(&key(i), &value(i, 700), DEVICE).unwrap();
    }
    space
}

fn key(i: u64) -> [u8; 8] {
    i.to_be_bytes()
}

/// Another engine on the same objects still writes, and what it wrote is there when it opens again.
fn goes_on(reopened: Store, objects: &Objects) {
    reopened.keyspace("b", KeyspaceOptions::default()).unwrap();
    let space = reopened.open_keyspace("a").unwrap().expect("it was there");
    space.put(b"z", b"later", DEVICE).unwrap();
    space.compact_range(all()).unwrap();
    assert_sound(&reopened, true);
    reopened.close().unwrap();
    let again = Store::open(objects.clone(), small()).unwrap();
    let space = again.open_keyspace("a").unwrap().expect("it was there");
    assert_eq!(pairs(&space).len(), 51);
    assert!(again.open_keyspace("b").unwrap().is_some());
    assert_sound(&again, true);
}

/// Symptom: `flush` on a closed store made a log, `keyspace` and `drop_keyspace` wrote to the manifest, and the finish
/// of an ingest did both, possibly under an engine that was opened on the same objects since. Cause: only commits asked
/// whether the store is closed. Fix: whatever takes the writer or the manifest to write asks, with the lock held.
#[test]
fn a_closed_store_writes_nothing_more() {
    let Fixture { objects, store, .. } = Fixture::new(64 * MIB, small());
    let space = filled(&store);
    let mut ingest = space.ingest_writer().unwrap();
    ingest.put(&key(100), &value(100, 2000)).unwrap();
    let mut finished = space.ingest_writer().unwrap();
    finished.put(&key(200), &value(200, 2000)).unwrap();
    store.close().unwrap();
    let reopened = Store::open(objects.clone(), small()).unwrap();
    let before = listed(&objects);
    let answers = [
        ("flush", store.flush()),
        ("sync", store.sync()),
        ("compact_range", space.compact_range(all())),
        ("repair", space.repair(all(), []).map(drop)),
        ("keyspace", store.keyspace("new", grouped()).map(drop)),
        ("drop_keyspace", store.drop_keyspace("a")),
        ("an ingest's put", ingest.put(&key(101), b"")),
        ("an ingest's finish", finished.finish().map(drop)),
        ("a second close", store.close().and(Err(Error::Closed))),
    ];
    for (what, answer) in answers {
        assert!(matches!(answer, Err(Error::Closed)), "{what}: {answer:?}");
    }
    assert_eq!(listed(&objects), before);
    drop(ingest);
    assert_eq!(listed(&objects), before);
    goes_on(reopened, &objects);
}

/// Symptom: dropping the handles of a closed store wrote to its manifest once more, over what an engine opened since had
/// written. Cause: what an ingest that was dropped after the closing had left was taken back and noted again. Fix: a
/// closed store leaves it to the next opening, which was told of it.
#[test]
fn the_handles_of_a_closed_store_write_nothing_when_they_go() {
    let Fixture { objects, store, .. } = Fixture::new(64 * MIB, small());
    let space = filled(&store);
    space.compact_range(all()).unwrap();
    let snapshot = store.snapshot();
    space.put(&key(7), &value(7, 700), DEVICE).unwrap();
    space.compact_range(all()).unwrap();
    let other = space.clone();
    let mut ingest = other.ingest_writer().unwrap();
    // Enough for value objects to exist.
    for i in 100..200 {
        ingest.put(&key(i), &value(i, 60_000)).unwrap();
    }
    store.close().unwrap();
    let reopened = Store::open(objects.clone(), small()).unwrap();
    let before = listed(&objects);
    drop((ingest, snapshot));
    drop((space, other, store));
    assert_eq!(listed(&objects), before);
    goes_on(reopened, &objects);
}
