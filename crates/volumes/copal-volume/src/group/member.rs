//! A member's decision about a create, a confirmation or a delete, from facts of its rows.
//!
//! The caller looks up the facts. The decision is made here and applied in one batch with the journal
//! (VOL-13). Epochs are compared before (`view::match_epoch`).

use super::role::Role;
use crate::ids::{FileId, OpId};

/// Greatest age of an operation's id, ms: later the digest of its bucket may be computed.
pub const MAX_OP_AGE_MS: u64 = 60_000;
/// Greatest distance of an operation's id ahead of the member's clock, ms.
pub const MAX_OP_AHEAD_MS: u64 = 10_000;

/// Answer of a member to a client's call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberAnswer {
    /// The operation is in the journal here, and on the device.
    Ok {
        /// The member's own role, which only it knows exactly.
        role: Role,
    },
    /// The name belongs to another file. Final for the create.
    Exists {
        /// The live file of that name.
        fid: FileId,
    },
    /// The file was deleted, or a client settled its create so. Final for the create.
    Deleted,
    /// The bucket of the operation is sealed here. Final for the operation's id.
    TooOld,
    /// The operation's time is too far ahead of the member's clock.
    ClockSkew,
    /// The volume was removed. Final.
    VolumeGone,
    /// The disk is full. Deletes are still accepted.
    NoSpace,
    /// The volume's quota is reached. Final for the create.
    QuotaExceeded {
        /// The volume's quota in bytes.
        quota: u64,
        /// Bytes of live files here.
        used: u64,
        /// Bytes of the refused create.
        wanted: u64,
    },
    /// The call confirms a file that the member does not have.
    Missing,
    /// The id does not belong to this file: it is no valid id, or a file of another name or volume has it.
    /// Final; nothing was written.
    OtherFile,
    /// The member is overloaded now.
    Busy,
}

/// How an operation is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcceptKind {
    /// It is new: write its rows.
    Apply,
    /// It is new, and its name has a live file already: write it beside that one. Only a member that may have
    /// missed the delete of the other file does this. It stays out of role N until one of the two is deleted
    /// (VOL-14).
    ApplyBeside,
    /// It is known: journal it as before, and acknowledge again.
    Again,
    /// Its effect is present, and its bucket is sealed: acknowledge, and write nothing. For deletes only.
    Done,
}

/// Facts from a member's rows for a create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreateFacts {
    /// Whether the member has everything of this group: it is in sync, or has persisted that in this epoch.
    pub has_everything: bool,
    /// The member's clock, ms since 1970.
    pub now_ms: u64,
    /// The create.
    pub op: OpId,
    /// Its file.
    pub fid: FileId,
    /// Whether the volume was removed.
    pub is_volume_gone: bool,
    /// Whether the file has a tombstone.
    pub has_tombstone: bool,
    /// Whether the bucket of the operation is sealed.
    pub is_sealed: bool,
    /// Whether the file is live here.
    pub is_live: bool,
    /// Another live file of the same name.
    pub other: Option<FileId>,
}

/// Decides whether and how a create is accepted.
/// # Errors
/// The refusing answer.
pub fn decide_create(facts: &CreateFacts) -> Result<AcceptKind, MemberAnswer> {
    if facts.is_volume_gone {
        return Err(MemberAnswer::VolumeGone);
    }
    check_time(facts.now_ms, facts.op, facts.is_sealed)?;
    if facts.has_tombstone {
        return Err(MemberAnswer::Deleted);
    }
    if facts.is_live {
        return Ok(AcceptKind::Again);
    }
    bind_name(facts)
}

/// Decides whether a file of another member is copied: like a create, without a limit of its age. `Again`:
/// nothing is to be done.
/// # Errors
/// The refusing answer.
pub fn decide_copy(facts: &CreateFacts) -> Result<AcceptKind, MemberAnswer> {
    if facts.is_volume_gone || facts.has_tombstone || facts.is_live {
        return Ok(AcceptKind::Again);
    }
    bind_name(facts)
}

/// Decides how a new file gets its name (VOL-14).
fn bind_name(facts: &CreateFacts) -> Result<AcceptKind, MemberAnswer> {
    match (facts.other, facts.has_everything) {
        (None, _) => Ok(AcceptKind::Apply),
        // A member that has everything knows that the name is taken.
        (Some(fid), true) => Err(MemberAnswer::Exists { fid }),
        (Some(_), false) => Ok(AcceptKind::ApplyBeside),
    }
}

/// Decides whether a member that got the bytes in an earlier epoch acknowledges them in this one.
/// # Errors
/// The refusing answer; `Missing`: the member needs the bytes.
pub fn decide_confirm(facts: &CreateFacts) -> Result<AcceptKind, MemberAnswer> {
    match decide_create(facts)? {
        AcceptKind::Again => Ok(AcceptKind::Again),
        AcceptKind::Apply | AcceptKind::ApplyBeside | AcceptKind::Done => Err(MemberAnswer::Missing),
    }
}

/// Facts from a member's rows for a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeleteFacts {
    /// The member's clock, ms since 1970.
    pub now_ms: u64,
    /// The delete.
    pub op: OpId,
    /// Whether the volume was removed.
    pub is_volume_gone: bool,
    /// Whether the file has a tombstone.
    pub has_tombstone: bool,
    /// Whether the bucket of the operation is sealed.
    pub is_sealed: bool,
    /// Creation time of the file if it is live here, ms; 0: it is not live, or the time was not looked up. A
    /// file that was created while clocks were ahead can be deleted all the same: its delete is later than
    /// its create, and so as far ahead.
    pub created_ms: u64,
}

/// Decides whether and how a delete is accepted. The file need not be live: an unknown file may arrive later.
/// # Errors
/// The refusing answer.
pub fn decide_delete(facts: &DeleteFacts) -> Result<AcceptKind, MemberAnswer> {
    if facts.is_volume_gone {
        return Err(MemberAnswer::VolumeGone);
    }
    let time = match check_time(facts.now_ms, facts.op, facts.is_sealed) {
        Err(MemberAnswer::ClockSkew) => check_time(facts.created_ms, facts.op, facts.is_sealed),
        time => time,
    };
    match (facts.has_tombstone, time) {
        // Another delete of the same file is a separate operation, which every member must have.
        (true, Ok(())) => Ok(AcceptKind::Again),
        (true, Err(_)) => Ok(AcceptKind::Done),
        (false, time) => time.map(|()| AcceptKind::Apply),
    }
}

/// Checks that an id can belong to a file: clients draw it when they begin to write, so it is neither zero
/// nor in the future.
/// # Errors
/// The refusing answer.
pub fn check_file_id(now_ms: u64, fid: FileId) -> Result<(), MemberAnswer> {
    if fid == FileId(0) {
        return Err(MemberAnswer::OtherFile);
    }
    match fid.ms().saturating_sub(now_ms) > MAX_OP_AHEAD_MS {
        true => Err(MemberAnswer::ClockSkew),
        false => Ok(()),
    }
}

fn check_time(now_ms: u64, op: OpId, is_sealed: bool) -> Result<(), MemberAnswer> {
    if is_sealed || now_ms.saturating_sub(op.ms()) > MAX_OP_AGE_MS {
        return Err(MemberAnswer::TooOld);
    }
    if op.ms().saturating_sub(now_ms) > MAX_OP_AHEAD_MS {
        return Err(MemberAnswer::ClockSkew);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_000_000;

    fn facts() -> CreateFacts {
        CreateFacts {
            has_everything: true,
            now_ms: NOW,
            op: OpId(FileId::new(NOW, 1, 7).0),
            fid: FileId::new(NOW, 0, 7),
            is_volume_gone: false,
            has_tombstone: false,
            is_sealed: false,
            is_live: false,
            other: None,
        }
    }

    #[test]
    fn a_taken_name_is_refused_by_complete_members_and_kept_beside_by_others() {
        let fid = FileId::new(5, 5, 5);
        let taken = |has_everything| CreateFacts { has_everything, other: Some(fid), ..facts() };
        for decide in [decide_create, decide_copy] {
            assert_eq!(decide(&taken(true)), Err(MemberAnswer::Exists { fid }));
            assert_eq!(decide(&taken(false)), Ok(AcceptKind::ApplyBeside));
        }
    }

    #[test]
    fn a_deleted_file_never_comes_back() {
        let deleted = CreateFacts { has_tombstone: true, is_live: true, ..facts() };
        assert_eq!(decide_create(&deleted), Err(MemberAnswer::Deleted));
    }

    #[test]
    fn a_duplicate_is_confirmed_again_and_an_unknown_file_is_missing() {
        let held = CreateFacts { is_live: true, ..facts() };
        assert_eq!(decide_create(&held), Ok(AcceptKind::Again));
        assert_eq!(decide_confirm(&held), Ok(AcceptKind::Again));
        assert_eq!(decide_confirm(&facts()), Err(MemberAnswer::Missing));
    }

    #[test]
    fn a_sealed_bucket_accepts_nothing_not_even_a_confirmation() {
        let closed = CreateFacts { is_sealed: true, is_live: true, ..facts() };
        assert_eq!(decide_confirm(&closed), Err(MemberAnswer::TooOld));
        let late = CreateFacts { now_ms: NOW + MAX_OP_AGE_MS + 1, ..facts() };
        assert_eq!(decide_create(&late), Err(MemberAnswer::TooOld));
        let early = CreateFacts { now_ms: NOW - MAX_OP_AHEAD_MS - 1, ..facts() };
        assert_eq!(decide_create(&early), Err(MemberAnswer::ClockSkew));
    }

    #[test]
    fn an_id_of_a_file_is_not_zero_and_not_of_the_future() {
        assert_eq!(check_file_id(NOW, FileId(0)), Err(MemberAnswer::OtherFile));
        let ahead = |ms| check_file_id(NOW, FileId::new(NOW + ms, 0, 7));
        assert_eq!(ahead(MAX_OP_AHEAD_MS), Ok(()));
        assert_eq!(ahead(MAX_OP_AHEAD_MS + 1), Err(MemberAnswer::ClockSkew));
        assert_eq!(check_file_id(NOW, FileId::new(1, 0, 7)), Ok(()), "a long upload");
    }

    #[test]
    fn a_delete_of_an_unknown_file_is_accepted_and_may_be_repeated() {
        let mut delete = DeleteFacts {
            now_ms: NOW,
            op: facts().op,
            is_volume_gone: false,
            has_tombstone: false,
            is_sealed: false,
            created_ms: 0,
        };
        assert_eq!(decide_delete(&delete), Ok(AcceptKind::Apply));
        delete.is_sealed = true;
        assert_eq!(decide_delete(&delete), Err(MemberAnswer::TooOld));
        delete.has_tombstone = true;
        assert_eq!(decide_delete(&delete), Ok(AcceptKind::Done));
        delete.is_sealed = false;
        assert_eq!(decide_delete(&delete), Ok(AcceptKind::Again));
    }
}
