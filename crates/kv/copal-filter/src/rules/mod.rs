//! Adjusting rules: which partition deserves how many units.
//!
//! Paper: elasticbf §3.2, §3.3. A rule is pure: it is told what Gets met and answers with changes; it reads
//! no page, takes no lock and knows no clock but the number of Gets. Engine, simulator and benches drive the
//! same code; any rule works with any kind of unit.
//!
//! Invariants
//! - The bytes of all units a rule has granted never exceed the budget it was last given, once its changes
//!   are carried out in order.
//! - Bytes are counted, never bits per key: units of different partitions differ in size.
//!
//! Every rule does its work in [`Rule::step`]; [`Rule::observe`] only takes notes. One step answers with net
//! changes, at most one for each partition, releases first: carried out in order they are within the budget
//! at every moment, also where the engine is slower than the rule.
//! Not here: the threads that sample Gets and carry changes out (`copal-kv`).

mod classes;
mod decay;
mod fixed;
mod kind;
mod ledger;
mod lists;
mod monkey;
pub mod optimum;
mod paper;
#[cfg(test)]
mod tests;

pub use classes::{Classes, ClassesOptions};
pub use fixed::Fixed;
pub use kind::{RuleKind, UnknownRule};
pub use monkey::Monkey;
pub use paper::{LifeTime, NewHeat, PaperMq, PaperMqOptions};

use crate::{Kind, MAX_UNITS};
use std::sync::LazyLock;

/// Bytes of memory that any rule takes for each partition at most, with what growing vectors hold in reserve.
pub const BYTES_PER_PARTITION: usize = {
    let (classes, paper) = (classes::PARTITION_BYTES, paper::PARTITION_BYTES);
    2 * if classes > paper { classes } else { paper }
};

/// The paper counts 4 bytes for `expiredTime` and takes the table's own descriptor for granted; here all of
/// it.
const _: () = assert!(BYTES_PER_PARTITION <= 136);

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

    /// Changes to carry out in order; releases come before what they pay for. `budget_bytes` is what all
    /// loaded units together may take.
    fn step(&mut self, budget_bytes: u64, now: u64) -> Vec<Change>;

    /// The partition has `units` units, whatever the rule believed: a change could not be carried out for
    /// now, or a look-up that found none loaded has read the page instead of the data (cold start).
    ///
    /// A page that will never load is another matter: `remove` the partition and `add` it with a shape of 0
    /// units, or the rule asks again.
    fn correct(&mut self, partition: PartitionId, units: u8);

    /// Bytes of all units it has granted.
    fn granted_bytes(&self) -> u64;
}

/// Heat of a new partition out of those it replaces: of each, `(its heat, its keys that moved here, its
/// keys)`.
///
/// Give the partitions of the oldest input that covers the range only: Gets that missed there are exactly
/// those that missed in all newer inputs too, so the rate of negative probes survives the merge; adding up
/// the inputs would count one Get several times.
pub fn inherit(from: impl IntoIterator<Item = (Heat, u32, u32)>) -> Heat {
    let share = |(heat, moved, keys): (Heat, u32, u32)| match keys {
        0 => 0.0,
        keys => heat.0 * f64::from(moved.min(keys)) / f64::from(keys),
    };
    Heat(from.into_iter().map(share).sum())
}

/// Class of a partition: log2 of the reads that its next unit saves, per byte; `None` where nothing is saved.
///
/// Two partitions of one class deserve their next unit alike, whatever they hold now. For Ribbon columns this
/// is `floor(log2(heat / bytes)) - units - 1`.
pub fn class(shape: Shape, heat: Heat, units: u8) -> Option<i32> {
    let gain = marginal(shape.kind, heat.0, units) / f64::from(shape.unit_bytes.max(1));
    (units < shape.units && gain > 0.0).then(|| gain.log2().floor() as i32)
}

/// Negative probes out of `heat` that one unit more than `units` answers without a read.
#[inline]
fn marginal(kind: Kind, heat: f64, units: u8) -> f64 {
    heat * SAVED[kind as usize][usize::from(units.min(MAX_UNITS))]
}

/// By kind and units: what one unit more takes off the false positive rate.
static SAVED: LazyLock<[[f64; MAX_UNITS as usize + 1]; 4]> = LazyLock::new(|| {
    let mut saved = [[0.0; MAX_UNITS as usize + 1]; 4];
    for kind in [Kind::Ribbon, Kind::Bloom] {
        for units in 0..=MAX_UNITS {
            saved[kind as usize][usize::from(units)] = kind.fpr(units) - kind.fpr(units + 1);
        }
    }
    saved
});
