//! Invariants of a group in every state, checked by the model checker and by other programs that drive a
//! group and record the results of its clients.
//!
//! Design: docs/design/cluster.md#invariants
//!
//! Not here: how a state is reached.

use super::{
    role::Role,
    view::{DiskId, Epoch, Term},
};
use crate::ids::{FileId, VolumeId};

/// Contents of a member.
pub trait ReplicaState {
    /// Its disk.
    fn disk(&self) -> DiskId;
    /// Its own role; [`Role::Failed`] if it is down in the current view.
    fn role(&self) -> Role;
    /// The live file to which a name leads.
    fn resolve(&self, vid: VolumeId, name: &[u8]) -> Option<FileId>;
    /// Whether a file is live, under its name or beside another.
    fn is_live(&self, vid: VolumeId, name: &[u8], fid: FileId) -> bool;
}

/// Result of one operation as the clients know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KnownResult {
    /// No client has asked for it.
    NotAsked,
    /// A client has asked for it; its result is unknown, or will never be known.
    Open,
    /// It was reported as complete.
    Complete,
    /// It was reported as one that never happens.
    Refused,
}

/// Results of a file's operations as the clients know them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileResults<'a> {
    /// Its volume.
    pub vid: VolumeId,
    /// Its name.
    pub name: &'a [u8],
    /// The file.
    pub fid: FileId,
    /// Its create.
    pub created: KnownResult,
    /// All deletes of it by users.
    pub deleted: KnownResult,
}

/// A violated invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvariantViolation {
    /// I1: an in-sync member lacks an acknowledged file.
    #[error("I1: file {fid} was acknowledged, and disk {disk}, which is in sync, lacks it")]
    Lost {
        /// The file.
        fid: FileId,
        /// The member.
        disk: DiskId,
    },
    /// I2: two members differ although nothing is under way.
    #[error("I2: no operation is under way, and disks {one} and {other} differ")]
    Different {
        /// A member.
        one: DiskId,
        /// Another.
        other: DiskId,
    },
    /// I3: an in-sync member has a file whose delete was acknowledged.
    #[error("I3: the delete of file {fid} was acknowledged, and disk {disk}, which is in sync, has the file")]
    CameBack {
        /// The file.
        fid: FileId,
        /// The member.
        disk: DiskId,
    },
    /// I4: two files of one name were both acknowledged.
    #[error("I4: files {one} and {other} of one name were both acknowledged")]
    TwoOfOneName {
        /// A file.
        one: FileId,
        /// Another.
        other: FileId,
    },
    /// I5: an epoch or a term fell.
    #[error("I5: disk {disk} went back from one epoch or term to an older one")]
    WentBack {
        /// The member.
        disk: DiskId,
    },
    /// I9: an in-sync member has a file whose create failed for good.
    #[error("I9: file {fid} was refused for good, and disk {disk}, which is in sync, has it")]
    RefusedAppears {
        /// The file.
        fid: FileId,
        /// The member.
        disk: DiskId,
    },
}

/// Checks I1, I3, I4 and I9 in one state.
/// # Errors
/// The first violation.
pub fn check(members: &[impl ReplicaState], files: &[FileResults<'_>]) -> Result<(), InvariantViolation> {
    for member in members.iter().filter(|member| member.role().is_in_sync()) {
        for file in files {
            check_file(member, file)?;
        }
    }
    one_of_a_name(files)
}

fn check_file(member: &impl ReplicaState, file: &FileResults<'_>) -> Result<(), InvariantViolation> {
    let (fid, disk) = (file.fid, member.disk());
    let is_live = member.is_live(file.vid, file.name, fid);
    let is_shown = is_live && member.resolve(file.vid, file.name) == Some(fid);
    // A file with an unfinished delete may be live or not.
    if file.created == KnownResult::Complete
        && matches!(file.deleted, KnownResult::NotAsked | KnownResult::Refused)
        && !is_shown
    {
        return Err(InvariantViolation::Lost { fid, disk });
    }
    if is_live && file.deleted == KnownResult::Complete {
        return Err(InvariantViolation::CameBack { fid, disk });
    }
    if is_live && file.created == KnownResult::Refused {
        return Err(InvariantViolation::RefusedAppears { fid, disk });
    }
    Ok(())
}

/// I4: of the files of a name without any delete by a client, at most one was acknowledged.
fn one_of_a_name(files: &[FileResults<'_>]) -> Result<(), InvariantViolation> {
    let stays = |file: &&FileResults<'_>| {
        file.created == KnownResult::Complete && file.deleted == KnownResult::NotAsked
    };
    for (at, one) in files.iter().enumerate().filter(|(_, file)| stays(file)) {
        let mut others = files[at + 1..].iter().filter(stays);
        if let Some(other) = others.find(|other| (other.vid, other.name) == (one.vid, one.name)) {
            return Err(InvariantViolation::TwoOfOneName { one: one.fid, other: other.fid });
        }
    }
    Ok(())
}

/// I2, for a state without operations under way and with all buckets sealed: in-sync members have the same of
/// these files.
/// # Errors
/// `Different`.
pub fn check_equal(
    members: &[impl ReplicaState],
    files: &[FileResults<'_>],
) -> Result<(), InvariantViolation> {
    let whole: Vec<_> = members.iter().filter(|member| member.role().is_in_sync()).collect();
    for two in whole.windows(2) {
        let differs = |file: &FileResults<'_>| {
            let live = |member: usize| two[member].is_live(file.vid, file.name, file.fid);
            live(0) != live(1)
        };
        if files.iter().any(differs) {
            return Err(InvariantViolation::Different { one: two[0].disk(), other: two[1].disk() });
        }
    }
    Ok(())
}

/// I5, for one step of a member or a restart.
/// # Errors
/// `WentBack`.
pub fn check_step(
    disk: DiskId,
    before: (Epoch, Term),
    after: (Epoch, Term),
) -> Result<(), InvariantViolation> {
    match after.0 < before.0 || after.1 < before.1 {
        true => Err(InvariantViolation::WentBack { disk }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::slice::from_ref;

    struct Shown(Role, Option<FileId>, Vec<FileId>);

    impl ReplicaState for Shown {
        fn disk(&self) -> DiskId {
            DiskId(3)
        }
        fn role(&self) -> Role {
            self.0
        }
        fn resolve(&self, _: VolumeId, _: &[u8]) -> Option<FileId> {
            self.1
        }
        fn is_live(&self, _: VolumeId, _: &[u8], fid: FileId) -> bool {
            self.2.contains(&fid)
        }
    }

    fn file(number: u64, created: KnownResult, deleted: KnownResult) -> FileResults<'static> {
        FileResults { vid: VolumeId(1), name: b"a", fid: FileId::new(number, 0, 0), created, deleted }
    }

    #[test]
    fn each_violation_is_seen() {
        use KnownResult::{Complete, NotAsked, Open, Refused};
        let (one, other) = (file(1, Complete, NotAsked), file(2, Complete, NotAsked));
        let (fid, disk) = (one.fid, DiskId(3));
        let whole = |shown: Option<FileId>, live: &[FileId]| Shown(Role::Normal, shown, live.to_vec());
        let lost = Err(InvariantViolation::Lost { fid, disk });
        assert_eq!(check(&[whole(None, &[])], from_ref(&one)), lost);
        assert_eq!(check(&[whole(None, &[fid])], from_ref(&one)), lost, "hidden behind another");
        assert_eq!(check(&[whole(Some(fid), &[fid])], from_ref(&one)), Ok(()));
        assert_eq!(check(&[whole(None, &[])], &[file(1, Complete, Open)]), Ok(()));
        assert_eq!(check(&[Shown(Role::Recovering, None, vec![])], from_ref(&one)), Ok(()));
        let back = check(&[whole(Some(fid), &[fid])], &[file(1, Complete, Complete)]);
        assert_eq!(back, Err(InvariantViolation::CameBack { fid, disk }));
        let refused = check(&[whole(Some(fid), &[fid])], &[file(1, Refused, NotAsked)]);
        assert_eq!(refused, Err(InvariantViolation::RefusedAppears { fid, disk }));
        let none: [Shown; 0] = [];
        let two = InvariantViolation::TwoOfOneName { one: fid, other: other.fid };
        assert_eq!(check(&none, &[one.clone(), other]), Err(two));
        let unequal = check_equal(&[whole(None, &[]), whole(Some(fid), &[fid])], from_ref(&one));
        assert_eq!(unequal, Err(InvariantViolation::Different { one: disk, other: disk }));
        let at = |epoch, term| (Epoch(epoch), Term(term));
        assert_eq!(check_step(disk, at(2, 2), at(3, 2)), Ok(()));
        for lower in [at(1, 2), at(2, 1)] {
            assert_eq!(check_step(disk, at(2, 2), lower), Err(InvariantViolation::WentBack { disk }));
        }
    }
}
