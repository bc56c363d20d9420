//! Choice of disks for the copies of a group: apart from each other, by weighted rendezvous hashing, and
//! within the limits of each disk.
//!
//! Design: docs/design/cluster.md#rules VOL-29
//! Invariants
//! - Equal disks give an equal answer, in any order of the arguments.
//! - Members of a group lie in different racks while enough racks can take one, then in different zones, and
//!   always on different disks.
//! - Without racks, a disk that joins or leaves moves only about its share of the groups.
//! - No disk is chosen that the copy would fill above the low watermark.
//!
//! Not here: when a copy is made (`recovery`), which groups leave a full disk (`rebalance`).

use super::{DiskId, GroupId};
use std::cmp::Ordering;
use xxhash_rust::xxh3::xxh3_64;

/// Copies fill a disk up to this percentage of its capacity, and no further.
pub const LOW_WATERMARK_PERCENT: u64 = 80;
/// Disks above this percentage are emptied down to the low watermark.
pub const HIGH_WATERMARK_PERCENT: u64 = 85;
/// Disks above this percentage accept no creates; the rest is for deletes and their overhead.
pub const HARD_STOP_PERCENT: u64 = 95;

/// Rack and zone of a disk: the failure domains above a server, each with a number unique to it. A disk
/// without a known rack or zone gets a number of its own, so it is apart from all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskSite {
    /// Rack.
    pub rack: u32,
    /// Zone, of several racks.
    pub zone: u32,
}

/// Number of members that would be lost together with a disk: fewer in its rack are preferred over fewer in
/// its zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SharedDomains {
    /// Other members in its rack.
    pub in_rack: usize,
    /// Other members in its zone.
    pub in_zone: usize,
}

/// Facts about a disk for the choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskFacts {
    /// The disk.
    pub disk: DiskId,
    /// Persistent identity of its server, which determines its rank.
    pub identity: [u8; 16],
    /// Where it stands.
    pub site: DiskSite,
    /// Bytes it can hold.
    pub capacity_bytes: u64,
    /// Bytes it holds, including those still to arrive.
    pub used_bytes: u64,
    /// Whether it answers and accepts operations.
    pub is_up: bool,
    /// Whether it is being emptied.
    pub is_draining: bool,
}

impl DiskFacts {
    /// Whether the disk holds at most `percent` of its capacity after `more_bytes` arrived.
    pub fn stays_within(&self, more_bytes: u64, percent: u64) -> bool {
        let after = u128::from(self.used_bytes) + u128::from(more_bytes);
        after * 100 <= u128::from(self.capacity_bytes) * u128::from(percent)
    }
}

/// Reason that no disk can take a copy of a group: number of disks per reason, each under the first reason
/// that applies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "group {group} has no disk to go to: {members} hold it already, {beside} share a rack or zone with more members than the \
     leaving one, {away} are down, {draining} are being emptied, {full} would be filled above 80 %; add a server, or wait until \
     one returns"
)]
pub struct NoPlace {
    /// The group.
    pub group: GroupId,
    /// Disks that are members.
    pub members: usize,
    /// Disks that share a rack or zone with more of the remaining members than the member that would leave
    /// for them.
    pub beside: usize,
    /// Disks that do not answer.
    pub away: usize,
    /// Disks that are being emptied.
    pub draining: usize,
    /// Disks without space below the low watermark.
    pub full: usize,
}

/// Ranks disks for a group, the best first: a disk of twice the capacity comes first twice as often.
///
/// Each disk is its number, its server's identity and its capacity in bytes.
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

/// Sites of members, by disk.
pub fn sites(members: &[DiskId], disks: &[DiskFacts]) -> Vec<(DiskId, DiskSite)> {
    let here = disks.iter().filter(|facts| members.contains(&facts.disk));
    here.map(|facts| (facts.disk, facts.site)).collect()
}

/// Number of other members with which a disk shares rack and zone.
pub fn crowd(facts: &DiskFacts, members: &[(DiskId, DiskSite)]) -> SharedDomains {
    let others = || members.iter().filter(|(disk, _)| *disk != facts.disk);
    SharedDomains {
        in_rack: others().filter(|(_, site)| site.rack == facts.site.rack).count(),
        in_zone: others().filter(|(_, site)| site.zone == facts.site.zone).count(),
    }
}

/// The first members of `group`, the best first: each in the least crowded remaining place, there the best
/// ranked. All `disks` must be able to take one. The result has fewer than `copies` if there are no more
/// disks.
pub fn first_members(group: GroupId, copies: usize, disks: &[DiskFacts]) -> Vec<DiskId> {
    let mut chosen: Vec<(DiskId, DiskSite)> = Vec::with_capacity(copies);
    while chosen.len() < copies {
        let is_free = |facts: &&DiskFacts| chosen.iter().all(|(disk, _)| *disk != facts.disk);
        match best(group, &chosen, disks.iter().filter(is_free)) {
            Some(facts) => chosen.push((facts.disk, facts.site)),
            None => break,
        }
    }
    chosen.into_iter().map(|(disk, _)| disk).collect()
}

/// Chooses the disk of a new copy of `group` with `bytes`: up, not being emptied, no member, with space below
/// the low watermark. Of these it takes one of the least crowded by the remaining members, there the best
/// ranked. If all racks have a copy, it shares a rack: a copy too close is better than none.
///
/// # Errors
/// [`NoPlace`]: no disk qualifies; it counts the reasons.
pub fn choose_new_member(
    group: GroupId,
    members: &[DiskId],
    staying: &[DiskId],
    bytes: u64,
    disks: &[DiskFacts],
) -> Result<DiskId, NoPlace> {
    choose(group, members, &sites(staying, disks), None, bytes, disks)
}

/// Chooses the disk that replaces `source`, a member that could stay: like [`choose_new_member`], but never
/// more crowded than `source`.
///
/// # Errors
/// [`NoPlace`]: no disk qualifies; it counts the reasons.
pub fn choose_for_move(
    group: GroupId,
    members: &[DiskId],
    source: DiskId,
    bytes: u64,
    disks: &[DiskFacts],
) -> Result<DiskId, NoPlace> {
    let staying: Vec<DiskId> = members.iter().copied().filter(|disk| *disk != source).collect();
    let staying = sites(&staying, disks);
    let present = disks.iter().find(|facts| facts.disk == source);
    let most = present.map(|facts| crowd(facts, &staying));
    choose(group, members, &staying, most, bytes, disks)
}

fn choose(
    group: GroupId,
    members: &[DiskId],
    staying: &[(DiskId, DiskSite)],
    most: Option<SharedDomains>,
    bytes: u64,
    disks: &[DiskFacts],
) -> Result<DiskId, NoPlace> {
    let mut ruled_out = NoPlace { group, members: 0, beside: 0, away: 0, draining: 0, full: 0 };
    let mut fit = Vec::new();
    for facts in disks {
        let is_closer = || most.is_some_and(|most| crowd(facts, staying) > most);
        if members.contains(&facts.disk) {
            ruled_out.members += 1;
        } else if !facts.is_up {
            ruled_out.away += 1;
        } else if facts.is_draining {
            ruled_out.draining += 1;
        } else if !facts.stays_within(bytes, LOW_WATERMARK_PERCENT) {
            ruled_out.full += 1;
        } else if is_closer() {
            ruled_out.beside += 1;
        } else {
            fit.push(facts);
        }
    }
    let best = best(group, staying, fit.into_iter());
    best.map(|facts| facts.disk).ok_or(ruled_out)
}

/// Chooses the surplus member to remove: the most crowded one, there the last ranked.
pub fn least_wanted(group: GroupId, members: &[DiskId], disks: &[DiskFacts]) -> Option<DiskId> {
    let beside = sites(members, disks);
    let here = disks.iter().filter(|facts| members.contains(&facts.disk));
    let worst = here.max_by(|a, b| order(group, &beside, a, b));
    worst.map(|facts| facts.disk)
}

fn best<'a>(
    group: GroupId,
    members: &[(DiskId, DiskSite)],
    candidates: impl Iterator<Item = &'a DiskFacts>,
) -> Option<&'a DiskFacts> {
    candidates.min_by(|a, b| order(group, members, a, b))
}

/// Orders disks: less crowded first, then better ranked.
fn order(group: GroupId, members: &[(DiskId, DiskSite)], a: &DiskFacts, b: &DiskFacts) -> Ordering {
    let score = |facts: &DiskFacts| score(group, facts.identity, facts.capacity_bytes);
    let crowds = crowd(a, members).cmp(&crowd(b, members));
    crowds.then_with(|| score(b).total_cmp(&score(a))).then(a.disk.cmp(&b.disk))
}

#[cfg(test)]
mod tests;
