//! A closed store leaves its objects to the next opening.

use crate::support::*;
use copal_device::{FileOptions, open_file};
use copal_kv::{Error, Keyspace, KeyspaceOptions, Options, Store};
use copal_object::{ObjectId, ObjectKind, ObjectStat, Store as Objects};

/// The manifest.
const ROOT: ObjectId = ObjectId(1);

fn listed(objects: &Objects) -> Vec<ObjectStat> {
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

/// Another engine on the same objects still writes, and finds its writes when it opens again.
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

/// Symptom: `flush` on a closed store made a log, and `keyspace` and `drop_keyspace` wrote to the manifest,
/// possibly under an engine that had opened the same objects since.
/// Cause: only commits checked whether the store is closed. Fix: every call that takes the writer or the
/// manifest to write checks, under the lock.
#[test]
fn a_closed_store_writes_nothing_more() {
    let Fixture { objects, store, .. } = Fixture::new(64 * MIB, small());
    let space = filled(&store);
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
        ("a second close", store.close().and(Err(Error::Closed))),
    ];
    for (what, answer) in answers {
        assert!(matches!(answer, Err(Error::Closed)), "{what}: {answer:?}");
    }
    assert_eq!(listed(&objects), before);
    goes_on(reopened, &objects);
}

/// Symptom: dropping the handles of a closed store wrote to its manifest once more, over the writes of an
/// engine opened since. Cause: items that the last handle released were freed and recorded again. Fix: a
/// closed store leaves them to the next opening, which knows them.
#[test]
fn the_handles_of_a_closed_store_write_nothing_when_they_go() {
    let Fixture { objects, store, .. } = Fixture::new(64 * MIB, small());
    let space = filled(&store);
    space.compact_range(all()).unwrap();
    let snapshot = store.snapshot();
    space.put(&key(7), &value(7, 700), DEVICE).unwrap();
    space.compact_range(all()).unwrap();
    let other = space.clone();
    store.close().unwrap();
    let reopened = Store::open(objects.clone(), small()).unwrap();
    let before = listed(&objects);
    drop(snapshot);
    drop((space, other, store));
    assert_eq!(listed(&objects), before);
    goes_on(reopened, &objects);
}

/// Symptom: every command on a store to which each adds a little took longer than the one before it. In the
/// end each opening read tens of MiB of log for a few hundred KB of rows. Cause: only a full memtable ended a
/// log, and a durable commit of a few bytes takes a page of it. Fix: closing a store flushes a log of more
/// than 512 frames.
#[test]
fn log_reads_of_an_opening_do_not_grow_with_earlier_sessions() {
    let mut fixture = Fixture::new(64 * MIB, Options::default());
    let frames = |objects: &Objects| -> u64 {
        let logs =
            listed(objects).into_iter().filter(|stat| stat.kind == ObjectKind::Stream && stat.id != ROOT);
        logs.map(|stat| stat.len).sum()
    };
    let mut most = 0;
    for session in 0..40u64 {
        let space = fixture.store.keyspace("a", grouped()).unwrap();
        for i in 0..50 {
            space.put(&key(session * 50 + i), b"small", DEVICE).unwrap();
        }
        drop(space);
        fixture = fixture.reopen(Options::default(), true);
        most = most.max(frames(&fixture.objects));
    }
    assert!((100..=600).contains(&most), "{most} frames of log are left");
    let space = fixture.store.keyspace("a", grouped()).unwrap();
    assert_eq!(pairs(&space).len(), 2000);
    assert_sound(&fixture.store, true);
}

/// Symptom: after its engine was closed a store could not be shrunk, and another engine found its reserve
/// taken. Cause: only the last handle released the reserve for deletes. Fix: closing releases it.
#[test]
fn a_closed_store_keeps_no_space_back() {
    let Fixture { objects, store, .. } = Fixture::new(64 * MIB, small());
    let space = filled(&store);
    let open = objects.space().reserved_bytes;
    store.close().unwrap();
    let closed = objects.space().reserved_bytes;
    assert!(closed + MIB < open, "{closed} of {open}");
    assert!(matches!(space.put(b"z", b"", DEVICE), Err(Error::Closed)));
    assert_eq!(objects.space().reserved_bytes, closed);
    let reopened = Store::open(objects.clone(), small()).unwrap();
    assert!(objects.space().reserved_bytes > closed + MIB);
    goes_on(reopened, &objects);
}

/// Symptom: a second engine on the same objects was accepted; one of the two then poisoned itself or
/// panicked, and each freed the other's writes. Cause: no check whether the objects have an engine. Fix: an
/// opening owns them until its store is closed or dropped.
#[test]
fn a_second_opening_is_refused_while_the_first_lives() {
    let Fixture { objects, store, .. } = Fixture::new(64 * MIB, small());
    let space = filled(&store);
    let read_only = || Options { read_only: true, ..small() };
    for options in [small(), read_only()] {
        let second = Store::open(objects.clone(), options);
        assert!(matches!(second, Err(Error::AlreadyOpen)), "{:?}", second.err());
    }
    space.put(b"k", b"v", DEVICE).unwrap();
    store.close().unwrap();
    // A closed store owns nothing, although its handles exist; neither does a dropped one.
    let second = Store::open(objects.clone(), small()).unwrap();
    assert!(Store::open(objects.clone(), small()).is_err());
    drop(second);
    let readers = [read_only(), read_only()].map(|options| Store::open(objects.clone(), options).unwrap());
    assert!(matches!(Store::open(objects.clone(), small()), Err(Error::AlreadyOpen)));
    drop(readers);
    let last = Store::open(objects, small()).unwrap();
    assert_eq!(pairs(&last.keyspace("a", grouped()).unwrap()).len(), 51);
}

#[test]
fn options_that_cannot_work_are_refused_before_anything_is_touched() {
    let Fixture { objects, store, .. } = Fixture::new(64 * MIB, small());
    store.close().unwrap();
    for table_bytes in [0, u64::MAX] {
        let options = Options { table_bytes, ..small() };
        let refused = Store::open(objects.clone(), options).map(drop).unwrap_err();
        assert!(
            matches!(refused, Error::Options { name: "table_bytes", value, .. } if value == table_bytes),
            "{refused}"
        );
    }
    Store::open(objects, small()).unwrap();
}

/// Symptom: a closed file could not be reopened in the same process, in one of two cases: "in use by another
/// process".
/// Cause: the last handle releases the lock, and a thread of the device, or the one that adjusts filters,
/// held a handle a little longer than the caller.
/// Fix: closing waits until hooks have returned and no thread reads for the filters any more.
#[test]
fn a_closed_file_is_opened_again_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    let options = |create_size| FileOptions {
        create_size,
        allow_cow: true,
        unsafe_volatile: true,
        ..FileOptions::default()
    };
    let device = open_file(&path, &options(Some(64 * MIB))).unwrap();
    format(&device);
    drop(device);
    for round in 0..150u64 {
        let device =
            open_file(&path, &options(None)).unwrap_or_else(|error| panic!("round {round}: {error}"));
        let objects = open_objects(&device);
        drop(device);
        let store = Store::open(objects.clone(), small()).unwrap();
        let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
        for i in 0..20 {
            space.put(&key(i), &value(round + i, 3000), PROCESS).unwrap();
        }
        if round % 8 == 0 {
            store.flush().unwrap();
        }
        assert_eq!(space.get(&key(7)).unwrap().unwrap(), value(round + 7, 3000));
        drop(space);
        store.close().unwrap();
        objects.close().unwrap();
    }
}
