//! Settling of names with two live files, and roll-forward of operations whose client is gone.
//!
//! Nothing is settled or rolled forward before it is sealed on every member that is up: until then its client
//! may still send it to all of them and complete it (VOL-19, VOL-20).
//!
//! Design: docs/design/cluster.md#rules
//! Not here: gossip of seals (`copal-server`).

use super::{closing::Closing, role::Role};
use crate::ids::{FileId, OpId};

/// One of the live files of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// The file.
    pub fid: FileId,
    /// Its create.
    pub op: OpId,
}

/// Whether an operation is sealed on every member that is up. `closings`: their seals, as reported in the
/// asking member's epoch; a member without a report has sealed nothing.
pub fn is_closed_everywhere(op: OpId, closings: &[Closing]) -> bool {
    closings.iter().all(|closing| closing.is_closed(op))
}

/// The file that keeps a name with several live ones, on a member that is not in sync. `closings`: the seals
/// from *before* the donor's snapshot. `donor`: the file that the snapshot has under the name. `None`: it is
/// too early.
pub fn settle_name(claims: &[Claim], closings: &[Closing], donor: Option<FileId>) -> Option<FileId> {
    let is_closed = |claim: &Claim| is_closed_everywhere(claim.op, closings);
    if !claims.iter().all(is_closed) {
        return None;
    }
    let donors = claims.iter().find(|claim| Some(claim.fid) == donor);
    let lowest = claims.iter().min_by_key(|claim| claim.fid);
    donors.or(lowest).map(|claim| claim.fid)
}

/// Action for a sealed create that another member has and this one lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// Too early: its client may still complete or delete it.
    Wait,
    /// Copy it.
    Take,
    /// Its name belongs to another file here, and both members are in sync. They differ only over operations
    /// that were never acknowledged, so any choice will do that all members make alike.
    Bury {
        /// The file to delete.
        loser: FileId,
    },
}

/// Decides the roll-forward of a create. `roles`: of this member and of the other. `bound`: the live file of
/// its name here.
pub fn roll_forward(
    roles: (Role, Role),
    theirs: &Claim,
    bound: Option<&Claim>,
    closings: &[Closing],
) -> Forward {
    if !is_closed_everywhere(theirs.op, closings) {
        return Forward::Wait;
    }
    let Some(own) = bound.filter(|own| own.fid != theirs.fid) else {
        return Forward::Take;
    };
    match (roles.0.is_in_sync(), roles.1.is_in_sync()) {
        (true, true) if is_closed_everywhere(own.op, closings) => {
            Forward::Bury { loser: own.fid.max(theirs.fid) }
        }
        // The file here may have been acknowledged, unlike theirs. The member that is not in sync settles the
        // name by its donor.
        (true, _) => Forward::Wait,
        (false, _) => Forward::Take,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::Bucket;

    fn claim(ms: u64) -> Claim {
        Claim { fid: FileId::new(ms, 0, 1), op: OpId(FileId::new(ms, 1, 1).0) }
    }

    fn closings(below: &[u64]) -> Vec<Closing> {
        let closing = |&below| Closing { below: Bucket(below) };
        below.iter().map(closing).collect()
    }

    #[test]
    fn the_donors_file_keeps_the_name_and_else_the_lower_one_once_both_are_closed_everywhere() {
        let both = [claim(25_000), claim(15_000)];
        assert_eq!(settle_name(&both, &closings(&[3, 3, 2]), None), None);
        let closed = closings(&[3, 9, 3]);
        assert_eq!(settle_name(&both, &closed, None), Some(both[1].fid));
        assert_eq!(settle_name(&both, &closed, Some(both[0].fid)), Some(both[0].fid));
        let other = Some(claim(5).fid);
        assert_eq!(settle_name(&both, &closed, other), Some(both[1].fid));
    }

    #[test]
    fn what_is_closed_everywhere_is_rolled_forward() {
        let (theirs, own) = (claim(25_000), claim(15_000));
        let normal = (Role::Normal, Role::Normal);
        assert_eq!(roll_forward(normal, &theirs, None, &closings(&[3, 2])), Forward::Wait);
        let closed = closings(&[3, 3]);
        assert_eq!(roll_forward(normal, &theirs, None, &closed), Forward::Take);
        assert_eq!(roll_forward(normal, &theirs, Some(&theirs), &closed), Forward::Take);
        let bury = Forward::Bury { loser: theirs.fid };
        assert_eq!(roll_forward(normal, &theirs, Some(&own), &closed), bury);
        assert_eq!(roll_forward(normal, &own, Some(&theirs), &closings(&[2, 2])), Forward::Wait);
        let beside = roll_forward((Role::Recovering, Role::Normal), &theirs, Some(&own), &closed);
        assert_eq!(beside, Forward::Take, "kept beside the first");
    }
    /// Symptom: after a restart of all members, an acknowledged file was deleted on the in-sync one. Cause:
    /// another member, not in sync, had a lower, never acknowledged file of the name, and the lower one
    /// stayed. Fix: the file of an in-sync member yields only to that of another in-sync one.
    #[test]
    fn a_whole_member_does_not_yield_to_one_that_is_not() {
        let (higher, lower) = (claim(25_000), claim(15_000));
        let closed = closings(&[3, 3]);
        for role in [Role::Recovering, Role::Joining] {
            let forward = roll_forward((Role::Normal, role), &lower, Some(&higher), &closed);
            assert_eq!(forward, Forward::Wait);
        }
    }
}
