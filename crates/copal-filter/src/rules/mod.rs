//! Adjusting rules: which partition deserves how many units.
//!
//! Paper: elasticbf §3.2, §3.3. A rule is pure: it is told what Gets met and answers with changes; it reads no
//! page, takes no lock and knows no clock but the number of Gets. Engine, simulator and benches drive the same
//! code; any rule works with any kind of unit.
//!
//! Invariants
//! - The bytes of all units a rule has granted never exceed the budget it was last given, once its changes are
//!   carried out in order.
//! - Bytes are counted, never bits per key: units of different partitions differ in size.

use crate::Kind;

/// A partition as rules know it: a dense number that the engine gives out and may use again after `remove`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionId(pub u32);

/// What a rule has to know of a partition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Kind of its units.
    pub kind: Kind,
    /// Keys it holds.
    pub keys: u32,
    /// Bytes of memory that one loaded unit takes.
    pub unit_bytes: u32,
    /// Units its page holds.
    pub units: u8,
    /// Depth of the run it belongs to, 0 for the newest; only the per-run rule looks at it.
    pub level: u8,
}

/// What a probe of a partition came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The loaded units said no.
    Negative,
    /// They said maybe, or none was loaded, and the key was not there.
    FalsePositive,
    /// The key was there.
    Hit,
}

/// One probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Of which partition.
    pub partition: PartitionId,
    /// With which outcome.
    pub outcome: Outcome,
}

/// What a rule wants: `units` units of the partition loaded from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Of which partition.
    pub partition: PartitionId,
    /// How many, from the first on.
    pub units: u8,
}

/// How often a partition is probed in vain, in the rule's own measure; passed on when partitions are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Heat(pub f64);

/// See the module. Time (`now`) is the number of Gets of the store so far.
pub trait Rule: Send {
    /// A partition exists from now on, with `units` of its units in memory already and the heat it inherits.
    fn add(&mut self, partition: PartitionId, shape: Shape, heat: Heat, units: u8, now: u64);

    /// It is gone; its units are free.
    fn remove(&mut self, partition: PartitionId);

    /// How hot it is at `now`, for those that inherit it.
    fn heat(&self, partition: PartitionId, now: u64) -> Heat;

    /// Units that a new partition of this shape and heat would hold under the rule's present price of memory.
    fn predict(&self, shape: Shape, heat: Heat, now: u64) -> u8;

    /// Probes since the last call, oldest first. A sample is enough; order within it is kept.
    fn observe(&mut self, probes: &[Probe], now: u64);

    /// Changes to carry out in order; releases come before what they pay for. `budget_bytes` is what all loaded
    /// units together may take.
    fn step(&mut self, budget_bytes: u64, now: u64) -> Vec<Change>;

    /// The partition has `units` units, whatever was asked for: a change could not be carried out, or a probe
    /// found none in memory and loaded some, more than none.
    fn correct(&mut self, partition: PartitionId, units: u8);

    /// Bytes of all units it has granted.
    fn granted_bytes(&self) -> u64;
}
