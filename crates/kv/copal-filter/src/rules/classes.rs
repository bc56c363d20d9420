//! Classes, the default rule: gives units to the partitions where they save most reads per byte.
//!
//! Differs from elasticbf §3.2, §3.3 in its counts, its decay and its choice of payers. Minimising
//! `sum f_i fpr(k_i)` under a number of bytes is convex. So the greedy choice by marginal benefit per byte is
//! optimal to within one unit.
//!
//! Partitions are in two families of LRU lists, indexed by log2 of that benefit: the gain of the next unit,
//! and the loss of the last one. Promotions come from the top of the first, payers from the LRU end of the
//! bottom of the second: O(1) each.
//!
//! - Heat counts negative probes only: a true hit gains nothing from a filter.
//! - Decay is forward ([`decay`](super::decay)), half-life 32 Gets per partition.
//! - Hysteresis: a unit moves only if it gains twice the loss of its payers. The first unit of a promotion
//!   must also save a read per half-life, the cost of loading it.
//! - One read gets all units, so a promotion takes every unit that passes at once.
//!
//! Invariants
//! - A partition is in the gain list of its class exactly if it could have one more unit. It is in the loss
//!   list of its class exactly if it has any.
//! - Lists are a ring of 128 classes that moves with the age; partitions that sink below the ring are in its
//!   lowest list.

mod ring;
mod trade;

use super::{
    Change, Heat, PartitionId, Probe, Rule, Shape,
    decay::{DecayClock, floor_log2},
    ledger::{self, UnitLedger},
    marginal,
};
use crate::rules::Outcome;
use copal_market::{ByteWorth, ColumnOffer};
use ring::ClassRing;

/// Parameters; the defaults are those of the design.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClassesOptions {
    /// Half-life of heat, in Gets per partition.
    pub half_life_gets: f64,
    /// Ratio of gain to loss below which nothing moves.
    pub gain_over_loss: f64,
    /// Reads per half-life that the first unit of a promotion must save.
    pub min_saved_reads: f64,
    /// Count true hits as well; only to measure the cost of that.
    pub count_hits: bool,
}

impl Default for ClassesOptions {
    fn default() -> ClassesOptions {
        ClassesOptions { half_life_gets: 32.0, gain_over_loss: 2.0, min_saved_reads: 1.0, count_hits: false }
    }
}

/// Most partitions that give units for one new unit: their units may be smaller.
const MAX_PAYERS: usize = 64;

/// Bytes for each partition: ledger, heat, both rings, its flag and place in the probed list.
pub(super) const PARTITION_BYTES: usize = ledger::PARTITION_BYTES
    + size_of::<f64>()
    + 2 * ring::NODE_BYTES
    + size_of::<bool>()
    + size_of::<PartitionId>();

/// The classes rule; see the module.
pub struct Classes {
    options: ClassesOptions,
    ledger: UnitLedger,
    clock: DecayClock,
    heat: Vec<f64>,
    /// Partitions by the gain of the next unit, per byte.
    gain: ClassRing,
    /// Partitions by the loss of the last unit, per byte.
    loss: ClassRing,
    /// Partitions with negative probes since the last step, in the order of the first probe.
    probed: Vec<PartitionId>,
    is_probed: Vec<bool>,
    unit_bytes: u64,
    payers: Vec<PartitionId>,
    /// Price of a byte outside of this rule, as last offered; `None`: without a market.
    price: Option<f64>,
}

impl Default for Classes {
    fn default() -> Classes {
        Classes::new(ClassesOptions::default())
    }
}

/// End of a list at which a partition is put.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListEnd {
    Mru,
    Lru,
}

impl Classes {
    /// A rule without partitions.
    pub fn new(options: ClassesOptions) -> Classes {
        Classes {
            options,
            ledger: UnitLedger::default(),
            clock: DecayClock::new(),
            heat: Vec::new(),
            gain: ClassRing::new(),
            loss: ClassRing::new(),
            probed: Vec::new(),
            is_probed: Vec::new(),
            unit_bytes: 0,
            payers: Vec::new(),
            price: None,
        }
    }

    fn half_life(&self) -> f64 {
        self.options.half_life_gets * self.ledger.partitions().max(1) as f64
    }

    fn advance(&mut self, now: u64) {
        if self.clock.advance(now, self.half_life()) {
            self.heat.iter_mut().for_each(|heat| *heat *= DecayClock::SCALE);
        }
        let half_lives = self.clock.half_lives();
        self.gain.follow(half_lives);
        self.loss.follow(half_lives);
    }

    fn heat_of(&self, partition: PartitionId) -> f64 {
        self.heat[partition.0 as usize]
    }

    /// Weighted negative probes that the next unit answers.
    fn next_gain(&self, partition: PartitionId, shape: Shape, units: u8) -> f64 {
        marginal(shape.kind, self.heat_of(partition), units)
    }

    /// Weighted negative probes that the last unit answers.
    fn last_loss(&self, partition: PartitionId, shape: Shape, units: u8) -> f64 {
        marginal(shape.kind, self.heat_of(partition), units.saturating_sub(1))
    }

    /// Puts the partition into the lists of its heat and units.
    fn hang(&mut self, partition: PartitionId, end: ListEnd) {
        let Some((shape, units)) = self.ledger.get(partition) else {
            return;
        };
        let bytes = f64::from(shape.unit_bytes);
        let class = |benefit: f64| floor_log2(benefit / bytes) + self.clock.origin();
        let next = class(self.next_gain(partition, shape, units));
        let last = class(self.last_loss(partition, shape, units));
        let mru = end == ListEnd::Mru;
        self.gain.hang(partition.0, (units < shape.units).then_some(next), mru);
        self.loss.hang(partition.0, (units > 0).then_some(last), mru);
    }

    fn set(&mut self, partition: PartitionId, units: u8, end: ListEnd) {
        self.ledger.set(partition, units);
        self.hang(partition, end);
    }

    /// Releases one unit of the partition.
    fn release(&mut self, partition: PartitionId) {
        if let Some((_, units)) = self.ledger.get(partition) {
            self.set(partition, units.saturating_sub(1), ListEnd::Lru);
        }
    }

    /// Loads all units of the partition that pass the thresholds; true if there was one.
    fn promote(&mut self, partition: PartitionId) -> bool {
        let mut promoted = false;
        while let Some((shape, units)) = self.ledger.get(partition)
            && units < shape.units
        {
            let gain = self.next_gain(partition, shape, units);
            let pays = promoted || self.saved_reads(gain) >= self.options.min_saved_reads;
            // Moves without a gain would never end.
            if gain <= 0.0 || !pays || !self.find_payers(partition, shape, gain) {
                break;
            }
            let payers = std::mem::take(&mut self.payers);
            for &payer in &payers {
                self.release(payer);
            }
            self.payers = payers;
            self.set(partition, units + 1, ListEnd::Mru);
            promoted = true;
        }
        promoted
    }

    /// Reads per half-life of weighted probes: at a steady rate, ln 2 of their present value.
    fn saved_reads(&self, weighted: f64) -> f64 {
        weighted / self.clock.weight() * std::f64::consts::LN_2
    }

    /// Finds releases with a small enough loss that make room for one unit of `shape`; leaves them in
    /// `self.payers`.
    fn find_payers(&mut self, partition: PartitionId, shape: Shape, gain: f64) -> bool {
        self.payers.clear();
        let needed = u64::from(shape.unit_bytes);
        let mut free = self.ledger.free_bytes();
        let mut loss = 0.0;
        if self.ledger.over_budget() {
            return false;
        }
        for payer in self.loss.nodes_upwards().map(PartitionId) {
            if free >= needed {
                break;
            }
            let Some((of, units)) = self.ledger.get(payer) else {
                return false;
            };
            if payer == partition {
                continue;
            }
            loss += self.last_loss(payer, of, units);
            if gain < self.options.gain_over_loss * loss || self.payers.len() == MAX_PAYERS {
                return false;
            }
            free += u64::from(of.unit_bytes);
            self.payers.push(payer);
        }
        free >= needed
    }

    /// Loss per byte of the cheapest loaded unit; 0 while memory for a unit of `bytes` is free.
    fn price(&self, bytes: u64) -> f64 {
        if self.ledger.free_bytes() >= bytes {
            return 0.0;
        }
        let payer = self.loss.nodes_upwards().map(PartitionId).next();
        payer
            .and_then(|payer| self.ledger.get(payer).map(|(of, units)| (payer, of, units)))
            .map_or(0.0, |(payer, of, units)| {
                self.last_loss(payer, of, units) / f64::from(of.unit_bytes.max(1))
            })
    }
}

impl Rule for Classes {
    fn add(&mut self, partition: PartitionId, shape: Shape, heat: Heat, units: u8, now: u64) {
        self.remove(partition);
        self.advance(now);
        let shape = Shape { unit_bytes: shape.unit_bytes.max(1), ..shape };
        self.ledger.insert(partition, shape, units);
        self.unit_bytes += u64::from(shape.unit_bytes);
        let at = partition.0 as usize;
        if at >= self.heat.len() {
            self.heat.resize(at + 1, 0.0);
            self.is_probed.resize(at + 1, false);
        }
        self.heat[at] = heat.0.max(0.0) * self.clock.weight();
        self.is_probed[at] = false;
        self.hang(partition, ListEnd::Mru);
    }

    fn remove(&mut self, partition: PartitionId) {
        if let Some(shape) = self.ledger.remove(partition) {
            self.unit_bytes -= u64::from(shape.unit_bytes);
            self.gain.hang(partition.0, None, false);
            self.loss.hang(partition.0, None, false);
            if self.is_probed[partition.0 as usize] {
                self.probed.retain(|&of| of != partition);
            }
        }
    }

    /// Negative probes, each halved for every half-life since.
    fn heat(&self, partition: PartitionId, now: u64) -> Heat {
        let known = self.ledger.get(partition).is_some();
        let heat = if known { self.heat_of(partition) } else { 0.0 };
        Heat(heat / self.clock.weight_at(now, self.half_life()))
    }

    /// While memory is free, at least its even share; later, the units that are worth more than the cheapest
    /// loaded one.
    fn predict(&self, shape: Shape, heat: Heat, now: u64) -> u8 {
        if let Some(price) = self.price {
            return self.predict_at(price, shape, heat, now);
        }
        let bytes = u64::from(shape.unit_bytes.max(1));
        let even = (self.ledger.budget() / (self.unit_bytes + bytes)).min(u64::from(shape.units)) as u8;
        let even_is_free = self.ledger.free_bytes() >= u64::from(even) * bytes;
        let price = self.price(bytes);
        let weighted = heat.0 * self.clock.weight_at(now, self.half_life());
        // They need no read, so they need not save one; but free memory is not used for units that save
        // nothing.
        let least = if price > 0.0 { 0.0 } else { self.options.min_saved_reads };
        let worth = |&units: &u8| {
            let gain = marginal(shape.kind, weighted, units - 1);
            gain / bytes as f64 > price && self.saved_reads(gain) >= least
        };
        let worth = (1..=shape.units).take_while(worth).last().unwrap_or(0);
        if even_is_free { worth.max(even) } else { worth }
    }

    fn observe(&mut self, probes: &[Probe], now: u64) {
        self.advance(now);
        let weight = self.clock.weight();
        for probe in probes {
            let counts = probe.outcome != Outcome::Hit || self.options.count_hits;
            if !counts || self.ledger.get(probe.partition).is_none() {
                continue;
            }
            let at = probe.partition.0 as usize;
            self.heat[at] += weight;
            self.hang(probe.partition, ListEnd::Mru);
            if !self.is_probed[at] {
                self.is_probed[at] = true;
                self.probed.push(probe.partition);
            }
        }
    }

    fn step(&mut self, budget_bytes: u64, now: u64) -> Vec<Change> {
        self.advance(now);
        self.ledger.set_budget(budget_bytes);
        while self.ledger.over_budget()
            && let Some(payer) = self.loss.bottom()
        {
            self.release(PartitionId(payer));
        }
        // Newly available memory goes to the partitions with the highest gain, probed or not.
        while let Some(best) = self.gain.top()
            && self.promote(PartitionId(best))
        {}
        // Only a probe makes a partition hotter than the rest.
        for partition in std::mem::take(&mut self.probed) {
            self.is_probed[partition.0 as usize] = false;
            self.promote(partition);
        }
        self.ledger.changes()
    }

    fn worth(&self) -> ByteWorth {
        self.unit_worth()
    }

    fn trade(&mut self, offer: &ColumnOffer, now: u64) -> Vec<Change> {
        self.trade_at(offer, now)
    }

    fn correct(&mut self, partition: PartitionId, units: u8) {
        self.ledger.correct(partition, units);
        self.hang(partition, ListEnd::Mru);
    }

    fn granted_bytes(&self) -> u64 {
        self.ledger.granted()
    }
}
