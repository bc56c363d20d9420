//! Settling of names with two live files, and roll-forward of operations whose client is gone.
//!
//! Nothing is settled or rolled forward before it is sealed on every member that is up: until then its client
//! may still send it to all of them and complete it (VOL-19, VOL-20).
//!
//! Design: docs/design/cluster.md#rules
//! Not here: gossip of seals (`copal-server`).

use super::{role::Role, seal::BucketSeal};
use crate::ids::{FileId, OpId};

/// One of the live files of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameClaim {
    /// The file.
    pub fid: FileId,
    /// Its create.
    pub op: OpId,
}

/// Whether an operation is sealed on every member that is up. `seals`: their seals, as reported in the
/// asking member's epoch; a member without a report has sealed nothing.
pub fn is_sealed_everywhere(op: OpId, seals: &[BucketSeal]) -> bool {
    seals.iter().all(|seal| seal.is_sealed(op))
}

/// The file that keeps a name with several live ones, on a member that is not in sync. `seals`: the seals
/// from *before* the donor's snapshot. `donor`: the file that the snapshot has under the name. `None`: it is
/// too early.
pub fn settle_name(claims: &[NameClaim], seals: &[BucketSeal], donor: Option<FileId>) -> Option<FileId> {
    let is_sealed = |claim: &NameClaim| is_sealed_everywhere(claim.op, seals);
    if !claims.iter().all(is_sealed) {
        return None;
    }
    let donors = claims.iter().find(|claim| Some(claim.fid) == donor);
    let lowest = claims.iter().min_by_key(|claim| claim.fid);
    donors.or(lowest).map(|claim| claim.fid)
}

/// Action for a sealed create that another member has and this one lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RollForward {
    /// Too early: its client may still complete or delete it.
    Wait,
    /// Copy it.
    Copy,
    /// Its name belongs to another file here, and both members are in sync. They differ only over operations
    /// that were never acknowledged, so any choice will do that all members make alike.
    Delete {
        /// The file to delete.
        loser: FileId,
    },
}

/// Decides the roll-forward of a create. `roles`: of this member and of the other. `bound`: the live file of
/// its name here.
pub fn roll_forward(
    roles: (Role, Role),
    theirs: &NameClaim,
    bound: Option<&NameClaim>,
    seals: &[BucketSeal],
) -> RollForward {
    if !is_sealed_everywhere(theirs.op, seals) {
        return RollForward::Wait;
    }
    let Some(own) = bound.filter(|own| own.fid != theirs.fid) else {
        return RollForward::Copy;
    };
    match (roles.0.is_in_sync(), roles.1.is_in_sync()) {
        (true, true) if is_sealed_everywhere(own.op, seals) => {
            RollForward::Delete { loser: own.fid.max(theirs.fid) }
        }
        // The file here may have been acknowledged, unlike theirs. The member that is not in sync settles the
        // name by its donor.
        (true, _) => RollForward::Wait,
        (false, _) => RollForward::Copy,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Bucket;

    fn claim(ms: u64) -> NameClaim {
        NameClaim { fid: FileId::new(ms, 0, 1), op: OpId(FileId::new(ms, 1, 1).0) }
    }

    fn seals(below: &[u64]) -> Vec<BucketSeal> {
        let seal = |&below| BucketSeal { below: Bucket(below) };
        below.iter().map(seal).collect()
    }

    #[test]
    fn the_donors_file_or_else_the_lower_one_keeps_the_name_once_both_are_sealed() {
        let both = [claim(25_000), claim(15_000)];
        assert_eq!(settle_name(&both, &seals(&[3, 3, 2]), None), None);
        let closed = seals(&[3, 9, 3]);
        assert_eq!(settle_name(&both, &closed, None), Some(both[1].fid));
        assert_eq!(settle_name(&both, &closed, Some(both[0].fid)), Some(both[0].fid));
        let other = Some(claim(5).fid);
        assert_eq!(settle_name(&both, &closed, other), Some(both[1].fid));
    }

    #[test]
    fn operations_sealed_everywhere_are_rolled_forward() {
        let (theirs, own) = (claim(25_000), claim(15_000));
        let normal = (Role::Normal, Role::Normal);
        assert_eq!(roll_forward(normal, &theirs, None, &seals(&[3, 2])), RollForward::Wait);
        let closed = seals(&[3, 3]);
        assert_eq!(roll_forward(normal, &theirs, None, &closed), RollForward::Copy);
        assert_eq!(roll_forward(normal, &theirs, Some(&theirs), &closed), RollForward::Copy);
        let delete = RollForward::Delete { loser: theirs.fid };
        assert_eq!(roll_forward(normal, &theirs, Some(&own), &closed), delete);
        assert_eq!(roll_forward(normal, &own, Some(&theirs), &seals(&[2, 2])), RollForward::Wait);
        let beside = roll_forward((Role::Recovering, Role::Normal), &theirs, Some(&own), &closed);
        assert_eq!(beside, RollForward::Copy, "kept beside the first");
    }
    /// Symptom: after a restart of all members, an acknowledged file was deleted on the in-sync one. Cause:
    /// another member, not in sync, had a lower, never acknowledged file of the name, and the lower one
    /// stayed. Fix: the file of an in-sync member yields only to that of another in-sync one.
    #[test]
    fn an_in_sync_member_does_not_yield_to_one_that_is_not() {
        let (higher, lower) = (claim(25_000), claim(15_000));
        let closed = seals(&[3, 3]);
        for role in [Role::Recovering, Role::Joining] {
            let forward = roll_forward((Role::Normal, role), &lower, Some(&higher), &closed);
            assert_eq!(forward, RollForward::Wait);
        }
    }
}
