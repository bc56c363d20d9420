//! Rule of promotion: decides when a candidate becomes popular.
//!
//! Paper: low-profile-dedup §2, the few per cent of chunks that most VMs share.
//! Invariants
//! - Popular ids never exceed their fraction of all known ids, over all partitions that were compared here.
//! - A candidate needs requests of two VMs while less than half of the fraction is used, then of three. If
//!   the fraction is 100 %, no space must be left for others, and two suffice.

use std::collections::HashMap;

/// VMs that must ask for an id while few are popular.
const FEW_POPULAR_VMS: u32 = 2;
/// Most VMs that must ask for an id; no more rows are kept per id.
pub(crate) const MOST_VMS: u32 = 3;
const MILLION: u128 = 1_000_000;

/// Counts of ids of one or several partitions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct IdTally {
    /// Ids that are popular, stored or granted.
    pub(crate) popular: u64,
    /// All distinct ids: popular and candidates.
    pub(crate) known: u64,
}

/// Tallies of the compared partitions.
#[derive(Debug, Default)]
pub(crate) struct TallyTable {
    of: HashMap<u32, IdTally>,
    all: IdTally,
}

impl TallyTable {
    /// Sum of all partitions but one.
    pub(crate) fn others(&self, partition: u32) -> IdTally {
        let own = self.of.get(&partition).copied().unwrap_or_default();
        IdTally { popular: self.all.popular - own.popular, known: self.all.known - own.known }
    }

    pub(crate) fn set(&mut self, partition: u32, tally: IdTally) {
        let others = self.others(partition);
        self.all = IdTally { popular: others.popular + tally.popular, known: others.known + tally.known };
        self.of.insert(partition, tally);
    }
}

/// State of the promotion of a partition's ids.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PromotionState {
    /// The part of all ids that may be popular, in millionths.
    pub(crate) popular_millionths: u32,
    /// Tally of the partition.
    pub(crate) own: IdTally,
    /// Sum of the other partitions that were compared here.
    pub(crate) others: IdTally,
}

impl PromotionState {
    fn allowed(&self, known: u64) -> u128 {
        u128::from(known) * u128::from(self.popular_millionths)
    }

    /// Number of VMs that must ask for an id; `None`: no more may be promoted.
    pub(crate) fn threshold(&self) -> Option<u32> {
        let popular = u128::from(self.own.popular + self.others.popular);
        let allowed = self.allowed(self.own.known + self.others.known);
        if (popular + 1) * MILLION > allowed || !self.is_fair() {
            return None;
        }
        let is_of_all = u128::from(self.popular_millionths) >= MILLION;
        match is_of_all || popular * 2 * MILLION < allowed {
            true => Some(FEW_POPULAR_VMS),
            false => Some(MOST_VMS),
        }
    }

    /// Whether one more id stays within the partition's share by chance: three deviations above its mean.
    /// Otherwise a partition of few ids would have none, or the first partition would take all.
    fn is_fair(&self) -> bool {
        let mean = self.allowed(self.own.known) as f64 / MILLION as f64;
        self.own.popular as f64 <= mean + 3.0 * mean.sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn threshold(popular_millionths: u32, popular: u64, known: u64) -> Option<u32> {
        of(popular_millionths, (popular, known), (0, 0))
    }

    fn of(popular_millionths: u32, own: (u64, u64), others: (u64, u64)) -> Option<u32> {
        let tally = |(popular, known)| IdTally { popular, known };
        let promotion = PromotionState { popular_millionths, own: tally(own), others: tally(others) };
        promotion.threshold()
    }

    #[test]
    fn a_partition_of_few_ids_gets_the_remainder_and_not_all_of_it() {
        assert_eq!(of(300_000, (0, 1), (0, 0)), None, "less than one id");
        assert_eq!(of(300_000, (0, 1), (10, 100)), Some(2));
        assert_eq!(of(300_000, (1, 1), (10, 100)), Some(2), "by chance");
        assert_eq!(of(300_000, (2, 1), (10, 100)), None, "more than by chance");
        assert_eq!(of(300_000, (0, 1), (30, 100)), None, "the others have it all");
    }

    #[test]
    fn two_vms_up_to_half_of_the_fraction_then_three_then_none() {
        assert_eq!(threshold(40_000, 0, 100), Some(2));
        assert_eq!(threshold(40_000, 1, 100), Some(2));
        assert_eq!(threshold(40_000, 2, 100), Some(3));
        assert_eq!(threshold(40_000, 3, 100), Some(3));
        assert_eq!(threshold(40_000, 4, 100), None);
    }

    #[test]
    fn a_fraction_of_nothing_is_nothing() {
        assert_eq!(threshold(40_000, 0, 24), None, "less than one id");
        assert_eq!(threshold(40_000, 0, 25), Some(2));
        assert_eq!(threshold(0, 0, u64::MAX), None);
        assert_eq!(threshold(999_999, 1 << 59, (1 << 60) + 1), Some(3));
    }

    /// Symptom: with `--pds-fraction 100%` chunks of two VMs were refused once half of all chunks were
    /// popular.
    /// Cause: three VMs were required above half of any fraction, to leave space for chunks of more VMs.
    /// Fix: if all chunks may be popular, no space must be left.
    #[test]
    fn a_fraction_of_all_takes_two_vms_always() {
        assert_eq!(threshold(1_000_000, 1 << 60, (1 << 60) + 1), Some(2));
    }
}
