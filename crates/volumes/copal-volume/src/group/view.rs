//! The view of a group: its members, their roles, and the number of the view.

use super::role::Role;
use crate::ids::VolumeId;
use std::fmt;

/// Groups have numbers from 1, in 20 bits; 0 is the only group of an embedded store.
pub const MAX_GROUP: u32 = (1 << 20) - 1;
const SEQUENCE_BITS: u32 = 44;

/// Volumes that share members, epoch and journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

/// A disk of a data server: each member of a group is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(pub u32);

/// Number of a view. Different views of a group have different numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Number of a data server's boot: a count in the upper bits, and random bits below. Two copies of one
/// directory therefore never look like the same process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u64);

const DRAWN_BITS: u32 = 20;

impl Incarnation {
    /// The next boot; `drawn` is random and cut to 20 bits.
    pub fn next(self, drawn: u64) -> Incarnation {
        Incarnation(((self.count() + 1) << DRAWN_BITS) | (drawn & ((1 << DRAWN_BITS) - 1)))
    }

    /// Number of boots of the server.
    pub fn count(self) -> u64 {
        self.0 >> DRAWN_BITS
    }
}

/// Number of one leadership of a master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Term(pub u64);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl VolumeId {
    /// A volume's id from its birth group and its number there, which is cut to 44 bits.
    pub fn in_group(group: GroupId, sequence: u64) -> VolumeId {
        VolumeId((u64::from(group.0) << SEQUENCE_BITS) | (sequence & ((1 << SEQUENCE_BITS) - 1)))
    }

    /// Its number in its birth group.
    pub fn sequence(self) -> u64 {
        self.0 & ((1 << SEQUENCE_BITS) - 1)
    }

    /// The group in which it was created; the id alone determines it, without a look-up.
    pub fn birth_group(self) -> GroupId {
        GroupId((self.0 >> SEQUENCE_BITS) as u32)
    }
}

/// Members and roles of a group in one epoch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct View {
    /// The group.
    pub group: GroupId,
    /// The view's number.
    pub epoch: Epoch,
    /// Each member once, ascending.
    pub members: Vec<(DiskId, Role)>,
    /// Number of copies that the group's pool keeps.
    pub replicas: u8,
    /// Number of members that must have an operation on their device before it is complete.
    pub min_ack: u8,
}

impl View {
    /// Members that accept operations.
    pub fn up(&self) -> impl Iterator<Item = DiskId> + '_ {
        let up = self.members.iter().filter(|(_, role)| role.takes_writes());
        up.map(|&(disk, _)| disk)
    }

    /// Members in sync: they have every acknowledged operation.
    pub fn in_sync(&self) -> impl Iterator<Item = DiskId> + '_ {
        let in_sync = self.members.iter().filter(|(_, role)| role.is_in_sync());
        in_sync.map(|&(disk, _)| disk)
    }

    /// The role of a member; `None`: the disk is not a member.
    pub fn role(&self, disk: DiskId) -> Option<Role> {
        let at = self.members.binary_search_by_key(&disk, |&(disk, _)| disk).ok()?;
        Some(self.members[at].1)
    }

    /// Number of members that must have an operation on their device: never more than there are copies.
    pub fn needed(&self) -> usize {
        usize::from(self.min_ack.min(self.replicas).max(1))
    }
}

/// Action of a member on a request of another epoch (VOL-11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpochMatch {
    /// Both have the same view: run the request.
    Run,
    /// The request's view is older: answer with the newer one.
    Stale,
    /// The member's own view is older: learn the newer one and compare again.
    Refresh,
}

/// Compares the epoch of a request with the member's own.
pub fn match_epoch(own: Epoch, of_request: Epoch) -> EpochMatch {
    match of_request.cmp(&own) {
        std::cmp::Ordering::Equal => EpochMatch::Run,
        std::cmp::Ordering::Less => EpochMatch::Stale,
        std::cmp::Ordering::Greater => EpochMatch::Refresh,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_knows_the_group_it_was_born_in() {
        let vid = VolumeId::in_group(GroupId(MAX_GROUP), 77);
        assert_eq!(vid.birth_group(), GroupId(MAX_GROUP));
        assert_eq!(VolumeId::in_group(GroupId(3), 1).birth_group(), GroupId(3));
        assert_eq!(VolumeId(9).birth_group(), GroupId(0), "an embedded store's volumes");
    }

    #[test]
    fn no_more_members_are_needed_than_there_are_copies() {
        let mut view = View {
            group: GroupId(1),
            epoch: Epoch(1),
            members: vec![(DiskId(4), Role::Normal), (DiskId(9), Role::Failed)],
            replicas: 1,
            min_ack: 2,
        };
        assert_eq!(view.needed(), 1);
        view.replicas = 3;
        assert_eq!(view.needed(), 2);
        assert_eq!(view.up().collect::<Vec<_>>(), [DiskId(4)]);
        assert_eq!(view.in_sync().collect::<Vec<_>>(), [DiskId(4)]);
        assert_eq!((view.role(DiskId(9)), view.role(DiskId(5))), (Some(Role::Failed), None));
    }
}
