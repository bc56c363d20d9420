//! Threads that own their keys read their own writes, during flushes, merges and writes of other threads.

use crate::support::*;
use copal_kv::{Durability, Keyspace, Store};
use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::atomic::{AtomicBool, Ordering},
};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const THREADS: u8 = 4;
const KEYS: u64 = 2000;

/// One thread's keys begin with its number.
struct Owner<'a> {
    thread: u8,
    store: &'a Store,
    space: &'a Keyspace,
    model: &'a mut Map,
    random: Random,
}

impl Owner<'_> {
    fn key(&self, i: u64) -> Vec<u8> {
        [&[self.thread][..], format!("{i:05}").as_bytes()].concat()
    }

    fn step(&mut self, round: u64) {
        let i = self.random.below(KEYS);
        let key = self.key(i);
        match self.random.below(100) {
            0..45 => {
                let len = match self.random.below(100) {
                    0 => 3000 + self.random.below(9000),
                    1..5 => 600 + self.random.below(2000),
                    _ => self.random.below(300),
                };
                let value = value(round << 32 | i, len as usize);
                let durability = [PROCESS, Durability::Deferred][self.random.below(2) as usize];
                self.space.put(&key, &value, durability).unwrap();
                self.model.insert(key, value);
            }
            45..55 => {
                self.space.delete(&key, PROCESS).unwrap();
                self.model.remove(&key);
            }
            55 => {
                let last = i + self.random.below(40);
                let end = self.key(last);
                let mut batch = self.store.batch();
                batch.delete_range(self.space, &key, &end);
                batch.commit(PROCESS).unwrap();
                self.model.retain(|k, _| *k < key || *k >= end);
            }
            56..85 => {
                let found = self.space.get(&key).unwrap();
                assert_eq!(found.as_deref(), self.model.get(&key).map(Vec::as_slice));
            }
            85..95 => {
                let last = i + self.random.below(60);
                let end = self.key(last);
                let range = (Bound::Included(&key[..]), Bound::Excluded(&end[..]));
                let items = self.space.iter(range).map(|item| item.unwrap());
                let expected = self.model.range(key.clone()..end.clone());
                if self.random.below(2) == 0 {
                    assert!(items.eq(expected.map(|(k, v)| (k.clone().into(), v.clone().into()))));
                } else {
                    let expected = expected.map(|(k, v)| (k.clone().into(), v.clone().into()));
                    assert!(items.rev().eq(expected.rev()));
                }
            }
            _ => {
                let snapshot = self.store.snapshot();
                self.space.put(&key, b"later", PROCESS).unwrap();
                let before = self.model.insert(key.clone(), b"later".to_vec());
                let seen = snapshot.get(self.space, &key).unwrap();
                assert_eq!(seen.as_deref(), before.as_deref());
            }
        }
    }
}

fn round(store: &Store, space: &Keyspace, models: &mut [Map], round: u64) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let owners: Vec<_> = (0..THREADS)
            .zip(models)
            .map(|(thread, model)| {
                let random = Random::new(round * 100 + u64::from(thread));
                let mut owner = Owner { thread, store, space, model, random };
                scope.spawn(move || (0..3000).for_each(|_| owner.step(round)))
            })
            .collect();
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                store.flush().unwrap();
                space.compact_range(all()).unwrap();
            }
        });
        let results: Vec<_> = owners.into_iter().map(|owner| owner.join()).collect();
        done.store(true, Ordering::Relaxed);
        for result in results {
            result.unwrap();
        }
    });
}

#[test]
fn threads_read_their_own_writes_through_flushes_merges_and_reopening() {
    let options = small();
    let mut models = vec![Map::new(); usize::from(THREADS)];
    let mut fixture = Fixture::new(256 * MIB, options.clone());
    for i in 0..4 {
        let space = fixture.space("owned", grouped());
        round(&fixture.store, &space, &mut models, i);
        let expected: Vec<_> = models.iter().flatten().map(|(k, v)| (k.clone(), v.clone())).collect();
        assert!(pairs(&space) == expected, "after round {i}");
        assert_sound(&fixture.store, true);
        assert!(fixture.store.stats().merges > 0);
        drop(space);
        // Deferred writes are in the log once the store is closed.
        fixture = fixture.reopen(options.clone(), true);
    }
}
