//! The pool against a slow twin of vectors, step by step.

use super::*;
use copal_testkit::Random;
use std::collections::HashMap;

const QUANTUM: u64 = 64 * 64;

/// An entry of the twin. Its distance from the end is the difference of the bytes that had entered before.
#[derive(Clone)]
struct TwinEntry {
    name: u64,
    bytes: u64,
    hits: u8,
    entered: u64,
}

/// The rules of the pool in the shortest words; see the module.
#[derive(Default)]
struct Twin {
    queues: [Vec<TwinEntry>; 2],
    entered: [u64; 2],
    /// By name: its queue, and the bytes that had left that queue.
    ghost: HashMap<u64, (usize, u64)>,
    left: [u64; 2],
    events: PoolEvents,
}

const SHORT: usize = 0;
const LONG: usize = 1;

impl Twin {
    fn bytes(&self, queue: usize) -> u64 {
        self.queues[queue].iter().map(|entry| entry.bytes).sum()
    }

    fn all(&self) -> u64 {
        self.bytes(SHORT) + self.bytes(LONG)
    }

    fn quantum_of(&self, queue: usize) -> u64 {
        let all = self.all();
        let least = if queue == SHORT { all / 10 } else { 0 };
        if all < QUANTUM { QUANTUM } else { QUANTUM * self.bytes(queue).max(least) / all }
    }

    fn get(&mut self, name: u64) -> bool {
        for queue in [SHORT, LONG] {
            let window = self.quantum_of(queue).max(1);
            let end = self.queues[queue].first().map_or(0, |entry| entry.entered);
            let Some(entry) = self.queues[queue].iter_mut().find(|entry| entry.name == name) else {
                continue;
            };
            if entry.hits == 0 && entry.entered - end < window {
                self.events.tail_hits += 1;
            }
            entry.hits = (entry.hits + 1).min(3);
            return true;
        }
        false
    }

    fn age(&self, name: u64) -> Option<(usize, u64)> {
        self.ghost.get(&name).map(|&(queue, left)| (queue, self.left[queue] - left))
    }

    fn missed(&mut self, name: u64) {
        if self.age(name).is_some_and(|(queue, age)| age <= self.quantum_of(queue)) {
            self.events.ghost_hits += 1;
        }
    }

    fn push(&mut self, queue: usize, name: u64, bytes: u64, hits: u8) {
        let entered = self.entered[queue];
        self.queues[queue].push(TwinEntry { name, bytes, hits, entered });
        self.entered[queue] += bytes;
    }

    fn insert(&mut self, name: u64, bytes: u64, is_hot: bool) {
        let came_back = self.age(name).is_some_and(|(_, age)| age <= self.all().max(QUANTUM));
        if came_back {
            self.ghost.remove(&name);
        }
        self.push(if came_back || is_hot { LONG } else { SHORT }, name, bytes, 0);
    }

    fn evict(&mut self) -> Option<u64> {
        loop {
            let is_short_due = self.bytes(SHORT) * 10 >= self.all() || self.queues[LONG].is_empty();
            let queue = if is_short_due && !self.queues[SHORT].is_empty() { SHORT } else { LONG };
            if self.queues[queue].is_empty() {
                return None;
            }
            let oldest = self.queues[queue].remove(0);
            match (queue, oldest.hits) {
                (SHORT, 1..) => self.push(LONG, oldest.name, oldest.bytes, 0),
                (LONG, 1..) => self.push(LONG, oldest.name, oldest.bytes, oldest.hits - 1),
                _ => {
                    self.ghost.insert(oldest.name, (queue, self.left[queue]));
                    self.left[queue] += oldest.bytes;
                    return Some(oldest.name);
                }
            }
        }
    }

    fn remove(&mut self, name: u64) -> bool {
        let before = self.queues[SHORT].len() + self.queues[LONG].len();
        self.queues.iter_mut().for_each(|queue| queue.retain(|entry| entry.name != name));
        before > self.queues[SHORT].len() + self.queues[LONG].len()
    }
}

fn hash(name: u64) -> u64 {
    name.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

#[test]
fn the_pool_does_what_its_slow_twin_does() {
    for seed in 0..8 {
        let mut random = Random::new(seed);
        let (mut pool, mut twin) = (CachePool::new(QUANTUM), Twin::default());
        // The least table of the ghost has 16 sets of four: it forgets none of these.
        let mut sets = [0; 16];
        let mut fits = |name: &u64| {
            let set = &mut sets[hash(*name) as usize % 16];
            *set += 1;
            *set <= 4
        };
        let names: Vec<u64> =
            (0..1_000).filter(|name| fits(name)).take([12, 40, 60][seed as usize % 3]).collect();
        let mut limit = 20 * QUANTUM / 4;
        for step in 0..20_000 {
            let name = names[random.index(names.len()).min(random.index(names.len()))];
            let is_it = |value: &u64| *value == name;
            let bytes = 64 * (1 + random.below(40));
            if random.one_in(500) {
                limit = QUANTUM * random.below(12);
            }
            if random.one_in(20) {
                assert_eq!(pool.remove(hash(name), is_it).is_some(), twin.remove(name), "step {step}");
            } else {
                let found = pool.get(hash(name), is_it).is_some();
                assert_eq!(found, twin.get(name), "step {step} of seed {seed}");
                if !found {
                    pool.missed(hash(name));
                    twin.missed(name);
                    let is_hot = random.one_in(10);
                    pool.insert(hash(name), name, bytes as u32, is_hot);
                    twin.insert(name, bytes, is_hot);
                }
            }
            while pool.entry_bytes() > limit {
                assert_eq!(pool.evict().map(|left| left.value), twin.evict(), "step {step} of seed {seed}");
            }
            assert_eq!(pool.entry_bytes(), twin.all());
            assert_eq!(pool.len() as usize, twin.queues.iter().map(Vec::len).sum::<usize>());
        }
        let events = pool.take_events();
        assert_eq!(events, twin.events, "seed {seed}");
        assert!(events.tail_hits > 100 && events.ghost_hits > 100, "{events:?}");
        assert_eq!(pool.take_events(), PoolEvents::default());
    }
}

#[test]
fn a_set_that_fits_is_inserted_once() {
    let mut pool = CachePool::new(QUANTUM);
    for round in 0..3 {
        for name in 0..1_000u64 {
            if pool.get(hash(name), |&value| value == name).is_none() {
                assert_eq!(round, 0);
                pool.insert(hash(name), name, 64, false);
            }
        }
    }
    assert_eq!((pool.len(), pool.entry_bytes()), (1_000, 64_000));
}

#[test]
fn a_long_walk_does_not_displace_what_is_asked_for_again() {
    let mut pool = CachePool::new(QUANTUM);
    let limit = 1_000 * 64;
    let mut missed = 0;
    for name in 0..100_000u64 {
        // 500 names again and again, beside a walk that asks for each name once.
        for name in [name % 500, 1_000_000 + name] {
            if pool.get(hash(name), |&value| value == name).is_some() {
                continue;
            }
            missed += u64::from(name < 1_000_000);
            while pool.entry_bytes() + 64 > limit {
                pool.evict().unwrap();
            }
            pool.insert(hash(name), name, 64, false);
        }
    }
    assert!(missed <= 1_000, "{missed} misses of names that are asked for again");
}

#[test]
fn a_hit_that_another_pool_would_answer_is_no_loss() {
    let mut pool = CachePool::new(QUANTUM);
    for name in 0..10u64 {
        pool.insert(hash(name), name, 64, false);
    }
    assert!(pool.get_unless(hash(1), |&value| value == 1, |_| true).is_some());
    assert_eq!(pool.take_events().tail_hits, 0);
    // It counts as a hit for the order of leaving all the same.
    assert_eq!((pool.evict().unwrap().value, pool.evict().unwrap().value), (0, 2));
    assert!(pool.get_unless(hash(3), |&value| value == 3, |_| false).is_some());
    assert_eq!(pool.take_events().tail_hits, 1);
}

#[test]
fn names_are_told_apart_by_the_caller() {
    let mut pool = CachePool::new(QUANTUM);
    pool.insert(7, "one", 64, false);
    pool.insert(7, "other", 64, false);
    assert_eq!(pool.get(7, |value| *value == "other"), Some(&"other"));
    assert_eq!(pool.remove(7, |value| *value == "one").map(|left| left.value), Some("one"));
    assert_eq!(pool.peek(7, |value| *value == "one"), None);
    assert_eq!(pool.peek(7, |value| *value == "other"), Some(&"other"));
}

#[test]
fn the_ghost_grows_with_the_window_and_keeps_what_is_young() {
    let mut pool = CachePool::<u64>::new(64 * 100_000);
    let least = pool.bytes();
    for name in 0..50_000u64 {
        pool.refuse(hash(name), 64);
    }
    let known = (0..50_000).filter(|&name| pool.ghost.age(hash(name)).is_some()).count();
    assert!(known > 40_000, "{known} of 50000 names");
    assert!(pool.bytes() > least && pool.bytes() <= 16 * 100_000, "{} bytes", pool.bytes());
    for name in 49_000..50_000 {
        let age = pool.ghost.age(hash(name)).map(|(_, age)| age);
        if let Some(age) = age {
            assert_eq!(age, (50_000 - name) * 64);
        }
    }
}
