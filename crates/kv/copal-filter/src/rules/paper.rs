//! The paper's rule: expected extra I/O, and a Multi-Queue with expiry that finds the payers.
//!
//! Paper: elasticbf §3.2, §3.3. In its words:
//! - LRU queues Q_0..Q_m; Q_i holds the tables with exactly i units enabled.
//! - `expiredTime = currentTime + lifeTime` at insertion into a queue and at every read, in Gets.
//! - Each access adds one to the table's frequency. If one more unit there, paid by disabling units of other
//!   tables, lowers `E[Extra_IO] = sum of f_i * fp_i` at equal memory, it is done.
//! - Payers are sought from Q_m down to Q_1, in each from the LRU side. An expired table goes to the next
//!   lower queue and releases one unit. The first table that is not expired ends the search of its queue.
//! - The search ends once there is room. Without enough room the adjustment is skipped.
//!
//! Where the paper is silent: payers are taken only if the change goes through; a smaller budget is met from
//! Q_m down without regard to expiry.
//! Invariant: an adjustment never raises E.
//! Heat here is the paper's frequency: every access counts, hits too, and nothing ages.

use super::{
    Change, Heat, PartitionId, Probe, Rule, Shape,
    ledger::{self, UnitLedger},
    lists::{self, LruLists},
    marginal,
};
use crate::MAX_UNITS;

/// Gets without an access after which a table is expired.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LifeTime {
    /// This number of Gets.
    Gets(u64),
    /// This number for each partition; the paper has 20,000 for 50,000 tables.
    PerPartition(f64),
}

/// Frequency that a new table starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewHeat {
    /// None; the paper says nothing else.
    Zero,
    /// The heat that the driver passes on from the tables it was merged from.
    Inherited,
    /// The mean of the queue it enters, as the authors' later prototype does.
    QueueMean,
}

/// Permitted deviations from the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PaperMqOptions {
    /// See [`LifeTime`].
    pub life_time: LifeTime,
    /// Adjust only if E falls by more than this part of itself; 0 is the paper.
    pub min_relative_gain: f64,
    /// See [`NewHeat`].
    pub new_heat: NewHeat,
}

impl Default for PaperMqOptions {
    fn default() -> PaperMqOptions {
        PaperMqOptions {
            life_time: LifeTime::PerPartition(0.4),
            min_relative_gain: 0.0,
            new_heat: NewHeat::Zero,
        }
    }
}

#[derive(Clone, Copy, Default)]
struct PaperTable {
    frequency: f64,
    /// `expiredTime` is this plus `lifeTime`; stored without it, since `lifeTime` may follow the number of
    /// tables.
    accessed: u64,
    /// The queue that contains it.
    queue: Option<u8>,
}

/// Bytes for each partition: ledger, queues, frequency and time.
pub(super) const PARTITION_BYTES: usize =
    ledger::PARTITION_BYTES + lists::NODE_BYTES + size_of::<PaperTable>();

/// The paper's rule; see the module.
pub struct PaperMq {
    options: PaperMqOptions,
    ledger: UnitLedger,
    queues: LruLists,
    tables: Vec<PaperTable>,
    expected_extra_io: f64,
    accesses: Vec<(PartitionId, u64)>,
    payers: Vec<PartitionId>,
}

impl Default for PaperMq {
    fn default() -> PaperMq {
        PaperMq::new(PaperMqOptions::default())
    }
}

impl PaperMq {
    /// All queues empty.
    pub fn new(options: PaperMqOptions) -> PaperMq {
        PaperMq {
            options,
            ledger: UnitLedger::default(),
            queues: LruLists::new(usize::from(MAX_UNITS) + 1),
            tables: Vec::new(),
            expected_extra_io: 0.0,
            accesses: Vec::new(),
            payers: Vec::new(),
        }
    }

    /// `E[Extra_IO]`, updated by differences.
    pub fn expected_extra_io(&self) -> f64 {
        self.expected_extra_io
    }

    /// The tables of Q_`units`, from the LRU side to the MRU side.
    pub fn queue(&self, units: u8) -> Vec<PartitionId> {
        self.queues.iter(usize::from(units)).map(PartitionId).collect()
    }

    /// Time after which a table is expired if it is not accessed again; `None` for an unknown table.
    pub fn expired_time(&self, partition: PartitionId) -> Option<u64> {
        self.ledger.get(partition)?;
        Some(self.tables[partition.0 as usize].accessed.saturating_add(self.life_time()))
    }

    fn life_time(&self) -> u64 {
        match self.options.life_time {
            LifeTime::Gets(gets) => gets,
            LifeTime::PerPartition(gets) => (gets * self.ledger.partitions() as f64) as u64,
        }
    }

    fn is_expired(&self, partition: PartitionId, now: u64) -> bool {
        self.expired_time(partition).is_some_and(|time| now > time)
    }

    /// Puts the table into the queue of its units, with a new `expiredTime`.
    fn enqueue(&mut self, partition: PartitionId, units: u8, now: u64) {
        self.dequeue(partition);
        self.queues.push_mru(usize::from(units), partition.0);
        let table = &mut self.tables[partition.0 as usize];
        (table.queue, table.accessed) = (Some(units), now);
    }

    fn dequeue(&mut self, partition: PartitionId) {
        if let Some(queue) = self.tables[partition.0 as usize].queue.take() {
            self.queues.remove(usize::from(queue), partition.0);
        }
    }

    /// Sets the units, updates E, and moves the table to its queue.
    fn assign(&mut self, partition: PartitionId, units: u8, now: u64) {
        let Some((shape, before)) = self.ledger.get(partition) else {
            return;
        };
        let frequency = self.tables[partition.0 as usize].frequency;
        self.expected_extra_io += frequency * (shape.kind.fpr(units) - shape.kind.fpr(before));
        self.ledger.set(partition, units);
        self.enqueue(partition, units, now);
    }

    /// One access: increases the frequency, renews `expiredTime`, and may enable one more unit.
    fn access(&mut self, partition: PartitionId, now: u64) {
        let Some((shape, units)) = self.ledger.get(partition) else {
            return;
        };
        self.tables[partition.0 as usize].frequency += 1.0;
        self.expected_extra_io += shape.kind.fpr(units);
        self.enqueue(partition, units, now);
        if units < shape.units {
            self.adjust(partition, shape, units, now);
        }
    }

    /// Enables one more unit if expired tables make room for it and E falls.
    fn adjust(&mut self, partition: PartitionId, shape: Shape, units: u8, now: u64) {
        let mut free = self.ledger.free_bytes();
        let mut loss = 0.0;
        let mut payers = std::mem::take(&mut self.payers);
        payers.clear();
        for queue in (1..=usize::from(MAX_UNITS)).rev() {
            for payer in self.queues.iter(queue).map(PartitionId) {
                if free >= u64::from(shape.unit_bytes) || !self.is_expired(payer, now) {
                    break;
                }
                let Some((of, held)) = self.ledger.get(payer) else {
                    break;
                };
                free += u64::from(of.unit_bytes);
                loss += marginal(of.kind, self.tables[payer.0 as usize].frequency, held - 1);
                payers.push(payer);
            }
        }
        let gain = marginal(shape.kind, self.tables[partition.0 as usize].frequency, units);
        let wanted = self.options.min_relative_gain * self.expected_extra_io;
        if free >= u64::from(shape.unit_bytes) && gain - loss > wanted {
            for &payer in &payers {
                self.release(payer, now);
            }
            self.assign(partition, units + 1, now);
        }
        self.payers = payers;
    }

    /// Moves the table one queue down and releases one unit.
    fn release(&mut self, partition: PartitionId, now: u64) {
        if let Some((_, units)) = self.ledger.get(partition) {
            self.assign(partition, units.saturating_sub(1), now);
        }
    }

    /// Meets a budget that has become smaller, or has been exceeded by cold starts.
    fn shed(&mut self, now: u64) {
        for queue in (1..=usize::from(MAX_UNITS)).rev() {
            while self.ledger.over_budget()
                && let Some(payer) = self.queues.lru(queue)
            {
                self.release(PartitionId(payer), now);
            }
        }
    }

    fn mean_frequency(&self, queue: u8) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for table in self.queues.iter(usize::from(queue)) {
            sum += self.tables[table as usize].frequency;
            count += 1.0;
        }
        if count > 0.0 { sum / count } else { 0.0 }
    }
}

impl Rule for PaperMq {
    fn add(&mut self, partition: PartitionId, shape: Shape, heat: Heat, units: u8, now: u64) {
        self.remove(partition);
        let units = units.min(shape.units);
        let frequency = match self.options.new_heat {
            NewHeat::Zero => 0.0,
            NewHeat::Inherited => heat.0,
            NewHeat::QueueMean => self.mean_frequency(units),
        };
        self.ledger.insert(partition, shape, units);
        let at = partition.0 as usize;
        if at >= self.tables.len() {
            self.tables.resize(at + 1, PaperTable::default());
        }
        self.tables[at].frequency = frequency;
        self.expected_extra_io += frequency * shape.kind.fpr(units);
        self.enqueue(partition, units, now);
    }

    fn remove(&mut self, partition: PartitionId) {
        let Some((shape, units)) = self.ledger.get(partition) else {
            return;
        };
        self.expected_extra_io -= self.tables[partition.0 as usize].frequency * shape.kind.fpr(units);
        self.ledger.remove(partition);
        self.dequeue(partition);
        self.accesses.retain(|&(of, _)| of != partition);
    }

    fn heat(&self, partition: PartitionId, _now: u64) -> Heat {
        let known = self.ledger.get(partition).is_some();
        Heat(if known { self.tables[partition.0 as usize].frequency } else { 0.0 })
    }

    /// None: the paper's tables start in Q_0.
    fn predict(&self, _shape: Shape, _heat: Heat, _now: u64) -> u8 {
        0
    }

    fn observe(&mut self, probes: &[Probe], now: u64) {
        self.accesses.extend(probes.iter().map(|probe| (probe.partition, now)));
    }

    fn step(&mut self, budget_bytes: u64, now: u64) -> Vec<Change> {
        self.ledger.set_budget(budget_bytes);
        self.shed(now);
        for (partition, at) in std::mem::take(&mut self.accesses) {
            self.access(partition, at);
        }
        self.ledger.changes()
    }

    fn correct(&mut self, partition: PartitionId, units: u8) {
        let Some((shape, before)) = self.ledger.get(partition) else {
            return;
        };
        let units = units.min(shape.units);
        if units == before {
            return;
        }
        let PaperTable { frequency, accessed, .. } = self.tables[partition.0 as usize];
        self.expected_extra_io += frequency * (shape.kind.fpr(units) - shape.kind.fpr(before));
        self.ledger.correct(partition, units);
        self.enqueue(partition, units, accessed);
    }

    fn granted_bytes(&self) -> u64 {
        self.ledger.granted()
    }
}
