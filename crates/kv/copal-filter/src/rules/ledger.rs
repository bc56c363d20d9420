//! Ledger of units: number of each partition, bytes of all of them, and changes of a step.
//!
//! Invariant: `granted` is the sum of `units * unit_bytes` over all partitions.

use super::{Change, PartitionId, Shape};

#[derive(Clone, Copy)]
struct UnitHolding {
    shape: Shape,
    units: u8,
    /// Units before the first change since the last [`UnitLedger::changes`].
    before: Option<u8>,
}

/// Bytes for each partition, its place among the changes included.
pub(super) const PARTITION_BYTES: usize = size_of::<Option<UnitHolding>>() + size_of::<PartitionId>();

/// Dense slab by partition number.
#[derive(Default)]
pub(super) struct UnitLedger {
    holdings: Vec<Option<UnitHolding>>,
    partitions: usize,
    granted: u64,
    budget: u64,
    changed: Vec<PartitionId>,
}

impl UnitLedger {
    /// Adds a partition. Replaces a former one of the same number.
    pub(super) fn insert(&mut self, partition: PartitionId, shape: Shape, units: u8) {
        self.remove(partition);
        let at = partition.0 as usize;
        if at >= self.holdings.len() {
            self.holdings.resize(at + 1, None);
        }
        let units = units.min(shape.units);
        self.granted += u64::from(units) * u64::from(shape.unit_bytes);
        self.partitions += 1;
        self.holdings[at] = Some(UnitHolding { shape, units, before: None });
    }

    /// Removes the partition; returns its shape if it was present.
    pub(super) fn remove(&mut self, partition: PartitionId) -> Option<Shape> {
        let held = self.holdings.get_mut(partition.0 as usize)?.take()?;
        self.granted -= u64::from(held.units) * u64::from(held.shape.unit_bytes);
        self.partitions -= 1;
        Some(held.shape)
    }

    /// Shape and units.
    pub(super) fn get(&self, partition: PartitionId) -> Option<(Shape, u8)> {
        self.holding(partition).map(|held| (held.shape, held.units))
    }

    fn holding(&self, partition: PartitionId) -> Option<&UnitHolding> {
        self.holdings.get(partition.0 as usize)?.as_ref()
    }

    /// Records a decision of the rule: part of the next [`UnitLedger::changes`].
    pub(super) fn set(&mut self, partition: PartitionId, units: u8) {
        self.write(partition, units, true);
    }

    /// Records a fact from outside: no change follows.
    pub(super) fn correct(&mut self, partition: PartitionId, units: u8) {
        self.write(partition, units, false);
    }

    fn write(&mut self, partition: PartitionId, units: u8, decided: bool) {
        let Some(held) = self.holdings.get_mut(partition.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        let bytes = u64::from(held.shape.unit_bytes);
        let units = units.min(held.shape.units);
        self.granted = self.granted - u64::from(held.units) * bytes + u64::from(units) * bytes;
        if decided && held.before.is_none() {
            held.before = Some(held.units);
            self.changed.push(partition);
        }
        held.units = units;
    }

    pub(super) fn set_budget(&mut self, budget_bytes: u64) {
        self.budget = budget_bytes;
    }

    pub(super) fn budget(&self) -> u64 {
        self.budget
    }

    pub(super) fn granted(&self) -> u64 {
        self.granted
    }

    /// Free bytes of the budget.
    pub(super) fn free_bytes(&self) -> u64 {
        self.budget.saturating_sub(self.granted)
    }

    pub(super) fn over_budget(&self) -> bool {
        self.granted > self.budget
    }

    /// Number of partitions.
    pub(super) fn partitions(&self) -> usize {
        self.partitions
    }

    /// All partitions in order of their numbers, with their shapes and units.
    pub(super) fn iter(&self) -> impl Iterator<Item = (PartitionId, Shape, u8)> {
        let with_id = |(i, held): (usize, &Option<UnitHolding>)| {
            held.as_ref().map(|held| (PartitionId(i as u32), held.shape, held.units))
        };
        self.holdings.iter().enumerate().filter_map(with_id)
    }

    /// Net changes since the last call: releases, then loads, each in the order of the decisions.
    pub(super) fn changes(&mut self) -> Vec<Change> {
        let mut releases = Vec::new();
        let mut loads = Vec::new();
        for partition in std::mem::take(&mut self.changed) {
            let held = self.holdings.get_mut(partition.0 as usize).and_then(Option::as_mut);
            let Some((before, held)) = held.and_then(|held| held.before.take().map(|before| (before, held)))
            else {
                continue;
            };
            let change = Change { partition, units: held.units };
            match held.units.cmp(&before) {
                std::cmp::Ordering::Less => releases.push(change),
                std::cmp::Ordering::Equal => {}
                std::cmp::Ordering::Greater => loads.push(change),
            }
        }
        releases.append(&mut loads);
        releases
    }
}
