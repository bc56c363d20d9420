//! The engine against `BTreeMap`: random histories with flush, merge, snapshots, reopening and kills.

use crate::support::*;
use bytes::Bytes;
use copal_kv::{
    CacheMode, Durability, FilterKind, FilterMemory, FilterOptions, FilterRule, Keyspace, KeyspaceOptions,
    Options, Snapshot,
};
use std::{collections::BTreeMap, ops::Bound};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

const SPACES: [&str; 2] = ["grouped", "plain"];
const HEADS: [u16; 2] = [64, 0];

struct Run {
    fixture: Fixture,
    random: Random,
    model: [Map; 2],
    snapshots: Vec<(Snapshot, [Map; 2])>,
    tag: u64,
    options: Options,
    /// Only the tree's shape starts merges, so that tiers fill.
    shape_only: bool,
    /// Metamorphic: the cache policy must not change an answer.
    cache: [CacheMode; 2],
}

fn options_of(space: usize, cache: CacheMode) -> KeyspaceOptions {
    let options = if space == 0 {
        KeyspaceOptions { value_head_bytes: HEADS[0], ..grouped() }
    } else {
        KeyspaceOptions { compress: true, ..KeyspaceOptions::default() }
    };
    KeyspaceOptions { cache, ..options }
}

/// Any rule with any kind of unit and any memory: none may change an answer.
fn any_filters(random: &mut Random) -> FilterOptions {
    let kinds = [FilterKind::Ribbon, FilterKind::Bloom];
    let units = random.below(7) as u8;
    let rules = [FilterRule::Fixed { units }, FilterRule::Monkey, FilterRule::Paper, FilterRule::Classes];
    FilterOptions {
        kind: kinds[random.below(2) as usize],
        rule: rules[random.below(4) as usize],
        memory: match random.below(3) {
            0 => FilterMemory::Bytes(random.below(4096)),
            1 => FilterMemory::BitsPerKey(random.below(9) as f64),
            _ => FilterMemory::Bytes(u64::MAX),
        },
        background: random.below(2) == 0,
    }
}

impl Run {
    fn new(seed: u64) -> Run {
        let mut random = Random::new(seed);
        // Metamorphic: neither table size nor filters may change an answer.
        let options = Options {
            table_bytes: [8 << 10, 64 << 10, 1 << 20][random.below(3) as usize],
            filters: any_filters(&mut random),
            bottom_share: [0, 10][random.below(2) as usize],
            // Memory for several threads to merge.
            memory_bytes: [4, 64][random.below(2) as usize] * MIB,
            merge_threads: 1 + random.below(4) as u32,
            ..small()
        };
        let fixture = Fixture::new(96 * MIB, options.clone());
        let shape_only = random.below(2) == 0;
        let cache = [0, 1].map(|_| {
            let modes = [CacheMode::Rows, CacheMode::Rows, CacheMode::Blocks, CacheMode::Nothing];
            modes[random.below(4) as usize]
        });
        let run = Run {
            fixture,
            cache,
            random,
            model: Default::default(),
            snapshots: Vec::new(),
            tag: seed << 32,
            options,
            shape_only,
        };
        for space in 0..2 {
            run.space(space);
        }
        run
    }

    fn space(&self, space: usize) -> Keyspace {
        self.fixture.space(SPACES[space], options_of(space, self.cache[space]))
    }

    /// Few keys, so that they are used repeatedly: a first byte for the group, then a little more.
    fn key(&mut self) -> Vec<u8> {
        let group = b"abc"[self.random.below(3) as usize];
        let mut key = vec![group];
        let len = self.random.below(3) as usize;
        key.extend((0..len).map(|_| b'0' + self.random.below(10) as u8));
        key
    }

    fn value(&mut self) -> Vec<u8> {
        self.tag += 1;
        let len = match self.random.below(10) {
            0..5 => self.random.below(100),
            5..7 => 600 + self.random.below(2400),
            7..9 => 3000 + self.random.below(10_000),
            _ => 60_000 + self.random.below(100_000),
        };
        value(self.tag, len as usize)
    }

    fn durability(&mut self) -> Durability {
        [Durability::Device, Durability::Process, Durability::Deferred][self.random.below(3) as usize]
    }

    fn step(&mut self) {
        let space = self.random.below(2) as usize;
        let keyspace = self.space(space);
        let durability = self.durability();
        match self.random.below(100) {
            0..45 => {
                let (key, value) = (self.key(), self.value());
                keyspace.put(&key, &value, durability).unwrap();
                self.model[space].insert(key, value);
            }
            45..60 => {
                let key = self.key();
                keyspace.delete(&key, durability).unwrap();
                self.model[space].remove(&key);
            }
            60..70 => self.batch(durability),
            70..73 => {
                let mut prefix = self.key();
                prefix.truncate(self.random.below(3) as usize);
                keyspace.purge_prefix(&prefix, durability).unwrap();
                self.model[space].retain(|key, _| !key.starts_with(&prefix));
            }
            73..76 => {
                if self.snapshots.len() < 4 {
                    self.snapshots.push((self.fixture.store.snapshot(), self.model.clone()));
                } else {
                    let at = self.random.below(4) as usize;
                    self.snapshots.swap_remove(at);
                }
            }
            76..80 => self.fixture.store.flush().unwrap(),
            80..84 if self.shape_only => self.fixture.store.flush().unwrap(),
            80..82 => {
                let (a, b) = (self.key(), self.key());
                let (low, high) = (a.clone().min(b.clone()), a.max(b));
                keyspace.compact_range((Bound::Included(&low), Bound::Excluded(&high))).unwrap();
            }
            82..84 => keyspace.compact_range(all()).unwrap(),
            84..91 => self.look_up(space),
            91..94 => self.look_up_many(space),
            94..98 => self.walk(space),
            _ => {}
        }
    }

    fn batch(&mut self, durability: Durability) {
        let mut batch = self.fixture.store.batch();
        for _ in 0..1 + self.random.below(6) {
            let space = self.random.below(2) as usize;
            let keyspace = self.space(space);
            let key = self.key();
            match self.random.below(6) {
                0 => {
                    batch.delete(&keyspace, &key);
                    self.model[space].remove(&key);
                }
                1 => {
                    let other = self.key();
                    let (low, high) = (key.clone().min(other.clone()), key.max(other));
                    batch.delete_range(&keyspace, &low, &high);
                    self.model[space].retain(|key, _| *key < low || *key >= high);
                }
                _ => {
                    let value = self.value();
                    batch.put(&keyspace, &key, Bytes::from(value.clone()));
                    self.model[space].insert(key, value);
                }
            }
        }
        batch.commit(durability).unwrap();
    }

    fn look_up(&mut self, space: usize) {
        let keyspace = self.space(space);
        let key = self.key();
        let found = keyspace.get(&key).unwrap();
        assert_eq!(found.as_deref(), self.model[space].get(&key).map(|value| &value[..]), "{key:?}");
        assert_eq!(keyspace.contains(&key).unwrap(), found.is_some());
        let from = self.random.below(100_000);
        let part = keyspace.get_range(&key, from..from + 5000).unwrap();
        let clamp = |value: &Vec<u8>| {
            value[(from as usize).min(value.len())..(from as usize + 5000).min(value.len())].to_vec()
        };
        assert_eq!(part.map(|part| part.to_vec()), self.model[space].get(&key).map(clamp));
        for (snapshot, model) in &self.snapshots {
            let found = snapshot.get(&keyspace, &key).unwrap();
            assert_eq!(found.as_deref(), model[space].get(&key).map(|value| &value[..]), "{key:?}");
        }
    }

    /// Many keys at once, some of them twice, answer like single look-ups, also in the snapshots.
    fn look_up_many(&mut self, space: usize) {
        let keyspace = self.space(space);
        let keys: Vec<_> = (0..self.random.below(40)).map(|_| self.key()).collect();
        let check = |found: Vec<Result<Option<Bytes>, copal_kv::Error>>, model: &Map| {
            assert_eq!(found.len(), keys.len());
            for (key, found) in keys.iter().zip(found) {
                let expected = model.get(key).map(|value| &value[..]);
                assert_eq!(found.unwrap().as_deref(), expected, "{key:?}");
            }
        };
        check(keyspace.multi_get(&keys), &self.model[space]);
        for (snapshot, model) in &self.snapshots {
            check(snapshot.multi_get(&keyspace, &keys), &model[space]);
        }
    }

    fn walk(&mut self, space: usize) {
        let (a, b) = (self.key(), self.key());
        let (low, high) = (a.clone().min(b.clone()), a.max(b));
        let bounds = [
            (Bound::Included(&low[..]), Bound::Excluded(&high[..])),
            (Bound::Excluded(&low[..]), Bound::Included(&high[..])),
            (Bound::Unbounded, Bound::Included(&high[..])),
            all(),
        ][self.random.below(4) as usize];
        if matches!(bounds, (Bound::Excluded(a), Bound::Included(b)) if a >= b) {
            return;
        }
        let keyspace = self.space(space);
        let expected: Vec<_> = self.model[space].range::<[u8], _>(bounds).collect();
        check_walk(keyspace.iter(bounds), &expected, &mut self.random);
        for (snapshot, model) in &self.snapshots {
            let expected: Vec<_> = model[space].range::<[u8], _>(bounds).collect();
            check_walk(snapshot.iter(&keyspace, bounds), &expected, &mut self.random);
        }
    }

    fn check_all(&self, deep: bool) {
        for (space, longest) in HEADS.into_iter().enumerate() {
            let expected: Vec<_> = self.model[space].clone().into_iter().collect();
            assert_eq!(pairs(&self.space(space)), expected);
            let heads = self.space(space).iter(all()).heads().map(|item| item.unwrap().1);
            let head = |value: &[u8]| value.len().min(longest.into());
            assert!(heads.eq(expected.iter().map(|(_, value)| &value[..head(value)])));
        }
        assert_sound(&self.fixture.store, deep);
    }

    fn reopen(mut self, properly: bool) -> Run {
        self.snapshots.clear();
        if !properly {
            // A kill loses deferred writes; the crash test covers that.
            self.fixture.store.sync().unwrap();
        }
        self.options.filters = any_filters(&mut self.random);
        self.fixture = self.fixture.reopen(self.options.clone(), properly);
        self
    }
}

/// Takes from both ends at random.
fn check_walk(mut iter: copal_kv::Iter, expected: &[(&Vec<u8>, &Vec<u8>)], random: &mut Random) {
    let (mut front, mut back) = (0, expected.len());
    while front < back {
        let (item, at) = if random.below(2) == 0 {
            front += 1;
            (iter.next(), front - 1)
        } else {
            back -= 1;
            (iter.next_back(), back)
        };
        let (key, value) = item.unwrap().unwrap();
        assert_eq!((&key[..], &value[..]), (&expected[at].0[..], &expected[at].1[..]));
    }
    assert!(iter.next().is_none());
    assert!(iter.next_back().is_none());
}

fn history(seed: u64) {
    let mut run = Run::new(seed);
    for _ in 0..6 {
        for _ in 0..60 {
            run.step();
        }
        run.check_all(false);
        run = match run.random.below(3) {
            0 => run.reopen(true),
            1 => run.reopen(false),
            _ => run,
        };
        run.check_all(false);
    }
    run.snapshots.clear();
    for space in 0..2 {
        run.space(space).compact_range(all()).unwrap();
    }
    run.check_all(true);
}

#[test]
#[expect(clippy::print_stdout, reason = "shown when the test fails: which seed it was")]
fn a_random_history_answers_like_a_map() {
    for seed in 0..24 {
        println!("seed {seed}");
        history(seed);
    }
}
