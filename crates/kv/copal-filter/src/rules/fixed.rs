//! Fixed rule: the same number of units for every partition, like an engine without elastic filters.
//!
//! If the budget does not hold the wanted number everywhere, every partition gets as many as fit everywhere.
//! The remainder gives one more unit each, in the order of the partitions' numbers.

use super::{Change, Heat, PartitionId, Probe, Rule, Shape, ledger::UnitLedger};

/// The fixed rule; see the module.
pub struct Fixed {
    ledger: UnitLedger,
    units: u8,
    /// Units that every partition had room for at the last step.
    everywhere: u8,
    dirty: bool,
}

impl Fixed {
    /// At most `units` units for each partition.
    pub fn new(units: u8) -> Fixed {
        Fixed { ledger: UnitLedger::default(), units, everywhere: 0, dirty: false }
    }

    /// Bytes of `units` units everywhere.
    fn bytes_at(&self, units: u8) -> u64 {
        let of = |(_, shape, _): (PartitionId, Shape, u8)| {
            u64::from(units.min(shape.units)) * u64::from(shape.unit_bytes)
        };
        self.ledger.iter().map(of).sum()
    }

    /// Most units that fit for every partition.
    fn everywhere(&self) -> u8 {
        let most = self.units.min(crate::MAX_UNITS);
        let fits = |&units: &u8| self.bytes_at(units) <= self.ledger.budget();
        (1..=most).take_while(fits).last().unwrap_or(0)
    }

    fn rebalance(&mut self) {
        let everywhere = self.everywhere();
        self.everywhere = everywhere;
        let mut free = self.ledger.budget().saturating_sub(self.bytes_at(everywhere));
        let wanted: Vec<(PartitionId, u8)> = self
            .ledger
            .iter()
            .map(|(partition, shape, _)| {
                let bytes = u64::from(shape.unit_bytes);
                let one_more = everywhere < self.units.min(shape.units) && bytes <= free;
                free -= if one_more { bytes } else { 0 };
                (partition, everywhere.min(shape.units) + u8::from(one_more))
            })
            .collect();
        for (partition, units) in wanted {
            self.ledger.set(partition, units);
        }
    }
}

impl Rule for Fixed {
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
        self.everywhere.min(shape.units)
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
