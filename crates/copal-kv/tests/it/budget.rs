//! One budget over several stores, and what happens when something that cannot give way fills it.

use crate::support::*;
use copal_kv::{Durability, Error, Iter, Keyspace, KeyspaceOptions, MemoryBudget, Options};
use std::ops::Bound;

const TOTAL: u64 = 4 * MIB;

fn sharing(budget: &MemoryBudget) -> Options {
    Options {
        budget: Some(budget.clone()),
        ..small()
    }
}

fn load(space: &Keyspace, keys: std::ops::Range<u64>) -> Result<(), Error> {
    for number in keys {
        space.put(&number.to_be_bytes(), &value(number, 1000), Durability::Deferred)?;
    }
    Ok(())
}

#[test]
fn stores_that_share_a_budget_stay_inside_it_together_and_give_it_back() {
    let budget = MemoryBudget::new(TOTAL);
    let first = Fixture::new(128 * MIB, sharing(&budget));
    let second = Fixture::new(128 * MIB, sharing(&budget));
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
                    space
                        .put(&number.to_be_bytes(), mark.as_bytes(), PROCESS)
                        .unwrap();
                }
                let found = space.get(&number.to_be_bytes()).unwrap().unwrap();
                assert!(
                    found == value(number, 1000) || found == mark.as_bytes(),
                    "{number} in {tag}"
                );
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
    assert!(
        left.tables < both.tables && left.memtables < both.memtables,
        "{left:?}"
    );
    assert!(other.get(&5u64.to_be_bytes()).unwrap().is_some());
    drop((other, second));
    let none = budget.bytes();
    assert_eq!((none.tables, none.filters, none.memtables), (0, 0, 0), "{none:?}");
    assert_eq!(
        (none.versions, none.manifest, none.range_tombstones),
        (0, 0, 0),
        "{none:?}"
    );
}

#[test]
fn writes_are_refused_while_old_iterators_fill_the_budget_with_memtables() {
    let fixture = Fixture::new(128 * MIB, sharing(&MemoryBudget::new(TOTAL)));
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
    assert!(
        matches!(
            refused,
            Some(Error::OverBudget {
                total_bytes: TOTAL,
                ..
            })
        ),
        "{refused:?}"
    );
    // Nothing else is harmed: reads go on, and so do the iterators.
    assert_eq!(space.get(&7u64.to_be_bytes()).unwrap().unwrap(), value(7, 1000));
    assert!(held[0].by_ref().all(|item| item.is_ok()));
    drop(held);
    load(&space, 100_000..100_600).unwrap();
    assert_sound(&fixture.store, true);
}

/// A key of 60 KB; `shared`: the keys differ only behind their first 59 KB.
fn long_key(number: u64, shared: bool) -> Vec<u8> {
    let mut key = value(if shared { 1 } else { number }, 60_000);
    let at = if shared { 59_000 } else { 0 };
    key[at..at + 8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
    key
}

/// Symptom: a few hundred keys of 60 KB wedged a store of 8 MiB for good: put, delete, flush, compaction and the next
/// opening answered `OverBudget`.
/// Cause: tables and manifest held the first and the last key of each table whole, for as long as it was there, and a
/// rewrite of the manifest counted five copies of all of them.
/// Fix: what bounds a table is cut short wherever a short key bounds as well, and a rewrite encodes record by record.
#[test]
fn long_keys_take_no_more_memory_than_short_ones() {
    let options = Options {
        memory_bytes: 2 * TOTAL,
        ..Options::default()
    };
    let fixture = Fixture::new(256 * MIB, options.clone());
    let space = fixture.space("a", KeyspaceOptions::default());
    for number in 0..800 {
        space.put(&long_key(number, false), b"value", PROCESS).unwrap();
    }
    fixture.store.flush().unwrap();
    let kept = fixture.store.stats().memory;
    let kept = kept.tables + kept.range_tombstones + kept.manifest + kept.versions;
    assert!(
        kept < 128 << 10,
        "{kept} bytes: {:?}",
        fixture.store.stats().memory
    );
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

/// Symptom, cause: as above, where no short key tells one table from the next.
/// Fix: what tables keep in memory stops puts, which may go on once merges made it less; deletes, flushes, merges and
/// openings go on beside it.
#[test]
fn what_tables_keep_in_memory_stops_puts_and_nothing_else() {
    let options = Options {
        memory_bytes: TOTAL,
        table_bytes: 128 << 10,
        ..Options::default()
    };
    let fixture = Fixture::new(256 * MIB, options.clone());
    let space = fixture.space("a", KeyspaceOptions::default());
    let put = |space: &Keyspace, number| space.put(&long_key(number, true), &value(number, 100), PROCESS);
    let mut written = 0;
    let refused = loop {
        match put(&space, written) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        assert!(
            written < 5000,
            "never refused: {:?}",
            fixture.store.stats().memory
        );
    };
    assert!(matches!(refused, Error::OverBudget { .. }), "{refused:?}");
    fixture.store.flush().unwrap();
    // It stays like this over openings, with what cannot be less.
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

/// Symptom: 20,000 range deletes failed writes with `OverBudget`, and some thousand that overlap took minutes and gigabytes.
/// Cause: tables keep their range deletes in memory until a merge to the bottom drops them, and none came for that; each
/// part of the key space listed every delete over it.
/// Fix: a writer that finds no room waits for that merge, and of what overlaps the newest is kept.
#[test]
fn range_deletes_slow_writers_and_fail_none() {
    let options = Options {
        memory_bytes: TOTAL,
        ..Options::default()
    };
    let fixture = Fixture::new(128 * MIB, options.clone());
    let space = fixture.space("a", KeyspaceOptions::default());
    let key = |number: u64| [&number.to_be_bytes()[..], &[7; 60]].concat();
    for number in 0..20_000 {
        space
            .put(&key(number), &number.to_be_bytes(), Durability::Deferred)
            .unwrap();
    }
    space.compact_range(all()).unwrap();
    // Apart from each other, then one inside the other.
    for number in 0..20_000 {
        let (from, to) = if number < 10_000 {
            (2 * number, 2 * number + 1)
        } else {
            (number - 10_000, 40_000 - number)
        };
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
    // The outermost range went from 0 to 30,000: behind the last of the keys.
    assert!(space.get(&key(19_999)).unwrap().is_none());
    space.put(&key(5), b"again", DEVICE).unwrap();
    assert_eq!(space.iter(all()).filter(Result::is_ok).count(), 1);
    space.compact_range(all()).unwrap();
    assert_sound(&fixture.store, true);
}

/// Symptom: some hundred open iterators took more than the whole budget, and nobody was told.
/// Cause: blocks and cursors of iterators were charged whether there was room for them or not.
/// Fix: an iterator that has no room beside those that are open answers `OverBudget`.
#[test]
fn iterators_that_have_no_room_are_refused() {
    let options = Options {
        memory_bytes: TOTAL,
        ..Options::default()
    };
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
        assert!(
            held.len() < 500,
            "none was refused: {:?}",
            fixture.store.stats().memory
        );
    };
    assert!(matches!(refused, Error::OverBudget { .. }), "{refused:?}");
    // Those that are open go on, and so does everything else.
    assert!(held.len() > 20, "{} iterators had room", held.len());
    assert!(held.iter_mut().all(|iter| iter.next().unwrap().is_ok()));
    assert_eq!(space.get(&7u64.to_be_bytes()).unwrap().unwrap(), value(7, 1000));
    let scans = fixture.store.stats().memory.scans;
    assert!(scans <= TOTAL / 16 * 7, "{scans} bytes of iterators");
    held.truncate(held.len() / 2);
    assert_eq!(space.iter(all()).filter(Result::is_ok).count(), 20_000);
}
