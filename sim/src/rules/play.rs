//! Plays Gets through a tree under one rule and counts the reads that the engine would do.
//!
//! - A Get probes the runs from the newest until it finds its key. It reads a run's partition if the
//!   partition's units let the key pass.
//! - Cold start: while memory is free, a probe that finds no loaded unit reads the filter page instead of the
//!   data. The paper's rule has no cold start; its tables wait for the rule.
//! - The rule receives probes in batches, and its changes are carried out before the next Get: this models
//!   the engine's background thread without its delay. A load is one read; under the paper's rule one read
//!   per unit, as in the paper.

use super::{
    filters::Filters,
    key::Key,
    merge::{self, Inheritance, Slice},
    random::Random,
    tree::{self, Tree},
};
use anyhow::Result;
use copal_filter::rules::{Heat, Outcome, PartitionId, Probe, Rule, inherit};

/// Reads of a sequence of Gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reads {
    pub(super) gets: u64,
    /// Data reads for an absent key.
    pub(super) false_reads: u64,
    /// Reads of filter pages, or of units of the paper's rule.
    pub(super) page_reads: u64,
    /// Data reads for an existing key.
    pub(super) hits: u64,
}

impl Reads {
    fn per_get(self, reads: u64) -> f64 {
        reads as f64 / self.gets.max(1) as f64
    }

    pub(super) fn false_per_get(self) -> f64 {
        self.per_get(self.false_reads)
    }

    pub(super) fn pages_per_get(self) -> f64 {
        self.per_get(self.page_reads)
    }

    /// Reads that a perfect filter would have saved.
    pub(super) fn extra_per_get(self) -> f64 {
        self.per_get(self.false_reads + self.page_reads)
    }

    pub(super) fn total_per_get(self) -> f64 {
        self.per_get(self.false_reads + self.page_reads + self.hits)
    }

    fn since(self, before: Reads) -> Reads {
        Reads {
            gets: self.gets - before.gets,
            false_reads: self.false_reads - before.false_reads,
            page_reads: self.page_reads - before.page_reads,
            hits: self.hits - before.hits,
        }
    }
}

/// Parameters of driving a rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Driving {
    pub(super) budget_bytes: u64,
    /// Gets between two steps of the rule.
    pub(super) batch: u64,
    /// Whether this is the paper's rule: no cold start, one read per unit.
    pub(super) paper: bool,
    /// Gets between two merges of a slice of the bottom run; 0: none.
    pub(super) merge_every: u64,
    /// State that a merge's outputs inherit.
    pub(super) inheritance: Inheritance,
}

/// A tree, its filters and the rule that adjusts them.
pub(super) struct Player {
    pub(super) tree: Tree,
    filters: Filters,
    rule: Box<dyn Rule>,
    driving: Driving,
    probes: Vec<Probe>,
    pub(super) reads: Reads,
    unit_bytes: u64,
    merge_random: Random,
}

impl Player {
    /// Tells the rule of every partition and applies its first changes; none of that is counted.
    pub(super) fn new(tree: Tree, seed: u64, rule: Box<dyn Rule>, driving: Driving) -> Result<Player> {
        let unit_bytes = tree.shapes.iter().map(|shape| u64::from(shape.unit_bytes)).sum();
        let mut player = Player {
            filters: Filters::new(&tree, seed),
            tree,
            rule,
            driving,
            probes: Vec::new(),
            reads: Reads::default(),
            unit_bytes,
            merge_random: Random(!seed),
        };
        for (id, &shape) in player.tree.shapes.iter().enumerate() {
            player.rule.add(PartitionId(id as u32), shape, Heat(0.0), 0, 0);
        }
        player.step()?;
        player.reads = Reads::default();
        Ok(player)
    }

    /// Plays `gets` Gets; returns the reads in `windows` parts of equal length.
    pub(super) fn play(
        &mut self,
        gets: u64,
        windows: u64,
        mut next: impl FnMut() -> Option<Key>,
    ) -> Result<Vec<Reads>> {
        let mut parts = Vec::new();
        for window in 0..windows {
            let before = self.reads;
            for _ in gets * window / windows..gets * (window + 1) / windows {
                let Some(key) = next() else { break };
                self.get(key)?;
            }
            parts.push(self.reads.since(before));
        }
        Ok(parts)
    }

    fn get(&mut self, key: Key) -> Result<()> {
        self.reads.gets += 1;
        let home = self.tree.run_of(key);
        for run in 0..self.tree.runs.len() {
            let partition = self.tree.partition(run, key);
            if self.filters.units(partition) == 0 && !self.driving.paper {
                self.cold_start(partition)?;
            }
            let outcome = if home == Some(run) {
                self.reads.hits += 1;
                Outcome::Hit
            } else if self.filters.passes(&self.tree, partition, key) {
                self.reads.false_reads += 1;
                Outcome::FalsePositive
            } else {
                Outcome::Negative
            };
            self.probes.push(Probe { partition: PartitionId(partition), outcome });
            if outcome == Outcome::Hit {
                break;
            }
        }
        if self.driving.merge_every > 0 && self.reads.gets.is_multiple_of(self.driving.merge_every) {
            let slice = Slice::choose(&self.tree, &mut self.merge_random);
            self.replace(slice)?;
        }
        if self.reads.gets.is_multiple_of(self.driving.batch) {
            self.step()?;
        }
        Ok(())
    }

    /// Reads the filter page of a probe without a loaded unit, if memory is free.
    fn cold_start(&mut self, partition: u32) -> Result<()> {
        let shape = self.tree.shapes[partition as usize];
        let id = PartitionId(partition);
        let room = self.driving.budget_bytes.saturating_sub(self.rule.granted_bytes());
        let now = self.reads.gets;
        let wanted = self.rule.predict(shape, self.rule.heat(id, now), now).max(1);
        let even = (self.driving.budget_bytes / self.unit_bytes.max(1)).max(1);
        let most = (room / u64::from(shape.unit_bytes)).min(even).min(u64::from(shape.units)) as u8;
        let units = wanted.min(most);
        if units > 0 {
            self.reads.page_reads += 1;
            self.rule.correct(id, units);
            self.filters.set(&self.tree, partition, units)?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<()> {
        let now = self.reads.gets;
        self.rule.observe(&self.probes, now);
        self.probes.clear();
        for change in self.rule.step(self.driving.budget_bytes, now) {
            let partition = change.partition.0;
            let held = self.filters.units(partition);
            if change.units > held {
                let each = if self.driving.paper { u64::from(change.units - held) } else { 1 };
                self.reads.page_reads += each;
            }
            self.filters.set(&self.tree, partition, change.units)?;
        }
        Ok(())
    }

    /// Replaces the inputs of a merge by its outputs, with the heat and the units that they inherit.
    fn replace(&mut self, slice: Slice) -> Result<()> {
        let now = self.reads.gets;
        let bottom = self.tree.runs.len() - 1;
        let kind = self.tree.shapes[slice.inputs[0].number as usize].kind;
        let mut outputs = Vec::new();
        for output in &slice.outputs {
            let shape = tree::shape(kind, output.keys, bottom);
            let of = |(input, moved): (&merge::Input, u32)| {
                (self.rule.heat(PartitionId(input.number), now), moved, input.keys)
            };
            let heat = match self.driving.inheritance {
                Inheritance::Nothing => Heat(0.0),
                Inheritance::Heat | Inheritance::Units => inherit(slice.moved(output).map(of)),
            };
            let units = match self.driving.inheritance {
                Inheritance::Units => self.rule.predict(shape, heat, now),
                Inheritance::Heat | Inheritance::Nothing => 0,
            };
            outputs.push((shape, heat, units));
        }
        self.step()?;
        for input in &slice.inputs {
            self.rule.remove(PartitionId(input.number));
            self.filters.set(&self.tree, input.number, 0)?;
        }
        let numbers = slice.install(&mut self.tree);
        for (number, (shape, heat, units)) in numbers.zip(outputs) {
            let room = self.driving.budget_bytes.saturating_sub(self.rule.granted_bytes());
            let units = units.min((room / u64::from(shape.unit_bytes)).min(255) as u8);
            self.tree.shapes.push(shape);
            self.filters.add(units);
            self.rule.add(PartitionId(number), shape, heat, units, now);
        }
        Ok(())
    }

    /// Number of partitions that hold 0, 1, 2, .. units, by run.
    pub(super) fn units_by_run(&self) -> Vec<Vec<u64>> {
        let mut counts = vec![vec![0u64; usize::from(copal_filter::MAX_UNITS) + 1]; self.tree.runs.len()];
        for (counts, run) in counts.iter_mut().zip(&self.tree.runs) {
            for &partition in &run.numbers {
                counts[usize::from(self.filters.units(partition))] += 1;
            }
        }
        counts
    }
}
