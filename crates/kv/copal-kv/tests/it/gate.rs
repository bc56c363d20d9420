//! Commits delayed at the device: a commit in flight is not visible yet, and one after a failure never is.

use crate::support::*;
use copal_device::{AlignedBuf, Device, MemoryDevice};
use copal_kv::{Durability, Error, FilterMemory, FilterOptions, Keyspace, KeyspaceOptions, Options, Store};
use copal_testkit::GatedDevice;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

/// Duration of a slow read.
const LONG_READ: Duration = Duration::from_millis(50);

type Answers = mpsc::Receiver<(u8, Result<(), Error>)>;

/// Keys of the commits at the gate.
const KEYS: u8 = 4;

fn gated() -> (Arc<GatedDevice>, Arc<dyn Device>) {
    let device = GatedDevice::new(MemoryDevice::new(64 * MIB));
    let dynamic: Arc<dyn Device> = device.clone();
    format(&dynamic);
    (device, dynamic)
}

/// A store with its first two keys, whose next durable writes wait at the gate.
fn at_a_shut_gate() -> (Arc<GatedDevice>, Arc<dyn Device>, Store, Keyspace) {
    let (device, dynamic) = gated();
    let store = Store::open(open_objects(&dynamic), small()).unwrap();
    let space = store.keyspace("a", grouped()).unwrap();
    // The first put enters the log's space; from then on each put is one durable write.
    space.put(b"first", b"", DEVICE).unwrap();
    space.put(b"second", b"", DEVICE).unwrap();
    device.change(|gate| gate.shut = true);
    (device, dynamic, store, space)
}

/// Three groups at the gate, in the order of their commits: one, one and two writes, as a group gathers until
/// it is as large as the writes in flight.
fn three_on_their_way(body: impl FnOnce(&GatedDevice, &Keyspace, &Answers)) -> (Arc<dyn Device>, Store) {
    let (device, dynamic, store, space) = at_a_shut_gate();
    std::thread::scope(|scope| {
        let _opens = device.open_at_end();
        let (answer, answers) = mpsc::channel();
        for (group, commits) in [0..1, 1..2, 2..KEYS].into_iter().enumerate() {
            for i in commits {
                let (answer, space) = (answer.clone(), space.clone());
                scope.spawn(move || answer.send((i, space.put(&[i], &[i; 50], DEVICE))).unwrap());
            }
            device.wait(|gate| gate.came == group + 1);
        }
        body(&device, &space, &answers);
    });
    (dynamic, store)
}

fn visible(space: &Keyspace) -> Vec<u8> {
    let found = (0..KEYS).filter(|i| space.get(&[*i]).unwrap().is_some()).collect();
    let walked: Vec<_> = pairs(space).into_iter().filter(|(key, _)| key.len() == 1).collect();
    assert_eq!(walked.iter().map(|(key, _)| key[0]).collect::<Vec<_>>(), found);
    found
}

#[test]
fn commits_overlap_on_the_device_and_appear_in_their_order() {
    let (dynamic, store) = three_on_their_way(|device, space, answers| {
        assert!(visible(space).is_empty(), "visible before it is durable");
        device.change(|gate| gate.let_through.extend([1, 2]));
        device.wait(|gate| gate.done == 2);
        assert!(visible(space).is_empty(), "visible before an earlier one is durable");
        assert!(answers.try_recv().is_err(), "acknowledged before an earlier one is durable");
        device.let_through(0);
        for (i, result) in answers.iter().take(usize::from(KEYS)) {
            result.unwrap();
            assert!(visible(space).contains(&i), "{i} was acknowledged and is not there");
        }
        assert_eq!(visible(space), [0, 1, 2, 3]);
    });
    drop(store);
    let store = Store::open(open_objects(&dynamic), small()).unwrap();
    assert_eq!(visible(&store.keyspace("a", grouped()).unwrap()), [0, 1, 2, 3]);
    assert_sound(&store, true);
}

#[test]
fn behind_a_failed_commit_nothing_appears_and_reads_go_on() {
    let (dynamic, store) = three_on_their_way(|device, space, answers| {
        device.change(|gate| {
            gate.fails = Some(1);
            gate.let_through.push(2);
        });
        device.wait(|gate| gate.done == 1);
        device.let_through(1);
        device.let_through(0);
        for (i, result) in answers.iter().take(usize::from(KEYS)) {
            let told = matches!(result, Err(Error::Poisoned { .. }));
            assert!(told || (i == 0 && result.is_ok()), "{i}: {result:?}");
        }
        assert!(visible(space).iter().all(|i| *i == 0), "what failed appeared");
        assert!(space.get(b"second").unwrap().is_some());
        assert!(matches!(space.put(b"later", b"", DEVICE), Err(Error::Poisoned { .. })));
    });
    drop(store);
    let store = Store::open(open_objects(&dynamic), small()).unwrap();
    let left = visible(&store.keyspace("a", grouped()).unwrap());
    assert!(left.iter().all(|i| *i == 0), "{left:?} came back");
    assert_sound(&store, true);
}

/// Symptom: where a flush takes long, one write in a hundred took as long, although all were deferred or
/// kill-safe. Readers that also wrote waited with it (YCSB D and E: 5 and 19 ms, .4 and .7 of RocksDB's
/// speed). Cause: every 100 ms the flusher made deferred writes durable and held the writer lock for as long.
/// Fix: it releases the lock as soon as they have their place in the log.
#[test]
fn no_write_waits_for_the_device_while_deferred_writes_become_durable() {
    for promise in [Durability::Deferred, PROCESS] {
        let (device, dynamic, store, space) = at_a_shut_gate();
        std::thread::scope(|scope| {
            let _opens = device.open_at_end();
            // The first kill-safe write makes the page-cache log, durably.
            device.change(|gate| gate.shut = false);
            space.put(b"third", b"", promise).unwrap();
            store.sync().unwrap();
            device.change(|gate| gate.shut = true);
            space.put(&[0], &[0; 50], promise).unwrap();
            device.wait(|gate| gate.came == 1);
            let (answer, answers) = mpsc::channel();
            let behind = &space;
            scope.spawn(move || answer.send(behind.put(&[1], &[1; 50], promise)).unwrap());
            let put = answers.recv_timeout(Duration::from_secs(60));
            put.expect("the writer is kept while the log is written").unwrap();
            assert_eq!(visible(&space), [0, 1]);
        });
        store.close().unwrap();
        drop((space, store));
        let store = Store::open(open_objects(&dynamic), small()).unwrap();
        assert_eq!(visible(&store.keyspace("a", grouped()).unwrap()), [0, 1]);
    }
}

/// The store after a kill at this moment.
fn killed(device: &GatedDevice) -> Store {
    const PIECE: usize = 1 << 20;
    let copy: Arc<dyn Device> = MemoryDevice::new(64 * MIB);
    for at in (0..64 * MIB).step_by(PIECE) {
        let bytes = device.below().read_now(at, AlignedBuf::zeroed(PIECE)).unwrap();
        copy.write_through(at, bytes).unwrap();
    }
    Store::open(open_objects(&copy), small()).unwrap()
}

/// Symptom: a kill-safe write was acknowledged and lost by a kill. Cause: an earlier deferred write was being
/// logged and was not in the page-cache log, so the record after it followed a gap. Fix: such a write is
/// logged after the other one, until everything in the log is written.
#[test]
fn a_kill_safe_write_behind_a_deferred_one_that_is_on_its_way_survives_a_kill() {
    let (device, _, store, space) = at_a_shut_gate();
    std::thread::scope(|scope| {
        let _opens = device.open_at_end();
        // The first kill-safe write makes the page-cache log, durably.
        device.change(|gate| gate.shut = false);
        space.put(b"third", b"", PROCESS).unwrap();
        store.sync().unwrap();
        device.change(|gate| gate.shut = true);
        space.put(&[0], &[0; 50], Durability::Deferred).unwrap();
        device.wait(|gate| gate.came == 1);
        let before = device.look().handed_in;
        let (answer, answers) = mpsc::channel();
        let behind = &space;
        scope.spawn(move || answer.send(behind.put(&[1], &[1; 50], PROCESS)).unwrap());
        // It is acknowledged at once, or goes to the device.
        let answered = loop {
            match answers.try_recv() {
                Ok(put) => break Some(put),
                Err(_) if device.look().handed_in > before => break answers.try_recv().ok(),
                Err(_) => std::thread::yield_now(),
            }
        };
        if let Some(put) = &answered {
            put.as_ref().unwrap();
            let left = killed(&device);
            let left = visible(&left.keyspace("a", grouped()).unwrap());
            assert_eq!(left, [0, 1], "an acknowledged write is lost");
        }
        device.change(|gate| gate.shut = false);
        answered.unwrap_or_else(|| answers.recv().unwrap()).unwrap();
    });
    let left = killed(&device);
    assert_eq!(visible(&left.keyspace("a", grouped()).unwrap()), [0, 1]);
}

/// Symptom: kill-safe writes waited for reads and writes of the same file again once a store had been closed
/// and opened. Cause: the page-cache log was prepared for its writes only when it was made. Fix: every
/// session prepares it.
#[test]
fn every_session_prepares_its_waiting_room() {
    let (device, dynamic, store, space) = at_a_shut_gate();
    device.change(|gate| gate.shut = false);
    space.put(b"third", b"", PROCESS).unwrap();
    assert_eq!(device.look().prepared, 1);
    store.close().unwrap();
    drop((space, store));
    let store = Store::open(open_objects(&dynamic), small()).unwrap();
    let space = store.keyspace("a", grouped()).unwrap();
    space.put(b"fourth", b"", PROCESS).unwrap();
    assert_eq!(device.look().prepared, 2);
}

/// Deferred writes in flight to the device, which no commit waits for.
#[test]
fn a_sync_waits_for_deferred_writes_that_are_on_their_way() {
    let (device, _, store, space) = at_a_shut_gate();
    std::thread::scope(|scope| {
        let _opens = device.open_at_end();
        space.put(&[0], &[0; 50], Durability::Deferred).unwrap();
        device.wait(|gate| gate.came == 1);
        let (answer, answers) = mpsc::channel();
        let store = &store;
        scope.spawn(move || answer.send(store.sync()).unwrap());
        while device.look().came < 2 {
            assert!(answers.try_recv().is_err(), "synced before it is durable");
            std::thread::yield_now();
        }
        assert!(answers.try_recv().is_err(), "synced before it is durable");
        device.change(|gate| gate.shut = false);
        answers.recv().unwrap().unwrap();
    });
}

/// Symptom: a closed file could not be reopened at once. Cause: the filter adjuster was still reading from
/// it.
/// Fix: closing waits for that read.
#[test]
fn a_closed_store_reads_for_no_filter() {
    let (device, dynamic) = gated();
    let filters = FilterOptions {
        memory: FilterMemory::BitsPerKey(3.0),
        background: false,
        ..FilterOptions::default()
    };
    let options = Options { table_bytes: 256 << 10, filters, ..Options::default() };
    let store = Store::open(open_objects(&dynamic), options.clone()).unwrap();
    let space = store.keyspace("a", KeyspaceOptions::default()).unwrap();
    let key = |i: u64| copal_testkit::scattered(i).to_be_bytes();
    for i in 0..20_000 {
        space.put(&key(2 * i), &value(i, 40), Durability::Deferred).unwrap();
    }
    store.flush().unwrap();
    space.compact_range(all()).unwrap();
    drop(space);
    store.close().unwrap();
    // No unit is in memory now.
    let store = Store::open(open_objects(&dynamic), options).unwrap();
    let space = store.open_keyspace("a").unwrap().unwrap();
    for i in 0..2000 {
        space.get(&key(2 * i + 1)).unwrap();
    }
    let has_read = AtomicBool::new(false);
    device.change(|gate| gate.slow_reads = Some(LONG_READ));
    std::thread::scope(|scope| {
        let closer = scope.spawn(|| {
            device.wait(|gate| gate.reading > 0 || has_read.load(SeqCst));
            assert!(device.look().reading > 0, "nothing was read");
            store.close().unwrap();
            let reading = device.look().reading;
            device.change(|gate| gate.slow_reads = None);
            assert_eq!(reading, 0, "a closed store is still read");
        });
        // The look-ups of this thread decide which units are loaded.
        store.adjust_filters();
        has_read.store(true, SeqCst);
        device.change(|_| ());
        closer.join().unwrap();
    });
}
