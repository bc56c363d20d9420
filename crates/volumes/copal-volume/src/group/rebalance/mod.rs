//! Plan of moves of groups between disks, shown before anything moves.
//!
//! Design: docs/design/cluster.md#rules VOL-27
//! Paper:  beanfs §5.3
//! Invariants
//! - No target is filled above the low watermark, bytes on their way to it included.
//! - A group moves once in a plan, and only if all its members are in sync.
//! - A move for the watermarks starts on a disk above the low one. A move for evenness leaves the fuller of
//!   its two disks less full than before.
//! - No move brings a member closer to another, by racks and zones. Of members that are closer than
//!   necessary, one moves.
//! - Equal disks and groups give an equal plan.
//!
//! Not here: making the copies (`recovery` orders them, `copal-data` copies), refusing creates on a full
//! disk.

#[cfg(test)]
mod tests;

use super::{
    DiskId, GroupId,
    placement::{
        self, DiskFacts, DiskSite, HIGH_WATERMARK_PERCENT, LOW_WATERMARK_PERCENT, NoPlace, SharedDomains,
    },
};
use std::collections::BTreeSet;

/// Bytes added to each group's size when disks are made even: empty groups have a weight too.
const PER_GROUP_BYTES: u64 = 64 << 10;
/// Disks are even when none is fuller or emptier than the mean by more than this share of it.
const EVEN_WITHIN_PERCENT: u128 = 5;

/// A group, and the size of one copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupFacts {
    /// The group.
    pub group: GroupId,
    /// Size of one copy.
    pub bytes: u64,
    /// Disks that hold it.
    pub members: Vec<DiskId>,
    /// Whether all its members are in sync and none is moving: only then it may move.
    pub is_in_sync: bool,
}

/// Move of one copy between two disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupMove {
    /// The group.
    pub group: GroupId,
    /// The copy leaves this disk once the new one is verified.
    pub source: DiskId,
    /// The new member.
    pub target: DiskId,
    /// Bytes of the copy.
    pub bytes: u64,
}

/// Goal of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlanGoal {
    /// Disks above the high watermark come down to the low one; other disks keep their groups.
    Watermarks,
    /// Additionally, members of a group are in different racks and zones, and all disks about equally full.
    Even,
}

/// A disk before and after the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlannedFill {
    /// The disk.
    pub disk: DiskId,
    /// Its capacity in bytes.
    pub capacity_bytes: u64,
    /// Bytes it holds now.
    pub before_bytes: u64,
    /// Bytes it will hold.
    pub after_bytes: u64,
    /// Groups it holds now.
    pub before_groups: u64,
    /// Groups it will hold.
    pub after_groups: u64,
}

/// Reason that a disk stays above the low watermark. The text follows the name of the disk or its server.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveRefusal {
    /// Its movable groups have no other disk; the reason is that of the last of them.
    #[error("stays too full: {reason}")]
    NoPlace {
        /// The disk that stays full.
        disk: DiskId,
        /// Reasons against the other disks.
        reason: NoPlace,
    },
    /// Its remaining groups lack a copy, or it has none.
    #[error(
        "stays too full: none of its remaining groups may move, because they are out of sync or small; \
         wait until `copal group ls --degraded` is empty, and plan again"
    )]
    NothingMayMove {
        /// The disk that stays full.
        disk: DiskId,
    },
}

impl MoveRefusal {
    /// The disk that stays full.
    pub fn disk(&self) -> DiskId {
        let (MoveRefusal::NoPlace { disk, .. } | MoveRefusal::NothingMayMove { disk }) = self;
        *disk
    }
}

/// Moves in their order, and their effect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MovePlan {
    /// The copies.
    pub moves: Vec<GroupMove>,
    /// Every disk, in the order given.
    pub disks: Vec<PlannedFill>,
    /// Disks that the plan leaves above the low watermark, with reasons.
    pub refused: Vec<MoveRefusal>,
}

impl MovePlan {
    /// Bytes that the plan copies.
    pub fn moved_bytes(&self) -> u64 {
        self.moves.iter().fold(0, |sum, next| sum.saturating_add(next.bytes))
    }

    /// Most bytes that the plan reads from or writes to one disk: a lower bound of its time at a given rate
    /// per disk.
    pub fn busiest_bytes(&self) -> u64 {
        let of = |disk: DiskId| {
            let here = self.moves.iter().filter(|next| next.source == disk || next.target == disk);
            here.fold(0_u64, |sum, next| sum.saturating_add(next.bytes))
        };
        self.disks.iter().map(|fill| of(fill.disk)).max().unwrap_or_default()
    }
}

/// Plans moves for `goal`. For the watermarks it takes few and large moves, from the fullest disk first. Then
/// it separates members of a group that share a rack or a zone. Then, for evenness, it repeatedly moves the
/// group that helps two disks most.
pub fn plan(disks: &[DiskFacts], groups: &[GroupFacts], goal: PlanGoal) -> MovePlan {
    let mut planner = MovePlanner {
        facts: disks.to_vec(),
        groups: groups.to_vec(),
        moves: Vec::new(),
        moved: BTreeSet::new(),
        refused: Vec::new(),
    };
    planner.bring_down_full_disks();
    if goal == PlanGoal::Even {
        planner.take_apart();
        planner.even_out();
    }
    let held = |groups: &[GroupFacts], disk: DiskId| {
        groups.iter().filter(|group| group.members.contains(&disk)).count() as u64
    };
    let fills = disks.iter().zip(&planner.facts).map(|(before, after)| PlannedFill {
        disk: before.disk,
        capacity_bytes: before.capacity_bytes,
        before_bytes: before.used_bytes,
        after_bytes: after.used_bytes,
        before_groups: held(groups, before.disk),
        after_groups: held(&planner.groups, before.disk),
    });
    MovePlan { disks: fills.collect(), moves: planner.moves, refused: planner.refused }
}

/// Disks and groups after the moves so far.
struct MovePlanner {
    facts: Vec<DiskFacts>,
    groups: Vec<GroupFacts>,
    moves: Vec<GroupMove>,
    moved: BTreeSet<GroupId>,
    refused: Vec<MoveRefusal>,
}

impl MovePlanner {
    fn bring_down_full_disks(&mut self) {
        let is_full = |disk: &&DiskFacts| !disk.stays_within(0, HIGH_WATERMARK_PERCENT);
        let mut full: Vec<DiskFacts> = self.facts.iter().filter(is_full).cloned().collect();
        full.sort_by_key(|disk| std::cmp::Reverse(per_mille(disk)));
        for source in full.into_iter().map(|facts| facts.disk) {
            let mut here: Vec<usize> = (0..self.groups.len())
                .filter(|&at| self.may_move(at, source) && self.groups[at].bytes > 0)
                .collect();
            here.sort_by_key(|&at| (std::cmp::Reverse(self.groups[at].bytes), self.groups[at].group));
            let mut last_reason = None;
            while let Some(excess_bytes) = self.excess(source) {
                if here.is_empty() {
                    break;
                }
                // The smallest group that suffices, else the largest.
                let enough = here.iter().rposition(|&at| self.groups[at].bytes >= excess_bytes);
                let at = here.remove(enough.unwrap_or(0));
                let group = &self.groups[at];
                let (members, bytes) = (&group.members, group.bytes);
                match placement::choose_for_move(group.group, members, source, bytes, &self.facts) {
                    Err(reason) => last_reason = Some(reason),
                    Ok(target) => self.shift(at, source, target),
                }
            }
            if self.excess(source).is_some() {
                self.refused.push(match last_reason {
                    Some(reason) => MoveRefusal::NoPlace { disk: source, reason },
                    None => MoveRefusal::NothingMayMove { disk: source },
                });
            }
        }
    }

    /// Moves one of two members that are closer than necessary: racks were declared later, or had no space
    /// for a time.
    fn take_apart(&mut self) {
        for at in 0..self.groups.len() {
            let group = &self.groups[at];
            let Some(source) = placement::least_wanted(group.group, &group.members, &self.facts) else {
                continue;
            };
            let others = self.others(group, source);
            let crowd = |disk: DiskId| {
                let facts = self.facts.iter().find(|facts| facts.disk == disk);
                facts.map(|facts| placement::crowd(facts, &others))
            };
            let present = crowd(source);
            let is_alone = present.is_none_or(|crowd| crowd.in_rack + crowd.in_zone == 0);
            if is_alone || !self.may_move(at, source) {
                continue;
            }
            let (members, bytes) = (&group.members, group.bytes);
            let target = placement::choose_for_move(group.group, members, source, bytes, &self.facts);
            if let Ok(target) = target
                && crowd(target) < present
            {
                self.shift(at, source, target);
            }
        }
    }

    /// Moves from the fullest disk with a useful move, until all are about as full as the mean.
    fn even_out(&mut self) {
        while let Some((at, source, target)) = self.best_move() {
            self.shift(at, source, target);
        }
    }

    fn best_move(&self) -> Option<(usize, DiskId, DiskId)> {
        let mut loads: Vec<(u128, &DiskFacts)> = self
            .facts
            .iter()
            .filter(|facts| facts.is_up && !facts.is_draining)
            .map(|facts| (self.load(facts), facts))
            .collect();
        let mean = loads.iter().map(|(load, _)| load).sum::<u128>() / (loads.len().max(1) as u128);
        loads.sort_by_key(|(load, facts)| (std::cmp::Reverse(*load), facts.disk));
        let is_full = |load: u128| load * 100 > mean * (100 + EVEN_WITHIN_PERCENT);
        let is_empty = |load: u128| load * 100 < mean * (100 - EVEN_WITHIN_PERCENT);
        for &(load, source) in loads.iter().take_while(|(load, _)| *load > mean) {
            let mut best: Option<(u128, usize, DiskId)> = None;
            for at in (0..self.groups.len()).filter(|&at| self.may_move(at, source.disk)) {
                let group = &self.groups[at];
                let others = self.others(group, source.disk);
                let most = placement::crowd(source, &others);
                // The emptiest disk that can take it.
                let can_take = |(_, facts): &&(u128, &DiskFacts)| self.can_take(group, &others, most, facts);
                let target = loads.iter().rev().find(can_take);
                let Some(&(present, target)) = target else {
                    continue;
                };
                if !is_full(load) && !is_empty(present) {
                    continue;
                }
                let weight = group.bytes.saturating_add(PER_GROUP_BYTES);
                let after = present + ratio(weight, target.capacity_bytes);
                let left = load.saturating_sub(ratio(weight, source.capacity_bytes));
                // Fill of the fuller disk after the move.
                let worse = after.max(left);
                let helps = worse < load;
                if helps && best.is_none_or(|(other, ..)| worse < other) {
                    best = Some((worse, at, target.disk));
                }
            }
            if let Some((_, at, target)) = best {
                return Some((at, source.disk, target));
            }
        }
        None
    }

    fn may_move(&self, at: usize, source: DiskId) -> bool {
        let group = &self.groups[at];
        group.is_in_sync && group.members.contains(&source) && !self.moved.contains(&group.group)
    }

    /// Whether a group may move from a disk with this crowding to `target`: there is space, and it gets no
    /// closer to its other members.
    fn can_take(
        &self,
        group: &GroupFacts,
        others: &[(DiskId, DiskSite)],
        most: SharedDomains,
        target: &DiskFacts,
    ) -> bool {
        !group.members.contains(&target.disk)
            && target.stays_within(group.bytes, LOW_WATERMARK_PERCENT)
            && placement::crowd(target, others) <= most
    }

    /// Sites of all members of a group but one.
    fn others(&self, group: &GroupFacts, source: DiskId) -> Vec<(DiskId, DiskSite)> {
        let mut others = placement::sites(&group.members, &self.facts);
        others.retain(|(disk, _)| *disk != source);
        others
    }

    /// Fill of a disk by its groups.
    fn load(&self, disk: &DiskFacts) -> u128 {
        let here = self.groups.iter().filter(|group| group.members.contains(&disk.disk));
        let bytes =
            here.fold(0_u64, |sum, group| sum.saturating_add(group.bytes).saturating_add(PER_GROUP_BYTES));
        ratio(bytes, disk.capacity_bytes)
    }

    /// Bytes above the low watermark; `None`: the disk is below it.
    fn excess(&self, disk: DiskId) -> Option<u64> {
        let facts = self.facts.iter().find(|facts| facts.disk == disk)?;
        let mark = u128::from(facts.capacity_bytes) * u128::from(LOW_WATERMARK_PERCENT) / 100;
        let above = u128::from(facts.used_bytes).saturating_sub(mark);
        u64::try_from(above).ok().filter(|&above| above > 0)
    }

    fn shift(&mut self, at: usize, source: DiskId, target: DiskId) {
        let group = &mut self.groups[at];
        for member in group.members.iter_mut().filter(|member| **member == source) {
            *member = target;
        }
        let bytes = group.bytes;
        self.moved.insert(group.group);
        for disk in &mut self.facts {
            if disk.disk == source {
                disk.used_bytes = disk.used_bytes.saturating_sub(bytes);
            } else if disk.disk == target {
                disk.used_bytes = disk.used_bytes.saturating_add(bytes);
            }
        }
        self.moves.push(GroupMove { group: group.group, source, target, bytes });
    }
}

/// Fraction of the capacity, in units of 2^-64.
fn ratio(bytes: u64, capacity_bytes: u64) -> u128 {
    (u128::from(bytes) << 64) / u128::from(capacity_bytes.max(1))
}

fn per_mille(disk: &DiskFacts) -> u128 {
    u128::from(disk.used_bytes) * 1000 / u128::from(disk.capacity_bytes.max(1))
}
