//! An LSM tree as Gets see it: runs, newest first, each split into partitions by key.
//!
//! It is built in one of two ways:
//! - Modelled: partitions of equal numbers of keys, split evenly.
//! - Real: every key is placed in a run and added to the engine's own partition builder. Partitions end where
//!   the next key does not fit, and every filter page exists.

use super::key::{Key, STORE_SEED};
use anyhow::{Result, bail, ensure};
use copal_filter::{FilterFit, FilterPage, KEYS_PER_PARTITION, Kind, PartitionFilterBuilder, rules::Shape};
use std::str::FromStr;

/// Partitions of each run, newest run first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Runs(pub(super) Vec<u64>);

impl Runs {
    pub(super) fn partitions(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The same tree with about that many partitions.
    pub(super) fn scaled(&self, partitions: u64) -> Runs {
        let all = u128::from(self.partitions().max(1));
        let part = |&run: &u64| (u128::from(run) * u128::from(partitions) / all).clamp(1, 1_000_000) as u64;
        Runs(self.0.iter().map(part).collect())
    }
}

/// `flushed`, `leveled` or `lazy` with `:PARTITIONS`, or a list of numbers.
impl FromStr for Runs {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Runs> {
        if let Some((shape, partitions)) = name.split_once(':') {
            let partitions: u64 = partitions.parse()?;
            ensure!((10..=1_000_000).contains(&partitions), "a tree has 10 to 1000000 partitions");
            return Ok(Runs(match shape {
                "flushed" => flushed(partitions),
                "leveled" => leveled(partitions),
                "lazy" => lazy(partitions),
                _ => bail!("no shape is called {shape:?}; there are flushed, leveled and lazy"),
            }));
        }
        let runs: Vec<u64> = name.split(',').map(str::parse).collect::<Result<_, _>>()?;
        ensure!(runs.len() <= 64 && runs.iter().all(|&run| (1..=1_000_000).contains(&run)), "1 to 64 runs");
        Ok(Runs(runs))
    }
}

/// Two flushed runs of one partition above four levels, each ten times the one above: the model of the
/// design.
fn flushed(partitions: u64) -> Vec<u64> {
    let mut runs = vec![1, 1];
    runs.extend([1000, 100, 10].map(|part| (partitions * 9 / 10 / part).max(1)));
    let above: u64 = runs.iter().sum();
    runs.push(partitions.saturating_sub(above).max(1));
    runs
}

/// LevelDB's tree: four overlapping tables in level 0, level 1 of 10 MB in tables of 2 MB, each further level
/// ten times larger.
fn leveled(partitions: u64) -> Vec<u64> {
    let mut runs = vec![1, 1, 1, 1];
    let mut level = 5;
    while runs.iter().sum::<u64>() + level < partitions {
        runs.push(level);
        level *= 10;
    }
    runs.push(partitions.saturating_sub(runs.iter().sum()).max(1));
    runs
}

/// The engine's own tree with its tiers half full: at 5,000 partitions, runs of 8, 32 and 128 above one
/// bottom run.
fn lazy(partitions: u64) -> Vec<u64> {
    let mut runs = Vec::new();
    for tier in [640, 160, 40] {
        runs.extend([(partitions / tier).max(1); 2]);
    }
    runs.push(partitions.saturating_sub(runs.iter().sum()).max(1));
    runs
}

#[derive(Clone)]
pub(super) struct Run {
    /// First position of each partition except the first.
    pub(super) fences: Vec<u64>,
    /// Number of each partition.
    pub(super) numbers: Vec<u32>,
}

#[derive(Clone)]
pub(super) struct Tree {
    pub(super) runs: Vec<Run>,
    /// Shape of every partition, also of replaced ones, by number.
    pub(super) shapes: Vec<Shape>,
    /// Filter page of every partition; empty in a modelled tree.
    pub(super) pages: Vec<FilterPage>,
    pub(super) keys: u64,
    /// Upper limit of each run's share of the keys.
    homes: Vec<u64>,
}

pub(super) fn shape(kind: Kind, keys: u32, level: usize) -> Shape {
    Shape { kind, keys, unit_bytes: kind.unit_bytes(keys), units: kind.units(), level: level as u8 }
}

impl Tree {
    /// A tree of partitions of equal size.
    pub(super) fn modelled(runs: &Runs, kind: Kind) -> Tree {
        let mut tree = Tree::empty(runs);
        for (level, &partitions) in runs.0.iter().enumerate() {
            let fence = |i: u64| (((u128::from(i)) << 64) / u128::from(partitions)) as u64;
            let first = tree.shapes.len() as u32;
            tree.runs.push(Run {
                fences: (1..partitions).map(fence).collect(),
                numbers: (first..first + partitions as u32).collect(),
            });
            tree.shapes.extend((0..partitions).map(|_| shape(kind, KEYS_PER_PARTITION, level)));
        }
        tree
    }

    /// Places every key and builds every filter. `known` are keys of the store; the others are numbered ones.
    pub(super) fn real(runs: &Runs, kind: Kind, known: &[Key]) -> Result<Tree> {
        let mut tree = Tree::empty(runs);
        let mut of_run: Vec<Vec<Key>> = vec![Vec::new(); runs.0.len()];
        let others = tree.keys.saturating_sub(known.len() as u64);
        let numbered = (0..others).map(|id| Key::numbered(id, tree.keys, true));
        for key in known.iter().copied().chain(numbered) {
            if let Some(run) = tree.run_of(key) {
                of_run[run].push(key);
            }
        }
        let mut builder = PartitionFilterBuilder::new(kind, STORE_SEED);
        for (level, mut keys) in of_run.into_iter().enumerate() {
            keys.sort_unstable_by_key(|key| key.position);
            let first = tree.shapes.len() as u32;
            let mut fences = Vec::new();
            for key in &keys {
                if builder.add(key.hash) == FilterFit::Full {
                    tree.close(&mut builder, level)?;
                    fences.push(key.position);
                    ensure!(
                        builder.add(key.hash) == FilterFit::Fits,
                        "a key does not fit an empty partition"
                    );
                }
            }
            if builder.keys() > 0 {
                tree.close(&mut builder, level)?;
            }
            let numbers = (first..tree.shapes.len() as u32).collect();
            tree.runs.push(Run { fences, numbers });
        }
        Ok(tree)
    }

    fn empty(runs: &Runs) -> Tree {
        let partitions = runs.partitions();
        let mut above = 0;
        let homes = runs.0.iter().map(|run| {
            above += run;
            ((u128::from(above) << 64) / u128::from(partitions)).min(u128::from(u64::MAX)) as u64
        });
        Tree {
            runs: Vec::new(),
            shapes: Vec::new(),
            pages: Vec::new(),
            keys: partitions * u64::from(KEYS_PER_PARTITION),
            homes: homes.collect(),
        }
    }

    fn close(&mut self, builder: &mut PartitionFilterBuilder, level: usize) -> Result<()> {
        let keys = builder.keys();
        let uid = self.shapes.len() as u64;
        let Some(page) = builder.finish(uid) else {
            bail!("partition {uid} of {keys} keys has no filter");
        };
        let mut shape = shape(page.kind(), keys, level);
        shape.unit_bytes = page.unit_bytes();
        self.shapes.push(shape);
        self.pages.push(page);
        Ok(())
    }

    /// The run that holds the key.
    pub(super) fn run_of(&self, key: Key) -> Option<usize> {
        let home = key.home?;
        Some(self.homes.partition_point(|&end| end <= home).min(self.homes.len() - 1))
    }

    /// The partition of a run whose range contains the key.
    pub(super) fn partition(&self, run: usize, key: Key) -> u32 {
        let Run { fences, numbers } = &self.runs[run];
        numbers[fences.partition_point(|&fence| fence <= key.position)]
    }
}
