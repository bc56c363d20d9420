//! Monkey rule: the best number of units for each run under uniform access, more for small runs and fewer for
//! the large one. Monkey and RocksDB's per-level options do the same; it ignores heat inside a run.
//!
//! A Get that finds nothing probes every run once, so the units of any run save the same, while they cost its
//! size.

use super::{Change, Heat, PartitionId, Probe, Rule, Shape, ledger::UnitLedger};
use crate::Kind;
use std::collections::BTreeMap;

/// Partitions of one run and one kind of units.
type Part = (u8, u8);

/// The Monkey rule; see the module.
#[derive(Default)]
pub struct Monkey {
    ledger: UnitLedger,
    /// Units of each part at the last step.
    planned: BTreeMap<Part, u8>,
    dirty: bool,
}

fn part(shape: Shape) -> Part {
    (shape.level, shape.kind as u8)
}

#[derive(Clone, Copy)]
struct LevelSum {
    kind: Kind,
    keys: u64,
    unit_bytes: u64,
    units: u8,
    /// Units that the whole part has.
    granted: u8,
}

impl LevelSum {
    /// Reads that one more unit for the whole part saves per byte and Get.
    fn gain_per_byte(&self, keys_of_level: u64) -> f64 {
        let heat = self.keys as f64 / keys_of_level.max(1) as f64;
        super::marginal(self.kind, heat, self.granted) / self.unit_bytes.max(1) as f64
    }
}

impl Monkey {
    /// A rule without partitions.
    pub fn new() -> Monkey {
        Monkey::default()
    }

    /// Units for each part, and the part that gets one more as far as the rest of the budget goes.
    fn plan(&self) -> (BTreeMap<Part, LevelSum>, Option<(Part, u64)>) {
        let mut parts: BTreeMap<Part, LevelSum> = BTreeMap::new();
        let mut keys_of_level = [0u64; 256];
        for (_, shape, _) in self.ledger.iter() {
            let empty =
                LevelSum { kind: shape.kind, keys: 0, unit_bytes: 0, units: shape.kind.units(), granted: 0 };
            let sum = parts.entry(part(shape)).or_insert(empty);
            sum.keys += u64::from(shape.keys);
            sum.unit_bytes += u64::from(shape.unit_bytes);
            keys_of_level[usize::from(shape.level)] += u64::from(shape.keys);
        }
        let mut free = self.ledger.budget();
        loop {
            let gain =
                |(part, sum): &(&Part, &LevelSum)| sum.gain_per_byte(keys_of_level[usize::from(part.0)]);
            let best = parts
                .iter()
                .filter(|(_, sum)| sum.granted < sum.units)
                .max_by(|a, b| gain(a).total_cmp(&gain(b)).then(b.0.cmp(a.0)))
                .map(|(&part, sum)| (part, sum.unit_bytes));
            match best {
                None => return (parts, None),
                Some((part, bytes)) if bytes > free => return (parts, Some((part, free))),
                Some((part, bytes)) => {
                    free -= bytes;
                    parts.entry(part).and_modify(|sum| sum.granted += 1);
                }
            }
        }
    }

    fn rebalance(&mut self) {
        let (parts, mut rest) = self.plan();
        self.planned = parts.iter().map(|(&part, sum)| (part, sum.granted)).collect();
        let mut wanted = Vec::with_capacity(self.ledger.partitions());
        for (partition, shape, _) in self.ledger.iter() {
            let units = self.predict(shape, Heat(0.0), 0);
            let bytes = u64::from(shape.unit_bytes);
            let one_more = match &mut rest {
                Some((lucky, free)) if *lucky == part(shape) && bytes <= *free && units < shape.units => {
                    *free -= bytes;
                    1
                }
                _ => 0,
            };
            wanted.push((partition, units + one_more));
        }
        for (partition, units) in wanted {
            self.ledger.set(partition, units);
        }
    }
}

impl Rule for Monkey {
    fn add(&mut self, partition: PartitionId, shape: Shape, _heat: Heat, units: u8, _now: u64) {
        self.ledger.insert(partition, shape, units);
        self.dirty = true;
    }

    fn remove(&mut self, partition: PartitionId) {
        self.dirty |= self.ledger.remove(partition).is_some();
    }

    fn heat(&self, _partition: PartitionId, _now: u64) -> Heat {
        Heat(0.0)
    }

    fn predict(&self, shape: Shape, _heat: Heat, _now: u64) -> u8 {
        self.planned.get(&part(shape)).copied().unwrap_or(0).min(shape.units)
    }

    fn observe(&mut self, _probes: &[Probe], _now: u64) {}

    fn step(&mut self, budget_bytes: u64, _now: u64) -> Vec<Change> {
        self.dirty |= budget_bytes != self.ledger.budget();
        self.ledger.set_budget(budget_bytes);
        if std::mem::take(&mut self.dirty) {
            self.rebalance();
        }
        self.ledger.changes()
    }

    fn correct(&mut self, partition: PartitionId, units: u8) {
        self.ledger.correct(partition, units);
        self.dirty = true;
    }

    fn granted_bytes(&self) -> u64 {
        self.ledger.granted()
    }
}
