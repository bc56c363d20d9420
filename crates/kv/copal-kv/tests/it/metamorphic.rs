//! One history under many options: the answers do not depend on memory, table size, shape, filters,
//! thresholds, compression or durability.

use crate::support::*;
use copal_kv::{
    CacheMode, Durability, FilterKind, FilterMemory, FilterOptions, FilterRule, Keyspace, KeyspaceOptions,
    Options, Snapshot,
};
use std::ops::Bound;

/// Answers to the caller, in order.
#[derive(Debug, Default, PartialEq)]
struct Transcript {
    /// Values or scans, as checksums of their bytes.
    answers: Vec<(String, u64)>,
}

impl Transcript {
    fn note<'a>(&mut self, what: &str, bytes: impl IntoIterator<Item = &'a [u8]>) {
        let mut sum = 0xcbf2_9ce4_8422_2325u64;
        for part in bytes {
            for byte in part {
                sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
            }
            sum = sum.rotate_left(5) ^ part.len() as u64;
        }
        self.answers.push((what.to_owned(), sum));
    }

    fn walk(
        &mut self,
        what: &str,
        iter: impl Iterator<Item = Result<(bytes::Bytes, bytes::Bytes), copal_kv::Error>>,
    ) {
        let items: Vec<_> = iter.map(|item| item.unwrap()).collect();
        self.note(what, items.iter().flat_map(|(key, value)| [&key[..], &value[..]]));
    }
}

struct Player {
    fixture: Fixture,
    options: Options,
    keyspace: KeyspaceOptions,
    /// Durability of the writes whose number is a multiple of this; the others survive a kill.
    durability: (Durability, u64),
    snapshot: Option<Snapshot>,
    random: Random,
    transcript: Transcript,
}

impl Player {
    fn space(&self) -> Keyspace {
        self.fixture.space("a", self.keyspace.clone())
    }

    fn key(&mut self) -> Vec<u8> {
        let group = b"abc"[self.random.below(3) as usize];
        vec![group, b'0' + self.random.below(10) as u8, b'0' + self.random.below(6) as u8]
    }

    fn value(&mut self, tag: u64) -> Vec<u8> {
        let len = match self.random.below(8) {
            0..5 => self.random.below(200),
            5..7 => 500 + self.random.below(6000),
            _ => 60_000 + self.random.below(40_000),
        };
        value(tag, len as usize)
    }

    /// Draws the same numbers for all options, since the answers must be the same.
    fn step(mut self, n: u64) -> Player {
        let space = self.space();
        let (durability, every) = self.durability;
        let durability = if n.is_multiple_of(every) { durability } else { PROCESS };
        match self.random.below(40) {
            0..18 => {
                let (key, value) = (self.key(), self.value(n));
                space.put(&key, &value, durability).unwrap();
            }
            18..22 => {
                let key = self.key();
                space.delete(&key, durability).unwrap();
            }
            22 => {
                let (a, b) = (self.key(), self.key());
                let mut batch = self.fixture.store.batch();
                batch.delete_range(&space, a.clone().min(b.clone()).as_slice(), &a.max(b));
                batch.commit(durability).unwrap();
            }
            23 => {
                let prefix = self.key()[..2].to_vec();
                space.purge_prefix(&prefix, durability).unwrap();
            }
            24 => {
                let mut pairs: std::collections::BTreeMap<_, _> = std::collections::BTreeMap::new();
                for i in 0..20 {
                    let key = self.key();
                    let value = self.value(n << 8 | i);
                    pairs.insert(key, value);
                }
                let mut batch = self.fixture.store.batch();
                for (key, value) in pairs {
                    batch.put(&space, &key, value.into());
                }
                batch.commit(durability).unwrap();
            }
            25 => {
                self.fixture.store.flush().unwrap();
                if !self.options.filters.background {
                    self.fixture.store.adjust_filters();
                }
            }
            26 => space.compact_range(all()).unwrap(),
            27 => self.snapshot = Some(self.fixture.store.snapshot()),
            28..32 => {
                let key = self.key();
                let found = space.get(&key).unwrap();
                self.transcript.note("get", found.as_deref());
                let part = space.get_range(&key, 100..70_000).unwrap();
                self.transcript.note("part", part.as_deref());
            }
            32..34 => {
                let key = self.key();
                let range = (Bound::Included(&key[..]), Bound::Unbounded);
                self.transcript.walk("forward", space.iter(range));
                self.transcript.walk("backward", space.iter(range).rev());
            }
            34..36 => {
                let key = self.key();
                let range = (Bound::Unbounded, Bound::Excluded(&key[..]));
                self.transcript.walk("below", space.iter(range));
            }
            36..38 => {
                if let Some(snapshot) = &self.snapshot {
                    self.transcript.walk("snapshot", snapshot.iter(&space, all()));
                }
            }
            38 if n.is_multiple_of(3) => {
                drop(space);
                self.snapshot = None;
                self.fixture.store.sync().unwrap();
                self.fixture = self.fixture.reopen(self.options.clone(), n.is_multiple_of(2));
            }
            _ => self.transcript.walk("all", space.prefix(b"b")),
        }
        self
    }
}

/// The options of variant `n`, in dissimilar combinations.
fn variant(n: usize) -> (Options, KeyspaceOptions, (Durability, u64)) {
    let filters = FilterOptions {
        kind: [FilterKind::Ribbon, FilterKind::Bloom][n % 2],
        rule: [
            FilterRule::Classes,
            FilterRule::Paper,
            FilterRule::Monkey,
            FilterRule::Fixed { units: 2 },
            FilterRule::Classes,
        ][n],
        memory: [
            FilterMemory::BitsPerKey(4.0),
            FilterMemory::BitsPerKey(8.0),
            FilterMemory::Bytes(700),
            FilterMemory::BitsPerKey(16.0),
            FilterMemory::Bytes(0),
        ][n],
        background: n.is_multiple_of(2),
    };
    let options = Options {
        filters,
        merge_for_reads: n < 3,
        memory_bytes: [4, 8, 32, 4, 6][n] * MIB,
        table_bytes: [8 << 10, 64 << 10, 1 << 20, 16 << 10, 32 << 20][n],
        bottom_share: [0, 10, 100, 1, 10][n],
        ..Options::default()
    };
    let keyspace = KeyspaceOptions {
        group_prefix_len: [0, 1, 2, 1, 3][n],
        separate_from_bytes: [400, 4096, u32::MAX, 1000, 1][n],
        direct_from_bytes: [3000, 65_536, u32::MAX, 5000, 50_000][n],
        compress: n % 2 == 1,
        value_head_bytes: [0, 16, 0, 4096, 300][n],
        cache: [CacheMode::Rows, CacheMode::Blocks, CacheMode::Nothing][n % 3],
    };
    // A group is as safe as the safest of its writes; deferred writes of several groups are logged together.
    let durability = [
        (PROCESS, 1),
        (Durability::Deferred, 1),
        (Durability::Device, 5),
        (Durability::Deferred, 2),
        (Durability::Device, 1),
    ][n];
    (options, keyspace, durability)
}

#[test]
fn options_change_no_answer() {
    for seed in 0..4 {
        let mut first: Option<Transcript> = None;
        for n in 0..5 {
            let (options, keyspace, durability) = variant(n);
            let mut player = Player {
                fixture: Fixture::new(128 * MIB, options.clone()),
                options,
                keyspace,
                durability,
                snapshot: None,
                random: Random::new(seed),
                transcript: Transcript::default(),
            };
            for step in 0..300 {
                player = player.step(seed << 20 | step);
            }
            assert_sound(&player.fixture.store, true);
            let transcript = player.transcript;
            assert!(transcript.answers.len() > 65);
            let first = first.get_or_insert_with(Transcript::default);
            if n == 0 {
                *first = transcript;
            } else {
                let differs = first.answers.iter().zip(&transcript.answers).position(|(a, b)| a != b);
                assert_eq!(differs, None, "seed {seed}: variant {n} answers differently");
                assert_eq!(*first, transcript, "seed {seed}, variant {n}");
            }
        }
    }
}
