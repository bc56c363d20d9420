//! Which disk a copy of a group belongs on: weighted rendezvous hashing, and what keeps a disk from taking one more.
//!
//! Design: docs/design/cluster.md#rules
//! Invariants
//! - The same disks give the same answer, in whatever order they are named.
//! - A disk that joins or leaves changes the place of about its share of the groups, and of no other group.
//! - No disk is chosen that the copy would fill above the low watermark.
//!
//! Not here: when a copy is made (`recovery`), which groups leave a full disk (`rebalance`).

use super::{DiskId, GroupId};
use xxhash_rust::xxh3::xxh3_64;

/// A disk is filled by copies up to this many per cent of its capacity, and no further.
pub const LOW_WATERMARK_PERCENT: u64 = 80;
/// Disks above this many per cent are emptied down to the low watermark.
pub const HIGH_WATERMARK_PERCENT: u64 = 85;
/// Disks above this many per cent take no creates; the rest is for deletes and for what they cost.
pub const HARD_STOP_PERCENT: u64 = 95;

/// What is known of a disk when a place is sought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFacts {
    /// The disk.
    pub disk: DiskId,
    /// The server's lasting name, which its place in the ranking is drawn from.
    pub identity: [u8; 16],
    /// Failure domain (host, rack or zone, as the pool says): members of a group lie in different ones.
    pub domain: u32,
    /// Bytes it can hold.
    pub capacity_bytes: u64,
    /// Bytes it holds, those that are still to arrive included.
    pub used_bytes: u64,
    /// It answers, and takes operations.
    pub is_up: bool,
    /// It is being emptied.
    pub is_draining: bool,
}

impl DiskFacts {
    /// Whether the disk holds at most `percent` of its capacity after `more_bytes` arrived.
    pub fn stays_within(&self, more_bytes: u64, percent: u64) -> bool {
        let after = u128::from(self.used_bytes) + u128::from(more_bytes);
        after * 100 <= u128::from(self.capacity_bytes) * u128::from(percent)
    }
}

/// Why no disk can take a copy of a group: how many were ruled out by what, each under the first reason met.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "group {group} has no disk to go to: {members} hold it already or share a failure domain with one that does, {away} \
     are away, {draining} are being emptied, {full} would be filled above 80 %; add a server, or wait until one returns"
)]
pub struct NoPlace {
    /// The group.
    pub group: GroupId,
    /// Disks that are members, or lie in the failure domain of one.
    pub members: usize,
    /// Disks that do not answer.
    pub away: usize,
    /// Disks that are being emptied.
    pub draining: usize,
    /// Disks without room below the low watermark.
    pub full: usize,
}

/// Disks for a group, the best first: a disk of twice the capacity comes first twice as often.
///
/// Each disk is its number, its lasting name and its capacity in bytes.
pub fn rank(group: GroupId, disks: impl IntoIterator<Item = (DiskId, [u8; 16], u64)>) -> Vec<DiskId> {
    let mut scored: Vec<(f64, DiskId)> = disks
        .into_iter()
        .map(|(disk, identity, capacity_bytes)| (score(group, identity, capacity_bytes), disk))
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    scored.into_iter().map(|(_, disk)| disk).collect()
}

fn score(group: GroupId, identity: [u8; 16], capacity_bytes: u64) -> f64 {
    let mut place = [0; 20];
    place[..16].copy_from_slice(&identity);
    place[16..].copy_from_slice(&group.0.to_be_bytes());
    // In (0, 1): the logarithm is finite and not zero.
    let drawn = ((xxh3_64(&place) >> 12) as f64 + 0.5) / (1_u64 << 52) as f64;
    capacity_bytes.max(1) as f64 / -drawn.ln()
}

/// The disk that a new copy of `group`, of `bytes`, goes to: the best ranked that is up, not being emptied, in no
/// failure domain of a member, and has room for the copy below the low watermark.
///
/// # Errors
/// [`NoPlace`]: there is none; it counts what ruled the disks out.
pub fn choose_new_member(
    group: GroupId,
    members: &[DiskId],
    bytes: u64,
    disks: &[DiskFacts],
) -> Result<DiskId, NoPlace> {
    let taken: Vec<u32> = disks
        .iter()
        .filter(|facts| members.contains(&facts.disk))
        .map(|facts| facts.domain)
        .collect();
    let mut ruled_out = NoPlace {
        group,
        members: 0,
        away: 0,
        draining: 0,
        full: 0,
    };
    let mut best: Option<(f64, DiskId)> = None;
    for facts in disks {
        if members.contains(&facts.disk) || taken.contains(&facts.domain) {
            ruled_out.members += 1;
        } else if !facts.is_up {
            ruled_out.away += 1;
        } else if facts.is_draining {
            ruled_out.draining += 1;
        } else if !facts.stays_within(bytes, LOW_WATERMARK_PERCENT) {
            ruled_out.full += 1;
        } else {
            let score = score(group, facts.identity, facts.capacity_bytes);
            let is_better =
                best.is_none_or(|(other, disk)| score > other || score == other && facts.disk < disk);
            if is_better {
                best = Some((score, facts.disk));
            }
        }
    }
    best.map(|(_, disk)| disk).ok_or(ruled_out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disks(count: u32) -> Vec<DiskFacts> {
        (1..=count)
            .map(|number| DiskFacts {
                disk: DiskId(number),
                identity: [number as u8; 16],
                domain: number,
                capacity_bytes: 1000,
                used_bytes: 100,
                is_up: true,
                is_draining: false,
            })
            .collect()
    }

    #[test]
    fn a_new_member_is_up_stays_and_has_room() {
        let mut disks = disks(8);
        disks[0].is_up = false;
        disks[1].is_draining = true;
        disks[2].used_bytes = 790;
        disks[4].domain = disks[3].domain;
        for group in 1..200 {
            let chosen = choose_new_member(GroupId(group), &[DiskId(4)], 11, &disks).unwrap();
            assert!((6..=8).contains(&chosen.0), "{chosen}");
        }
        let at_the_mark = (1..200)
            .any(|group| choose_new_member(GroupId(group), &[DiskId(4)], 10, &disks) == Ok(DiskId(3)));
        assert!(at_the_mark, "80 % exactly is not above it");
    }

    #[test]
    fn without_a_place_it_says_what_ruled_the_disks_out() {
        let mut disks = disks(4);
        disks[1].is_up = false;
        disks[2].is_draining = true;
        disks[3].used_bytes = 900;
        let refused = choose_new_member(GroupId(7), &[DiskId(1)], 1, &disks).unwrap_err();
        assert_eq!(
            (refused.members, refused.away, refused.draining, refused.full),
            (1, 1, 1, 1)
        );
        assert!(
            refused.to_string().contains("group 7 has no disk to go to"),
            "{refused}"
        );
    }

    #[test]
    fn the_chosen_is_the_best_ranked_whatever_the_order() {
        let mut disks = disks(9);
        for group in (1..50).map(GroupId) {
            let ranked = rank(
                group,
                disks.iter().map(|d| (d.disk, d.identity, d.capacity_bytes)),
            );
            disks.reverse();
            assert_eq!(choose_new_member(group, &ranked[..2], 1, &disks), Ok(ranked[2]));
        }
    }

    #[test]
    fn sums_of_huge_sizes_do_not_overflow() {
        let mut disks = disks(1);
        disks[0].capacity_bytes = u64::MAX;
        disks[0].used_bytes = u64::MAX;
        assert!(choose_new_member(GroupId(1), &[], u64::MAX, &disks).is_err());
    }
}
