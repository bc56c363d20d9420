//! Model of a store for rules: shapes, the units carried out so far, and random traces.

pub(in crate::rules) use copal_testkit::Random;

use crate::{
    Kind,
    rules::{Change, Heat, Outcome, PartitionId, Probe, Rule, Shape},
};
use std::collections::BTreeMap;

pub(super) fn shape(kind: Kind, keys: u32, level: u8) -> Shape {
    Shape { kind, keys, unit_bytes: kind.unit_bytes(keys), units: kind.units(), level }
}

pub(super) fn negative(partition: u32) -> Probe {
    Probe { partition: PartitionId(partition), outcome: Outcome::Negative }
}

/// Carries changes out one by one, as an engine does.
#[derive(Default)]
pub(super) struct Store {
    pub(super) held: BTreeMap<PartitionId, (Shape, u8)>,
    /// Units loaded, and page reads for them.
    pub(super) loads: u64,
    pub(super) releases: u64,
}

impl Store {
    pub(super) fn add(&mut self, rule: &mut dyn Rule, id: u32, shape: Shape, heat: f64, units: u8, now: u64) {
        rule.add(PartitionId(id), shape, Heat(heat), units, now);
        self.held.insert(PartitionId(id), (shape, units));
    }

    pub(super) fn remove(&mut self, rule: &mut dyn Rule, id: u32) {
        rule.remove(PartitionId(id));
        self.held.remove(&PartitionId(id));
    }

    pub(super) fn bytes(&self) -> u64 {
        self.held.values().map(|(shape, units)| u64::from(shape.unit_bytes) * u64::from(*units)).sum()
    }

    pub(super) fn units(&self, id: u32) -> u8 {
        self.held[&PartitionId(id)].1
    }

    pub(super) fn step(&mut self, rule: &mut dyn Rule, budget: u64, now: u64) -> Vec<Change> {
        let changes = rule.step(budget, now);
        // Bytes loaded beyond the budget before the step may only decrease.
        let mut most = self.bytes().max(budget);
        for &Change { partition, units } in &changes {
            let held = self.held.get_mut(&partition).expect("a rule changes partitions it was told of");
            assert!(units <= held.0.units, "{partition:?} has no {units} units");
            assert_ne!(units, held.1, "a change that changes nothing");
            if units > held.1 {
                self.loads += 1;
            } else {
                self.releases += 1;
            }
            held.1 = units;
            assert!(self.bytes() <= most, "over the budget on the way");
            most = most.min(self.bytes()).max(budget);
        }
        assert!(self.bytes() <= budget, "{} bytes of {budget}", self.bytes());
        assert_eq!(rule.granted_bytes(), self.bytes());
        changes
    }
}
