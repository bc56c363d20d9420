//! Invariant of every rule: after each change the bytes are within the budget, for any partitions and events.

use super::support::{Random, Store, shape};
use crate::{
    Kind,
    rules::{Outcome, PartitionId, Probe, RuleKind},
};

/// Partitions come and go, Gets are skewed, the budget changes, loads fail and cold starts happen.
fn random_history(kind: RuleKind, seed: u64) {
    let mut random = Random::new(seed);
    let mut rule = kind.build();
    let mut store = Store::default();
    let mut budget = random.below(200_000);
    let mut now = 0;
    for _ in 0..400 {
        match random.below(20) {
            0..=2 => {
                let units = [Kind::Ribbon, Kind::Bloom][random.below(2) as usize];
                let shape = shape(units, 1 + random.below(2021) as u32, random.below(5) as u8);
                let loaded = random.below(u64::from(shape.units) + 1) as u8;
                store.add(&mut *rule, random.below(60) as u32, shape, random.below(50) as f64, loaded, now);
            }
            3 => store.remove(&mut *rule, random.below(60) as u32),
            4 => budget = random.below(200_000),
            5 => {
                let id = random.below(60) as u32;
                if let Some(held) = store.held.get_mut(&PartitionId(id)) {
                    held.1 = random.below(u64::from(held.0.units) + 1) as u8;
                    let units = held.1;
                    rule.correct(PartitionId(id), units);
                }
            }
            6 => now += random.below(100_000),
            _ => {
                let probes: Vec<Probe> = (0..random.below(64))
                    .map(|_| Probe {
                        partition: PartitionId((random.below(8) * random.below(8)) as u32),
                        outcome: [Outcome::Negative, Outcome::FalsePositive, Outcome::Hit]
                            [random.below(3) as usize],
                    })
                    .collect();
                now += probes.len() as u64;
                rule.observe(&probes, now);
            }
        }
        if random.below(3) > 0 {
            store.step(&mut *rule, budget, now);
        }
    }
}

#[test]
fn no_rule_ever_exceeds_the_budget() {
    for kind in RuleKind::ALL {
        for seed in 0..60 {
            random_history(kind, seed);
        }
    }
}

#[test]
fn a_rule_is_called_by_its_name() {
    for kind in RuleKind::ALL.into_iter().chain([RuleKind::Fixed { units: 4 }]) {
        assert_eq!(kind.to_string().parse(), Ok(kind));
    }
    for wrong in ["", "fixed:", "fixed:x", "fixed:300", "Classes"] {
        assert!(wrong.parse::<RuleKind>().is_err(), "{wrong}");
    }
}
