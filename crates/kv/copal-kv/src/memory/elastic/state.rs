//! State of the adjuster: the partitions that share a filter memory, and the rule that divides it.
//!
//! Invariants
//! - While no thread moves units, the charged bytes equal the grants of the rule.
//! - A pending change applies to one partition and one state of the rule's knowledge of it. It is void once
//!   the partition is removed, even if its number is reused, and once the rule got a new number of
//!   units.

use super::{filtered::FilteredTable, sample::MOST_PARTITIONS, slot::PartitionNumber};
use copal_filter::rules::{Change, Heat, Outcome, PartitionId, Probe, Rule, Shape};
use std::{
    collections::{HashSet, VecDeque},
    ptr,
    sync::Weak,
};

/// Sampled probes of one partition.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SeenProbes {
    pub(crate) negatives: u32,
    pub(crate) false_positives: u32,
    pub(crate) hits: u32,
}

impl SeenProbes {
    fn add(&mut self, outcome: Outcome) {
        let count = match outcome {
            Outcome::Negative => &mut self.negatives,
            Outcome::FalsePositive => &mut self.false_positives,
            Outcome::Hit => &mut self.hits,
        };
        *count = count.saturating_add(1);
    }
}

/// One partition.
pub(super) struct PartState {
    /// Identifies the table by its address, which no other table gets while this reference exists.
    pub(super) table: Weak<dyn FilteredTable>,
    /// Index of the partition in its table.
    pub(super) index: u32,
    pub(super) shape: Shape,
    /// Number of charged units: loaded, or being loaded while `moving`.
    pub(super) units: u8,
    /// A thread is reading its units.
    pub(super) moving: bool,
    pub(super) seen: SeenProbes,
    /// Stamp of the last report of its units to the rule: changes requested before are void.
    pub(super) reported: u64,
}

impl PartState {
    /// Bytes charged for the partition.
    fn bytes(&self) -> u64 {
        u64::from(self.units) * u64::from(self.shape.unit_bytes)
    }
}

/// A pending change that the rule requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct WantedUnits {
    pub(super) number: PartitionNumber,
    pub(super) units: u8,
    /// [`PartState::reported`] at the request.
    reported: u64,
}

/// State of the adjuster; see the module.
pub(super) struct ElasticState {
    pub(super) rule: Box<dyn Rule>,
    parts: Vec<Option<PartState>>,
    free: Vec<PartitionNumber>,
    /// Number of keys of all partitions.
    pub(super) keys: u64,
    /// Charged bytes of all units.
    pub(super) charged: u64,
    pending: VecDeque<WantedUnits>,
    /// Number of reports of units to the rule.
    reported: u64,
}

impl ElasticState {
    /// Approximate bytes that one partition costs here and in the table, without its units: entry, slot,
    /// header of the units, and state of a rule.
    pub(super) const PART_BYTES: u64 = (size_of::<Option<PartState>>() + 64 + 64) as u64;

    pub(super) fn new(rule: Box<dyn Rule>) -> ElasticState {
        ElasticState {
            rule,
            parts: Vec::new(),
            free: Vec::new(),
            keys: 0,
            charged: 0,
            pending: VecDeque::new(),
            reported: 0,
        }
    }

    /// Number of partitions.
    pub(super) fn partitions(&self) -> u64 {
        (self.parts.len() - self.free.len()) as u64
    }

    /// Registers a partition with the rule. `None`: there are too many.
    pub(super) fn insert(&mut self, mut part: PartState, heat: Heat, now: u64) -> Option<PartitionNumber> {
        let number = match self.free.pop() {
            Some(number) => number,
            None => {
                let number = u32::try_from(self.parts.len()).ok().filter(|n| *n < MOST_PARTITIONS)?;
                self.parts.push(None);
                PartitionNumber(number)
            }
        };
        self.keys += u64::from(part.shape.keys);
        self.charged += part.bytes();
        let (shape, units) = (part.shape, part.units);
        part.reported = self.next_stamp();
        self.rule.add(PartitionId(number.0), shape, heat, units, now);
        self.parts[number.0 as usize] = Some(part);
        Some(number)
    }

    /// Removes a partition; its number may be reused.
    pub(super) fn remove(&mut self, number: PartitionNumber) -> Option<PartState> {
        let part = self.parts.get_mut(number.0 as usize)?.take()?;
        self.rule.remove(PartitionId(number.0));
        self.keys -= u64::from(part.shape.keys);
        self.charged -= part.bytes();
        self.free.push(number);
        Some(part)
    }

    fn next_stamp(&mut self) -> u64 {
        self.reported += 1;
        self.reported
    }

    fn part(&mut self, number: PartitionNumber) -> Option<&mut PartState> {
        self.parts.get_mut(number.0 as usize)?.as_mut()
    }

    pub(super) fn get(&self, number: PartitionNumber) -> Option<&PartState> {
        self.parts.get(number.0 as usize)?.as_ref()
    }

    /// The partition, if `number` still names `index` of `table`.
    pub(super) fn same(
        &mut self,
        number: PartitionNumber,
        table: &dyn FilteredTable,
        index: u32,
    ) -> Option<&mut PartState> {
        self.part(number).filter(|part| part.index == index && ptr::addr_eq(part.table.as_ptr(), table))
    }

    /// Passes sampled probes to the rule.
    pub(super) fn observe(&mut self, probes: &[Probe], now: u64) {
        for probe in probes {
            if let Some(part) = self.part(PartitionNumber(probe.partition.0)) {
                part.seen.add(probe.outcome);
            }
        }
        self.rule.observe(probes, now);
    }

    /// Reports the present units of a partition to the rule.
    pub(super) fn correct(&mut self, number: PartitionNumber, units: u8) {
        self.rule.correct(PartitionId(number.0), units);
        let reported = self.next_stamp();
        if let Some(part) = self.part(number) {
            part.reported = reported;
        }
    }

    /// Runs the rule; its changes replace all pending ones.
    pub(super) fn ask(&mut self, budget_bytes: u64, now: u64) {
        for Change { partition, units } in self.rule.step(budget_bytes, now) {
            let number = PartitionNumber(partition.0);
            if let Some(reported) = self.get(number).map(|part| part.reported) {
                self.put_off(WantedUnits { number, units, reported });
            }
        }
        self.put_in_order();
    }

    /// Keeps only the last pending change of each partition, and puts releases before the loads that they pay
    /// for.
    fn put_in_order(&mut self) {
        let mut seen = HashSet::new();
        let mut wanted: Vec<WantedUnits> = self.pending.drain(..).rev().collect();
        wanted.retain(|wanted| self.wants(wanted).is_some() && seen.insert(wanted.number));
        let releases =
            |wanted: &WantedUnits| self.wants(wanted).is_some_and(|part| wanted.units < part.units);
        let (releases, loads): (Vec<WantedUnits>, Vec<WantedUnits>) =
            wanted.into_iter().rev().partition(releases);
        self.pending.extend(releases);
        self.pending.extend(loads);
    }

    /// The partition of a change, unless the change is void.
    pub(super) fn wants(&self, wanted: &WantedUnits) -> Option<&PartState> {
        self.get(wanted.number).filter(|part| part.reported == wanted.reported)
    }

    /// Takes the next change that is not void.
    pub(super) fn next_wanted(&mut self) -> Option<WantedUnits> {
        loop {
            let wanted = self.pending.pop_front()?;
            if self.wants(&wanted).is_some() {
                return Some(wanted);
            }
        }
    }

    /// Takes all pending changes.
    pub(super) fn take_wanted(&mut self) -> VecDeque<WantedUnits> {
        std::mem::take(&mut self.pending)
    }

    /// Puts a change at the end of the queue.
    pub(super) fn put_off(&mut self, wanted: WantedUnits) {
        self.pending.push_back(wanted);
    }

    /// Sets the charged units of a partition.
    pub(super) fn set_units(&mut self, number: PartitionNumber, units: u8, moving: bool) {
        let Some(part) = self.parts.get_mut(number.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        self.charged -= part.bytes();
        (part.units, part.moving) = (units, moving);
        self.charged += part.bytes();
    }
}
