//! Table of grants: for each granted id, the VM that was asked to store it as popular. A grant ends when the id is stored, when the VM
//! asks its next question or ends its session, or after ten minutes: a VM stores its granted ids before it
//! asks again.
//!
//! In memory only: after a restart an id may be granted again, and both popular copies are valid.

use crate::fleet::partition::IdPartitions;
use copal_backup::peers::ShortId;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Age at which an unused grant ends.
pub(crate) const GRANT_LAPSES_AFTER: Duration = Duration::from_secs(600);
/// Age in seconds from which the holder's session is checked.
const LOOKED_AT_AFTER: u32 = 5;
/// Bytes of one grant in the map, with its control byte.
const GRANT_BYTES: u64 = (size_of::<ShortId>() + size_of::<IdGrant>() + 1) as u64;

#[derive(Clone, Copy)]
struct IdGrant {
    vm: u32,
    /// The question that the grant answered.
    question: u32,
    /// Seconds after the first grant.
    at: u32,
}

/// The grants of a detector, bounded in number.
pub(crate) struct GrantTable {
    grants: HashMap<ShortId, IdGrant>,
    most: usize,
    first: Option<Instant>,
}

/// How many grants fit `bytes`: a map is filled to seven eighths of a power of two.
pub(crate) fn most_grants(bytes: u64) -> usize {
    let slots = (bytes / GRANT_BYTES).max(8);
    let power = 1_u64 << slots.ilog2();
    (power / 8 * 7) as usize
}

impl GrantTable {
    pub(crate) fn with_room_for(most: usize) -> GrantTable {
        GrantTable { grants: HashMap::with_capacity(most), most, first: None }
    }

    fn seconds(&mut self, now: Instant) -> u32 {
        let first = *self.first.get_or_insert(now);
        now.saturating_duration_since(first).as_secs() as u32
    }

    /// Drops expired grants.
    pub(crate) fn lapse(&mut self, now: Instant) {
        let now = self.seconds(now);
        let lapses_after = GRANT_LAPSES_AFTER.as_secs() as u32;
        self.grants.retain(|_, grant| now.saturating_sub(grant.at) < lapses_after);
    }

    /// Drops grants of a partition's VMs for an earlier question than their present one: they have not stored
    /// these ids, and will not. Returns the former holder of each such id.
    pub(crate) fn lapse_declined(
        &mut self,
        (partitions, partition): (IdPartitions, u32),
        asked: &HashMap<u32, Vec<u32>>,
    ) -> HashMap<ShortId, u32> {
        let mut declined = HashMap::new();
        self.grants.retain(|id, grant| {
            let questions = asked.get(&grant.vm);
            let is_declined = partitions.of(id) == partition
                && questions.is_some_and(|questions| !questions.contains(&grant.question));
            if is_declined {
                declined.insert(*id, grant.vm);
            }
            !is_declined
        });
        declined
    }

    /// Drops grants of a partition that are some time old and whose VMs are no longer being backed up.
    pub(crate) fn lapse_ended(
        &mut self,
        (partitions, partition): (IdPartitions, u32),
        now: Instant,
        is_backing_up: impl Fn(u32) -> bool,
    ) {
        let now = self.seconds(now);
        let mut known: HashMap<u32, bool> = HashMap::new();
        self.grants.retain(|id, grant| {
            let is_meant = partitions.of(id) == partition && now.saturating_sub(grant.at) >= LOOKED_AT_AFTER;
            !is_meant || *known.entry(grant.vm).or_insert_with(|| is_backing_up(grant.vm))
        });
    }

    /// Number of granted ids of a partition.
    pub(crate) fn of_partition(&self, partitions: IdPartitions, partition: u32) -> u64 {
        let of = |id: &&ShortId| partitions.of(id) == partition;
        self.grants.keys().filter(of).count() as u64
    }

    /// The VM that holds the grant of an id.
    pub(crate) fn holder(&self, id: &ShortId) -> Option<u32> {
        self.grants.get(id).map(|grant| grant.vm)
    }

    /// Grants an id to a VM for this question; `false`: there is no space.
    pub(crate) fn grant(&mut self, id: ShortId, (vm, question): (u32, u32), now: Instant) -> bool {
        if self.grants.len() >= self.most {
            return false;
        }
        let at = self.seconds(now);
        self.grants.insert(id, IdGrant { vm, question, at });
        true
    }

    /// Ends the grant of an id that is stored.
    pub(crate) fn is_stored(&mut self, id: &ShortId) {
        self.grants.remove(id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_lasts_ten_minutes_and_the_table_does_not_grow() {
        let (mut grants, start) = (GrantTable::with_room_for(2), Instant::now());
        assert!(grants.grant([1; 16], (7, 0), start));
        let late = start + GRANT_LAPSES_AFTER - Duration::from_secs(1);
        assert!(grants.grant([2; 16], (8, 0), late));
        assert!(!grants.grant([3; 16], (9, 0), late), "full");
        grants.lapse(late);
        assert_eq!((grants.holder(&[1; 16]), grants.holder(&[2; 16])), (Some(7), Some(8)));
        grants.lapse(start + GRANT_LAPSES_AFTER);
        assert_eq!((grants.holder(&[1; 16]), grants.holder(&[2; 16])), (None, Some(8)));
        grants.is_stored(&[2; 16]);
        assert_eq!(grants.of_partition(IdPartitions::new(0).unwrap(), 0), 0);
    }

    #[test]
    fn a_full_table_takes_the_bytes_it_was_planned_with() {
        assert_eq!(GRANT_BYTES, 29);
        assert_eq!(most_grants(4 << 20), 114_688);
        assert_eq!(most_grants(0), 7);
        let grants = GrantTable::with_room_for(most_grants(4 << 20));
        assert_eq!(grants.grants.capacity(), 114_688, "no larger table is made");
    }
}
