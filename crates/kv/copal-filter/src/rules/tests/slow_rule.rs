//! The class rule against a slow form of it without lists, which examines every partition for each decision.

use super::support::{Random, Store, shape};
use crate::{
    Kind,
    rules::{
        Classes, ClassesOptions, Heat, Outcome, PartitionId, Probe, Rule, Shape,
        decay::{DecayClock, floor_log2},
        marginal,
    },
};
use std::collections::BTreeMap;

struct Part {
    shape: Shape,
    units: u8,
    heat: f64,
    /// Ascends from the LRU to the MRU end of any list.
    stamp: i64,
}

impl Part {
    fn gain(&self) -> f64 {
        marginal(self.shape.kind, self.heat, self.units)
    }

    fn loss(&self) -> f64 {
        marginal(self.shape.kind, self.heat, self.units - 1)
    }

    fn class(&self, benefit: f64) -> i64 {
        // All below one probe in 64 half-lives are one class.
        floor_log2(benefit / f64::from(self.shape.unit_bytes)).max(-64)
    }
}

/// Valid only for less than 40 half-lives: it does not let classes sink together.
struct SlowRule {
    options: ClassesOptions,
    parts: BTreeMap<u32, Part>,
    clock: DecayClock,
    stamps: i64,
    probed: Vec<u32>,
    budget: u64,
}

impl SlowRule {
    fn advance(&mut self, now: u64) {
        let half_life = self.options.half_life_gets * self.parts.len().max(1) as f64;
        assert!(!self.clock.advance(now, half_life), "too long for the slow rule");
    }

    fn granted(&self) -> u64 {
        let of = |part: &Part| u64::from(part.units) * u64::from(part.shape.unit_bytes);
        self.parts.values().map(of).sum()
    }

    fn stamp(&mut self, id: u32, mru: bool) {
        self.stamps += 1;
        let stamp = if mru { self.stamps } else { -self.stamps };
        if let Some(part) = self.parts.get_mut(&id) {
            part.stamp = stamp;
        }
    }

    fn add(&mut self, id: u32, shape: Shape, heat: f64, units: u8, now: u64) {
        self.remove(id);
        self.advance(now);
        self.parts.insert(id, Part { shape, units, heat: heat * self.clock.weight(), stamp: 0 });
        self.stamp(id, true);
    }

    fn remove(&mut self, id: u32) {
        self.parts.remove(&id);
        self.probed.retain(|&other| other != id);
    }

    fn observe(&mut self, probes: &[Probe], now: u64) {
        self.advance(now);
        for probe in probes {
            let id = probe.partition.0;
            let weight = self.clock.weight();
            if let Some(part) = self.parts.get_mut(&id).filter(|_| probe.outcome != Outcome::Hit) {
                part.heat += weight;
                self.stamp(id, true);
                if !self.probed.contains(&id) {
                    self.probed.push(id);
                }
            }
        }
    }

    /// All possible payers, cheapest class first, and within a class the longest untouched first.
    fn payers(&self) -> Vec<u32> {
        let mut payers: Vec<_> = self
            .parts
            .iter()
            .filter(|(_, part)| part.units > 0)
            .map(|(&id, part)| (part.class(part.loss()), part.stamp, id))
            .collect();
        payers.sort_unstable();
        payers.into_iter().map(|(_, _, id)| id).collect()
    }

    fn release(&mut self, id: u32) {
        if let Some(part) = self.parts.get_mut(&id) {
            part.units -= 1;
        }
        self.stamp(id, false);
    }

    fn promote(&mut self, id: u32) -> bool {
        let mut promoted = false;
        while let Some(part) = self.parts.get(&id).filter(|part| part.units < part.shape.units) {
            let gain = part.gain();
            let saved = gain / self.clock.weight() * std::f64::consts::LN_2;
            if gain <= 0.0 || !promoted && saved < self.options.min_saved_reads {
                break;
            }
            let needed = u64::from(part.shape.unit_bytes);
            if self.granted() > self.budget {
                break;
            }
            let (mut free, mut loss, mut chosen) = (self.budget - self.granted(), 0.0, Vec::new());
            for payer in self.payers() {
                if free < needed && payer != id && chosen.len() < 64 {
                    loss += self.parts[&payer].loss();
                    free += u64::from(self.parts[&payer].shape.unit_bytes);
                    chosen.push(payer);
                }
            }
            if free < needed || (!chosen.is_empty() && gain < self.options.gain_over_loss * loss) {
                break;
            }
            chosen.into_iter().for_each(|payer| self.release(payer));
            if let Some(part) = self.parts.get_mut(&id) {
                part.units += 1;
            }
            self.stamp(id, true);
            promoted = true;
        }
        promoted
    }

    fn step(&mut self, budget: u64, now: u64) {
        self.advance(now);
        self.budget = budget;
        while self.granted() > budget {
            let payer = self.payers()[0];
            self.release(payer);
        }
        loop {
            let growing = self.parts.iter().filter(|(_, part)| part.units < part.shape.units);
            let best =
                growing.max_by_key(|(_, part)| (part.class(part.gain()), part.stamp)).map(|(&id, _)| id);
            if !best.is_some_and(|id| self.promote(id)) {
                break;
            }
        }
        for id in std::mem::take(&mut self.probed) {
            self.promote(id);
        }
    }
}

/// Runs one random history through both; the units must be equal after every step.
fn agree(seed: u64, kinds: &[Kind]) -> u64 {
    let options = ClassesOptions { half_life_gets: 20.0, ..ClassesOptions::default() };
    let mut fast = Classes::new(options);
    let mut slow = SlowRule {
        options,
        parts: BTreeMap::new(),
        clock: DecayClock::new(),
        stamps: 0,
        probed: Vec::new(),
        budget: 0,
    };
    let (mut random, mut store, mut now) = (Random::new(seed), Store::default(), 0);
    let mut budget = 20_000;
    let mut moves = 0;
    for _ in 0..600 {
        match random.below(30) {
            0..=2 => {
                let kind = kinds[random.below(kinds.len() as u64) as usize];
                let shape = shape(kind, 200 + random.below(1800) as u32, 0);
                let (id, units, heat) =
                    (random.below(40) as u32, random.below(5) as u8, random.below(30) as f64);
                store.add(&mut fast, id, shape, heat, units, now);
                slow.add(id, shape, heat, units, now);
            }
            3 => {
                let id = random.below(40) as u32;
                store.remove(&mut fast, id);
                slow.remove(id);
            }
            4 => budget = 5000 + random.below(60_000),
            5 => {
                let id = random.below(40) as u32;
                if let Some((_, units)) = store.held.get_mut(&PartitionId(id)) {
                    *units = random.below(u64::from(*units) + 1) as u8;
                    fast.correct(PartitionId(id), *units);
                    slow.parts.get_mut(&id).unwrap().units = *units;
                    slow.stamp(id, true);
                }
            }
            _ => {
                let probes: Vec<Probe> = (0..1 + random.below(20))
                    .map(|_| Probe {
                        partition: PartitionId((random.below(40) * random.below(40) / 40) as u32),
                        outcome: [Outcome::Negative, Outcome::FalsePositive, Outcome::Hit]
                            [random.below(3) as usize],
                    })
                    .collect();
                now += 16;
                fast.observe(&probes, now);
                slow.observe(&probes, now);
            }
        }
        moves += store.step(&mut fast, budget, now).len() as u64;
        slow.step(budget, now);
        for (&PartitionId(id), &(_, units)) in &store.held {
            assert_eq!(units, slow.parts[&id].units, "partition {id}, seed {seed}, Get {now}");
            let heat = slow.parts[&id].heat / slow.clock.weight();
            assert_eq!(fast.heat(PartitionId(id), now), Heat(heat));
        }
        assert_eq!(fast.granted_bytes(), slow.granted());
    }
    moves
}

#[test]
fn lists_decide_as_a_look_at_every_partition_would() {
    let mut moves = 0;
    for seed in 0..25 {
        moves += agree(seed, &[Kind::Ribbon]);
        moves += agree(1000 + seed, &[Kind::Ribbon, Kind::Bloom]);
    }
    assert!(moves > 5000, "{moves} changes are no test");
}
