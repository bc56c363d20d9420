//! One budget over several stores, and what happens when something that cannot give way fills it.

use crate::support::*;
use copal_kv::{Durability, Error, Iter, Keyspace, KeyspaceOptions, MemoryBudget, Options};

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
