//! One budget over several stores, and memory that cannot be evicted and fills it.

use crate::support::*;
use bytes::Bytes;
use copal_kv::{Durability, Error, Iter, Keyspace, KeyspaceOptions, MemoryBudget, Options, Store};
use copal_object::ObjectId;
use std::ops::Bound;

const TOTAL: u64 = 4 * MIB;

fn load(space: &Keyspace, keys: std::ops::Range<u64>) -> Result<(), Error> {
    for number in keys {
        space.put(&number.to_be_bytes(), &value(number, 1000), Durability::Deferred)?;
    }
    Ok(())
}

#[test]
fn stores_that_share_a_budget_stay_inside_it_together_and_give_it_back() {
    let budget = MemoryBudget::new(TOTAL);
    let first = Fixture::within(128 * MIB, small(), &budget);
    let second = Fixture::within(128 * MIB, small(), &budget);
    let spaces = [&first, &second].map(|fixture| fixture.space("a", KeyspaceOptions::default()));
    let mut random = Random::new(3);
    for round in 0..60u64 {
        for (tag, space) in spaces.iter().enumerate() {
            load(space, round * 100..round * 100 + 100).unwrap();
            for _ in 0..100 {
                // The same keys in both stores: neither may answer for the other.
                let number = random.below(round * 100 + 100);
                let mark = format!("{tag}-{number}");
                if random.below(4) == 0 {
                    space.put(&number.to_be_bytes(), mark.as_bytes(), PROCESS).unwrap();
                }
                let found = space.get(&number.to_be_bytes()).unwrap().unwrap();
                assert!(found == value(number, 1000) || found == mark.as_bytes(), "{number} in {tag}");
            }
        }
        let used = budget.bytes().total();
        assert!(used <= TOTAL, "{used} bytes: {:?}", budget.bytes());
        assert!(first.store.stats().memory_bytes <= TOTAL);
    }
    let both = budget.bytes();
    assert!(both.rows > 0 && both.filters > 0 && both.tables > 0, "{both:?}");
    assert!(first.store.stats().flushes > 3 && second.store.stats().flushes > 3);
    let [one, other] = spaces;
    drop((one, first));
    let left = budget.bytes();
    assert!(left.tables < both.tables && left.memtables < both.memtables, "{left:?}");
    assert!(other.get(&5u64.to_be_bytes()).unwrap().is_some());
    drop((other, second));
    let none = budget.bytes();
    assert_eq!((none.tables, none.filters, none.memtables), (0, 0, 0), "{none:?}");
    assert_eq!((none.versions, none.manifest, none.range_tombstones), (0, 0, 0), "{none:?}");
}

#[test]
fn writes_are_refused_while_old_iterators_fill_the_budget_with_memtables() {
    let fixture = Fixture::within(128 * MIB, small(), &MemoryBudget::new(TOTAL));
    let space = fixture.space("a", KeyspaceOptions::default());
    load(&space, 0..100).unwrap();
    let mut held: Vec<Iter> = Vec::new();
    let mut refused = None;
    for round in 1..200 {
        if let Err(error) = load(&space, round * 100..round * 100 + 100) {
            refused = Some(error);
            break;
        }
        let mut iter = space.iter(all());
        iter.next().unwrap().unwrap();
        held.push(iter);
        let used = fixture.store.stats().memory_bytes;
        assert!(used <= TOTAL, "{used} bytes with {} iterators", held.len());
    }
    assert!(matches!(refused, Some(Error::OverBudget { total_bytes: TOTAL, .. })), "{refused:?}");
    // Everything else works: reads, and the open iterators.
    assert_eq!(space.get(&7u64.to_be_bytes()).unwrap().unwrap(), value(7, 1000));
    assert!(held[0].by_ref().all(|item| item.is_ok()));
    drop(held);
    load(&space, 100_000..100_600).unwrap();
    assert_sound(&fixture.store, true);
}

/// A key of 60 KB; `shared`: the keys differ only after their first 59 KB.
fn long_key(number: u64, shared: bool) -> Vec<u8> {
    let mut key = value(if shared { 1 } else { number }, 60_000);
    let at = if shared { 59_000 } else { 0 };
    key[at..at + 8].copy_from_slice(&copal_testkit::scattered(number).to_be_bytes());
    key
}

/// Symptom: a few hundred keys of 60 KB blocked a store of 8 MiB for good: put, delete, flush, compaction and
/// the next opening answered `OverBudget`.
/// Cause: tables and manifest held the complete first and last key of each table, as long as the table
/// existed. A rewrite of the manifest counted five copies of all of them.
/// Fix: bounds of tables are shortened wherever a short key works as well, and a rewrite encodes record by
/// record.
#[test]
fn long_keys_take_no_more_memory_than_short_ones() {
    let options = Options { memory_bytes: 2 * TOTAL, ..Options::default() };
    let fixture = Fixture::new(256 * MIB, options.clone());
    let space = fixture.space("a", KeyspaceOptions::default());
    for number in 0..800 {
        space.put(&long_key(number, false), b"value", PROCESS).unwrap();
    }
    fixture.store.flush().unwrap();
    let memory = fixture.store.stats().memory;
    let kept = memory.tables + memory.range_tombstones + memory.manifest + memory.versions;
    assert!(kept < 128 << 10, "{kept} bytes: {:?}", fixture.store.stats().memory);
    space.compact_range(all()).unwrap();
    drop(space);
    let fixture = fixture.reopen(options, true);
    let space = fixture.space("a", KeyspaceOptions::default());
    for number in 0..800 {
        let found = space.get(&long_key(number, false)).unwrap();
        assert_eq!(found.as_deref(), Some(&b"value"[..]), "{number}");
    }
    assert_eq!(space.iter(all()).filter(Result::is_ok).count(), 800);
    assert_sound(&fixture.store, true);
}

/// Symptom, cause: as above, if no short key separates one table from the next.
/// Fix: resident memory of tables stops only puts, until merges have reduced it; deletes, flushes, merges and
/// openings work.
#[test]
fn resident_memory_of_tables_stops_puts_and_nothing_else() {
    let options = Options { memory_bytes: TOTAL, table_bytes: 128 << 10, ..Options::default() };
    let fixture = Fixture::new(256 * MIB, options.clone());
    let space = fixture.space("a", KeyspaceOptions::default());
    let put = |space: &Keyspace, number| space.put(&long_key(number, true), &value(number, 100), PROCESS);
    let mut written = 0;
    let refused = loop {
        match put(&space, written) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(written < 5000, "never refused: {:?}", fixture.store.stats().memory);
    };
    assert!(matches!(refused, Error::OverBudget { .. }), "{refused:?}");
    fixture.store.flush().unwrap();
    // The state survives openings, with the memory that cannot be reduced.
    drop(space);
    let fixture = fixture.reopen(options.clone(), false);
    let space = fixture.space("a", KeyspaceOptions::default());
    assert_eq!(space.iter(all()).filter(Result::is_ok).count() as u64, written);
    space.compact_range(all()).unwrap();
    drop(space);
    let fixture = fixture.reopen(options, true);
    let space = fixture.space("a", KeyspaceOptions::default());
    for number in 0..written {
        let found = space.get(&long_key(number, true)).unwrap();
        assert_eq!(found.unwrap(), value(number, 100), "{number}");
    }
    for number in 0..written {
        space.delete(&long_key(number, true), DEVICE).unwrap();
    }
    space.compact_range(all()).unwrap();
    assert_eq!(space.iter(all()).count(), 0);
    for number in 0..50 {
        put(&space, number).unwrap();
    }
    assert_sound(&fixture.store, true);
}

/// Symptom: after 20,000 range deletes writes failed with `OverBudget`, and some thousand overlapping ones
/// took minutes and gigabytes.
/// Cause: tables keep their range deletes in memory until a merge to the bottom drops them, and nothing
/// started such a merge. Each part of the key space listed every delete over it.
/// Fix: a writer without memory waits for that merge, and of overlapping deletes only the newest is kept.
#[test]
fn range_deletes_slow_writers_and_fail_none() {
    let options = Options { memory_bytes: TOTAL, ..Options::default() };
    let fixture = Fixture::new(128 * MIB, options.clone());
    let space = fixture.space("a", KeyspaceOptions::default());
    let key = |number: u64| [&number.to_be_bytes()[..], &[7; 60]].concat();
    for number in 0..20_000 {
        space.put(&key(number), &number.to_be_bytes(), Durability::Deferred).unwrap();
    }
    space.compact_range(all()).unwrap();
    // First disjoint, then nested.
    for number in 0..20_000 {
        let (from, to) =
            if number < 10_000 { (2 * number, 2 * number + 1) } else { (number - 10_000, 40_000 - number) };
        let mut batch = fixture.store.batch();
        batch.delete_range(&space, &key(from), &key(to));
        batch.commit(Durability::Deferred).unwrap();
        if number % 512 == 0 {
            let used = fixture.store.stats().memory_bytes;
            assert!(used <= TOTAL, "{used} bytes: {:?}", fixture.store.stats().memory);
            let left = space.get(&key(15_001)).unwrap();
            assert_eq!(left.is_some(), number <= 10_000, "{number}");
        }
    }
    drop(space);
    let fixture = fixture.reopen(options, true);
    let space = fixture.space("a", KeyspaceOptions::default());
    // The outermost range went from 0 to 30,000: after the last of the keys.
    assert!(space.get(&key(19_999)).unwrap().is_none());
    space.put(&key(5), b"again", DEVICE).unwrap();
    assert_eq!(space.iter(all()).filter(Result::is_ok).count(), 1);
    space.compact_range(all()).unwrap();
    assert_sound(&fixture.store, true);
}

/// Symptom: some hundred open iterators took more than the whole budget, without an error.
/// Cause: blocks and cursors of iterators were charged even if they did not fit.
/// Fix: an iterator that does not fit beside the open ones answers `OverBudget`.
#[test]
fn iterators_that_have_no_room_are_refused() {
    let options = Options { memory_bytes: TOTAL, ..Options::default() };
    let fixture = Fixture::new(128 * MIB, options);
    let space = fixture.space("a", KeyspaceOptions::default());
    load(&space, 0..20_000).unwrap();
    space.compact_range(all()).unwrap();
    let mut held: Vec<Iter> = Vec::new();
    let refused = loop {
        let from = (held.len() as u64 * 37).to_be_bytes();
        let mut iter = space.iter((Bound::Included(&from[..]), Bound::Unbounded));
        match iter.next() {
            Some(Ok((key, _))) => assert_eq!(key, from[..]),
            Some(Err(error)) => break error,
            None => panic!("the iterator from {from:?} is empty"),
        }
        held.push(iter);
        assert!(held.len() < 500, "none was refused: {:?}", fixture.store.stats().memory);
    };
    assert!(matches!(refused, Error::OverBudget { .. }), "{refused:?}");
    // Open iterators still work, and so does everything else.
    assert!(held.len() > 20, "{} iterators had room", held.len());
    assert!(held.iter_mut().all(|iter| iter.next().unwrap().is_ok()));
    assert_eq!(space.get(&7u64.to_be_bytes()).unwrap().unwrap(), value(7, 1000));
    let scans = fixture.store.stats().memory.scans;
    assert!(scans <= TOTAL / 16 * 7, "{scans} bytes of iterators");
    held.truncate(held.len() / 2);
    assert_eq!(space.iter(all()).filter(Result::is_ok).count(), 20_000);
}

/// A batch of `rows` rows of `len` bytes each, whose keys begin with `tag`.
fn commit_rows(
    store: &Store,
    space: &Keyspace,
    tag: u8,
    (rows, len): (u32, usize),
    durability: Durability,
) -> Result<(), Error> {
    let mut batch = store.batch();
    for row in 0..rows {
        let value = Bytes::from(value(u64::from(row), len));
        batch.put(space, &[&[tag][..], &row.to_be_bytes()].concat(), value);
    }
    batch.commit(durability)
}

fn count(space: &Keyspace, tag: u8) -> usize {
    space.prefix(&[tag]).map(|row| row.map(drop)).filter(Result::is_ok).count()
}

/// Operations that a store must still serve after any batch.
fn assert_goes_on(fixture: &Fixture, space: &Keyspace, what: &str) {
    let go_on = || -> Result<(), Error> {
        space.put(b"one", b"more", PROCESS)?;
        commit_rows(&fixture.store, space, b'm', (300, 1000), Durability::Deferred)?;
        space.delete(&[b'm', 0, 0, 0, 7], DEVICE)?;
        let mut batch = fixture.store.batch();
        batch.delete_range(space, &[b'm', 0, 0, 0, 9], &[b'm', 0, 0, 0, 200]);
        batch.commit(PROCESS)?;
        fixture.store.flush()?;
        assert_eq!(count(space, b'm'), 300 - 1 - 191, "{what}");
        space.compact_range(all())
    };
    go_on().unwrap_or_else(|error| panic!("{what}: {error}"));
}

/// Symptom: after one batch of 20 MB a store with 8 MiB of memory answered `OverBudget` to every put and
/// delete, to flush and compaction, until it was reopened.
/// Cause: a memtable was frozen only if one more had room beside it. Beside this one there was none, and only
/// its flush would have made some.
/// Fix: a full memtable is frozen in any case, a writer to the next one waits for room, and a batch that does
/// not fit an empty store is refused.
#[test]
fn a_large_batch_is_refused_at_once_or_leaves_a_store_that_goes_on() {
    for total in [4 * MIB, 8 * MIB, 24 * MIB] {
        let options = Options { memory_bytes: total, ..Options::default() };
        let (mut taken, mut refused) = (0, 0);
        for sixteenths in [1, 2, 4, 5, 6, 8, 12, 20, 40] {
            let bytes = (total / 16 * sixteenths) as usize;
            // Many small rows, and few rows of the longest value that a batch may have.
            for len in [20, 1000, (1 << 20) - 1] {
                let rows = bytes.div_ceil(len + 140) as u32;
                let what = format!("{rows} rows of {len} bytes in {total}");
                let fixture = Fixture::new(256 * MIB, options.clone());
                let space = fixture.space("a", KeyspaceOptions::default());
                // After it there may be little room already.
                load(&space, 0..total / 9 / 1100).unwrap();
                match commit_rows(&fixture.store, &space, b'b', (rows, len), PROCESS) {
                    Ok(()) => taken += 1,
                    Err(Error::BatchTooLarge { .. }) => refused += 1,
                    Err(error) => panic!("{what}: {error}"),
                }
                let found = count(&space, b'b');
                assert!(found == 0 || found == rows as usize, "{what}: {found} rows");
                assert_goes_on(&fixture, &space, &what);
                drop(space);
                let fixture = fixture.reopen(options.clone(), sixteenths % 2 == 0);
                let space = fixture.space("a", KeyspaceOptions::default());
                assert_eq!(count(&space, b'b'), found, "{what}");
                assert_goes_on(&fixture, &space, &what);
            }
        }
        assert!(taken >= 10 && refused >= 10, "{taken} taken, {refused} refused");
    }
}

/// Symptom, cause, fix: as above, with several writers at once, whose batches together exceed the room.
#[test]
fn large_batches_of_many_writers_wait_for_each_other() {
    let options = Options { memory_bytes: 8 * MIB, ..Options::default() };
    let fixture = Fixture::new(256 * MIB, options.clone());
    let space = fixture.space("a", KeyspaceOptions::default());
    std::thread::scope(|scope| {
        for tag in 0..6u8 {
            let (space, store) = (&space, &fixture.store);
            scope.spawn(move || {
                for round in 0..4 {
                    let durability = [PROCESS, DEVICE, Durability::Deferred][usize::from(tag) % 3];
                    let committed = commit_rows(store, space, tag, (1500 + 100 * round, 1000), durability);
                    committed.unwrap_or_else(|error| panic!("round {round} of {tag}: {error}"));
                    let deleted = space.delete(&[tag, 0, 0, 0, 1], durability);
                    deleted.unwrap_or_else(|error| panic!("delete {round} of {tag}: {error}"));
                }
            });
        }
    });
    assert_goes_on(&fixture, &space, "behind all of them");
    drop(space);
    let fixture = fixture.reopen(options, false);
    let space = fixture.space("a", KeyspaceOptions::default());
    for tag in 0..6 {
        assert_eq!(count(&space, tag), 1799, "{tag}");
    }
    assert_sound(&fixture.store, true);
}

/// Symptom: if tables keep more in memory than the budget has room for, everything was merged before every
/// memtable of deletes, while writers, syncs and closes waited.
/// Cause: a writer without room requested that merge, although deletes need no room, and requested it again
/// however little had changed since it had not helped.
/// Fix: deletes wait for it only where it surely makes room, that is, after range deletes. Puts wait again
/// only when an eighth of the store is new.
#[test]
fn deletes_beside_too_much_in_memory_do_not_merge_everything_each_time() {
    let options = Options { memory_bytes: TOTAL, table_bytes: 128 << 10, ..Options::default() };
    let fixture = Fixture::new(1024 * MIB, options);
    let space = fixture.space("a", KeyspaceOptions::default());
    let put = |number| space.put(&long_key(number, true), &value(number, 100), PROCESS);
    assert!((0..5000).any(|number| put(number).is_err()), "never refused");
    let before = fixture.store.stats();
    // Absent keys between the present ones.
    for number in 0..200 {
        space.delete(&long_key(10_000 + number, true), Durability::Deferred).unwrap();
    }
    let after = fixture.store.stats();
    let flushes = after.flushes - before.flushes;
    assert!(flushes >= 10, "{flushes} flushes");
    let rewritten = after.write_bytes - before.write_bytes;
    let stored: u64 = before.levels.iter().map(|level| level.bytes).sum();
    assert!(
        rewritten < 5 * (stored + 200 * 60_000),
        "{rewritten} bytes written, {stored} stored, {flushes} flushes"
    );
    fixture.store.close().unwrap();
}

/// Symptom: a delete, and everything after it, was refused for lack of space in a store of 256 MiB that held
/// 14 MB of tables.
/// Cause: the manifest was 234 MB long. It was rewritten only if the budget had memory for all of it, twice,
/// and bounds of tables with long keys left none.
/// Fix: it is rewritten piece by piece, in memory that does not grow with it. A store that fills up rewrites
/// it while there is still space.
#[test]
fn deletes_go_on_where_the_manifest_leaves_no_memory_and_the_store_is_small() {
    for size in [64 * MIB, 256 * MIB] {
        let options = Options { memory_bytes: TOTAL, table_bytes: 128 << 10, ..Options::default() };
        let fixture = Fixture::new(size, options);
        let space = fixture.space("a", KeyspaceOptions::default());
        let put = |number| space.put(&long_key(number, true), &value(number, 100), PROCESS);
        assert!((0..5000).any(|number| put(number).is_err()), "never refused");
        for number in 0..600 {
            let key = long_key(10_000 + number, true);
            let deleted = space.delete(&key, Durability::Deferred);
            deleted.unwrap_or_else(|error| panic!("delete {number}: {error}: {:?}", fixture.objects.space()));
        }
        let manifest = fixture.objects.stat(ObjectId(1)).unwrap();
        assert!(manifest.len < 32 * MIB, "{} bytes in {size}", manifest.len);
        assert_sound(&fixture.store, false);
        fixture.store.close().unwrap();
    }
}
