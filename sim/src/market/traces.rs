//! Synthetic loads of phases: keys of Gets, writes and merges beside them.

use super::store::{Key, Store};
use crate::rules::random::{Random, Zipf, mix};

/// Popularity of rows in one phase.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Heat {
    /// Each row of a range of ids alike.
    Range { from: u64, rows: u64 },
    /// Zipf over all rows; neighbours in the order of heat are not neighbours in the store.
    Scattered { skew: f64, shift: u64 },
    /// Each row once, in random order.
    Once,
    /// Half of the Gets to a range, half scattered.
    Both { from: u64, rows: u64, skew: f64 },
    /// Recorded Gets from this one on.
    Recorded { from: usize },
}

/// One phase of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Phase {
    pub(super) gets: u64,
    pub(super) heat: Heat,
    /// Share of the Gets whose key does not exist.
    pub(super) missing: f64,
    /// Where the heat is not that of the phase before: the budget has to move once.
    pub(super) is_shift: bool,
}

/// Work beside the Gets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Beside {
    /// Gets between two merges of a slice of the store; 0: none.
    pub(super) merge_every: u64,
    /// Gets in which a memtable of a quarter of the budget fills; 0: none.
    pub(super) memtable_every: u64,
    /// Gets between two sequences of 2,000 Gets of neighbours; 0: none.
    pub(super) walk_every: u64,
}

/// A load; see the module.
#[derive(Clone, Debug)]
pub(super) struct Trace {
    pub(super) name: String,
    pub(super) budget: u64,
    pub(super) store: Store,
    pub(super) phases: Vec<Phase>,
    pub(super) beside: Beside,
    /// Recorded Gets, in order.
    pub(super) recorded: Vec<Key>,
}

const MIB: u64 = 1 << 20;
/// Length of a sequence of neighbours.
pub(super) const WALK: u64 = 2_000;

fn phase(gets: u64, heat: Heat, missing: f64) -> Phase {
    Phase { gets, heat, missing, is_shift: false }
}

fn shifted(phase: Phase) -> Phase {
    Phase { is_shift: true, ..phase }
}

/// All loads of the design.
pub(super) fn all() -> Vec<Trace> {
    let zipf = |skew| Heat::Scattered { skew, shift: 0 };
    let trace = |name: &str, budget, store, phases| Trace {
        name: name.to_owned(),
        budget: budget * MIB,
        store,
        phases,
        beside: Beside::default(),
        recorded: Vec::new(),
    };
    let moves =
        (0..10).map(|i| shifted(phase(50_000, Heat::Range { from: mix(i) % 390_000, rows: 8_000 }, 0.3)));
    let everywhere = |rows| Heat::Range { from: 0, rows };
    let small = Store::with_partitions(240_000, 118, 1_200);
    let suites = Store::new(200_000, 1_024);
    let stationary = |gets| vec![phase(gets, zipf(0.99), 0.5); 4];
    let (hot_rows, hot_blocks) = (zipf(1.0), Heat::Range { from: 100_000, rows: 6_000 });
    let turns = [
        phase(150_000, zipf(0.9), 0.0),
        shifted(phase(150_000, everywhere(300_000), 1.0)),
        shifted(phase(150_000, zipf(0.9), 0.0)),
        shifted(phase(150_000, everywhere(300_000), 1.0)),
    ];
    vec![
        trace("hot range that moves", 8, Store::new(400_000, 116), moves.collect()),
        trace("200 keyspaces, half missing", 32, small, vec![phase(300_000, everywhere(240_000), 0.5); 2]),
        trace("90 % misses", 16, Store::new(570_000, 116), vec![phase(300_000, everywhere(570_000), 0.9); 2]),
        trace(
            "small rows, all alike",
            8,
            Store::new(240_000, 140),
            vec![phase(120_000, everywhere(240_000), 0.1); 3],
        ),
        trace(
            "everything fits",
            64,
            Store::new(50_000, 116),
            vec![
                phase(50_000, Heat::Once, 0.0),
                phase(100_000, everywhere(50_000), 0.0),
                phase(100_000, everywhere(50_000), 1.0),
            ],
        ),
        trace("zipf .99, scattered", 8, suites.clone(), stationary(200_000)),
        trace("zipf 1.2, scattered", 8, suites.clone(), vec![phase(200_000, zipf(1.2), 0.5); 4]),
        trace(
            "rows, then blocks, then both",
            8,
            Store::new(300_000, 250),
            [hot_rows, hot_blocks, Heat::Both { from: 100_000, rows: 6_000, skew: 1.0 }]
                .into_iter()
                .flat_map(|heat| [shifted(phase(150_000, heat, 0.3)), phase(150_000, heat, 0.3)])
                .collect(),
        ),
        trace("hits and misses in turn", 8, Store::new(300_000, 116), turns.into()),
        Trace {
            beside: Beside { merge_every: 5_000, ..Beside::default() },
            ..trace("merges that rewrite", 8, suites.clone(), stationary(150_000))
        },
        Trace {
            beside: Beside { walk_every: 20_000, ..Beside::default() },
            ..trace("walks that pollute", 8, suites.clone(), stationary(150_000))
        },
        Trace {
            beside: Beside { memtable_every: 5_000, ..Beside::default() },
            ..trace("a memtable fills and empties", 8, suites.clone(), stationary(150_000))
        },
        Trace {
            beside: Beside { memtable_every: 500, ..Beside::default() },
            ..trace("a memtable fills fast", 8, suites.clone(), stationary(150_000))
        },
        trace("nothing changes", 8, suites, stationary(500_000)),
    ]
}

/// Keys of one phase in order.
pub(super) struct Gets<'a> {
    phase: &'a Phase,
    recorded: std::slice::Iter<'a, Key>,
    rows: u64,
    zipf: Option<Zipf>,
    random: Random,
    order: Vec<u32>,
}

impl Gets<'_> {
    pub(super) fn new<'a>(trace: &'a Trace, phase: &'a Phase, seed: u64) -> Gets<'a> {
        let rows = trace.store.rows;
        let zipf = match phase.heat {
            Heat::Scattered { skew, .. } | Heat::Both { skew, .. } => Some(Zipf::new(rows, skew)),
            Heat::Range { .. } | Heat::Once | Heat::Recorded { .. } => None,
        };
        let recorded = match phase.heat {
            Heat::Recorded { from } => trace.recorded[from..].iter(),
            _ => [].iter(),
        };
        let mut random = Random(mix(seed));
        let mut order = Vec::new();
        if phase.heat == Heat::Once {
            order.extend(0..rows as u32);
            for i in (1..order.len()).rev() {
                order.swap(i, random.below(i as u64 + 1) as usize);
            }
        }
        Gets { phase, recorded, rows, zipf, random, order }
    }

    pub(super) fn next(&mut self) -> Key {
        if let Some(&key) = self.recorded.next() {
            return key;
        }
        let id = match self.phase.heat {
            Heat::Range { from, rows } => from + self.random.below(rows),
            Heat::Once => u64::from(self.order.pop().unwrap_or_default()),
            Heat::Scattered { shift, .. } => self.scattered(shift),
            Heat::Both { from, rows, .. } => match self.random.next() & 1 {
                0 => from + self.random.below(rows),
                _ => self.scattered(0),
            },
            Heat::Recorded { .. } => 0,
        };
        Key { id, is_absent: self.random.unit() < self.phase.missing }
    }

    fn scattered(&mut self, shift: u64) -> u64 {
        let rank = self.zipf.as_ref().map_or(0, |zipf| zipf.rank(&mut self.random) - 1);
        scatter(rank + shift, self.rows)
    }
}

/// The row of a rank: a bijection that leaves no neighbours.
fn scatter(rank: u64, rows: u64) -> u64 {
    // A prime that divides no number of rows here.
    const STRIDE: u64 = 2_654_435_761;
    (u128::from(rank % rows) * u128::from(STRIDE) % u128::from(rows)) as u64
}

/// Each key of a phase with its probability; a key may come several times.
pub(super) fn probabilities(trace: &Trace, phase: &Phase) -> Vec<(Key, f64)> {
    let rows = trace.store.rows;
    let mut all = Vec::new();
    let mut add = |id: u64, share: f64| {
        all.push((Key { id, is_absent: false }, share * (1.0 - phase.missing)));
        all.push((Key { id, is_absent: true }, share * phase.missing));
    };
    let (range, zipf) = match phase.heat {
        Heat::Range { from, rows } => (Some((from, rows, 1.0)), None),
        Heat::Once => (Some((0, rows, 1.0)), None),
        Heat::Both { from, rows, skew } => (Some((from, rows, 0.5)), Some((skew, 0, 0.5))),
        Heat::Scattered { skew, shift } => (None, Some((skew, shift, 1.0))),
        Heat::Recorded { from } => {
            let gets = &trace.recorded[from..from + phase.gets as usize];
            return gets.iter().map(|&key| (key, 1.0 / phase.gets as f64)).collect();
        }
    };
    if let Some((from, count, share)) = range {
        (from..(from + count).min(rows)).for_each(|id| add(id, share / count as f64));
    }
    if let Some((skew, shift, share)) = zipf {
        let sum: f64 = (1..=rows).map(|rank| (rank as f64).powf(-skew)).sum();
        for rank in 0..rows {
            add(scatter(rank + shift, rows), share * ((rank + 1) as f64).powf(-skew) / sum);
        }
    }
    all
}
