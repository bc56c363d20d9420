//! Adjusting rules: they decide how many units each partition has in memory.
//!
//! Paper: elasticbf §3.2, §3.3. A rule is pure: it gets outcomes of probes and returns changes. It reads no
//! page, takes no lock, and its only clock is the number of Gets. Engine, simulator and benches drive the
//! same code; any rule works with any kind of unit.
//!
//! Invariants
//! - Once a rule's changes are carried out in order, the bytes of all granted units do not exceed the last
//!   given budget.
//! - Bytes are counted, never bits per key: units of different partitions differ in size.
//!
//! Every rule does its work in [`Rule::step`]; [`Rule::observe`] only records. One step returns net changes,
//! at most one for each partition, releases first. Carried out in order, they are within the budget at every
//! moment, even if the engine is slower than the rule.
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
use copal_market::{ByteWorth, ColumnOffer};
use std::sync::LazyLock;

/// Limit of any rule's memory for each partition, with the spare capacity of growing vectors.
pub const BYTES_PER_PARTITION: usize = {
    let (classes, paper) = (classes::PARTITION_BYTES, paper::PARTITION_BYTES);
    2 * if classes > paper { classes } else { paper }
};

/// The paper counts 4 bytes for `expiredTime` and not the table's own descriptor; this counts all of it.
const _: () = assert!(BYTES_PER_PARTITION <= 136);

/// A partition as rules know it: a dense number that the engine assigns and may reuse after `remove`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PartitionId(pub u32);

/// Properties of a partition that a rule needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Kind of its units.
    pub kind: Kind,
    /// Number of its keys.
    pub keys: u32,
    /// Bytes of memory of one loaded unit.
    pub unit_bytes: u32,
    /// Units of its page.
    pub units: u8,
    /// Depth of its run, 0 for the newest; only the per-run rule uses it.
    pub level: u8,
}

/// Outcome of a probe of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The loaded units excluded the key.
    Negative,
    /// The units admitted the key, or none was loaded, and the key was absent.
    FalsePositive,
    /// The key was present.
    Hit,
}

/// One probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The probed partition.
    pub partition: PartitionId,
    /// Its outcome.
    pub outcome: Outcome,
}

/// A rule's decision: `units` units of the partition should be loaded from now on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The partition.
    pub partition: PartitionId,
    /// Number of units, counted from the first.
    pub units: u8,
}

/// Rate of negative probes of a partition, in the rule's own measure; inherited when partitions are merged.
#[derive(Clone, Copy, Debug, Default, PartialEq, PartialOrd)]
pub struct Heat(pub f64);

/// A rule; see the module. Time (`now`) is the number of Gets of the store so far.
pub trait Rule: Send {
    /// Adds a partition that has `units` units in memory already and the given inherited heat.
    fn add(&mut self, partition: PartitionId, shape: Shape, heat: Heat, units: u8, now: u64);

    /// Removes a partition; its units are free.
    fn remove(&mut self, partition: PartitionId);

    /// Heat at `now`, for partitions that inherit it.
    fn heat(&self, partition: PartitionId, now: u64) -> Heat;

    /// Units that a new partition of this shape and heat would get at the rule's present price of memory.
    fn predict(&self, shape: Shape, heat: Heat, now: u64) -> u8;

    /// Probes since the last call, oldest first. A sample is enough, if it keeps the order.
    fn observe(&mut self, probes: &[Probe], now: u64);

    /// Returns changes to carry out in order; releases come before the loads that they pay for.
    /// `budget_bytes` is the limit of all loaded units together.
    fn step(&mut self, budget_bytes: u64, now: u64) -> Vec<Change>;

    /// Worth of one byte more and one byte less of units, in reads per byte and Get.
    ///
    /// A rule that does not know is worth nothing more, and gives nothing.
    fn worth(&self) -> ByteWorth {
        ByteWorth { gain: 0.0, loss: f64::INFINITY }
    }

    /// Like [`Rule::step`], with the memory of a market: its free bytes, and bytes that are bought at its
    /// price. Bought bytes are
    /// at most `offer.for_sale`.
    fn trade(&mut self, offer: &ColumnOffer, now: u64) -> Vec<Change> {
        self.step(self.granted_bytes() + offer.free_bytes, now)
    }

    /// Corrects the number of units, against the rule's record. Either a change could not be carried out for
    /// now, or a look-up without loaded units has read the page instead of the data (cold start).
    ///
    /// For a page that can never be loaded, `remove` the partition and `add` it with a shape of 0 units, or
    /// the rule requests it again.
    fn correct(&mut self, partition: PartitionId, units: u8);

    /// Bytes of all granted units.
    fn granted_bytes(&self) -> u64;
}

/// Heat of a new partition from those that it replaces, each given as
/// `(its heat, its keys that moved here, its keys)`.
///
/// Pass only the partitions of the oldest input that covers the range. Gets that missed there are exactly
/// those that missed in all newer inputs too, so the rate of negative probes survives the merge. A sum over
/// the inputs would count one Get several times.
pub fn inherit(from: impl IntoIterator<Item = (Heat, u32, u32)>) -> Heat {
    let share = |(heat, moved, keys): (Heat, u32, u32)| match keys {
        0 => 0.0,
        keys => heat.0 * f64::from(moved.min(keys)) / f64::from(keys),
    };
    Heat(from.into_iter().map(share).sum())
}

/// Class of a partition: log2 of the reads that its next unit saves, per byte; `None` if it saves none.
///
/// Two partitions of one class have the same claim to their next unit, however many they have now. For Ribbon
/// columns the class is `floor(log2(heat / bytes)) - units - 1`.
pub fn class(shape: Shape, heat: Heat, units: u8) -> Option<i32> {
    let gain = marginal(shape.kind, heat.0, units) / f64::from(shape.unit_bytes.max(1));
    (units < shape.units && gain > 0.0).then(|| gain.log2().floor() as i32)
}

/// Negative probes of `heat` that the next unit after `units` answers without a read.
#[inline]
fn marginal(kind: Kind, heat: f64, units: u8) -> f64 {
    heat * SAVED[kind as usize][usize::from(units.min(MAX_UNITS))]
}

/// By kind and units: reduction of the false positive rate by one more unit.
static SAVED: LazyLock<[[f64; MAX_UNITS as usize + 1]; 4]> = LazyLock::new(|| {
    let mut saved = [[0.0; MAX_UNITS as usize + 1]; 4];
    for kind in [Kind::Ribbon, Kind::Bloom] {
        for units in 0..=MAX_UNITS {
            saved[kind as usize][usize::from(units)] = kind.fpr(units) - kind.fpr(units + 1);
        }
    }
    saved
});
