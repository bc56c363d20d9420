//! What is searched: how many clients, failures and closings, and under which rules.

use crate::moves::Move;
use copal_volume::{
    FileId, OpId, VolumeId,
    group::{BUCKET_MS, Bucket, DiskId, Epoch, GroupId, Role, View},
};

pub(crate) const MEMBERS: usize = 3;
pub(crate) const VID: VolumeId = VolumeId(1);
/// All files want this name.
pub(crate) const NAME: &[u8] = b"a";

/// What a client does; files are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    Create(usize),
    /// As soon as it can know of the file.
    Delete(usize),
}

/// How a member that was away comes to know what it missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sync {
    /// Copal: it has all that a donor's snapshot has.
    Containment,
    /// The paper: a whole member keeps a log for each that is away, of what that one misses. `cache`: a
    /// duplicate is answered from memory, and not logged again.
    MissedLog { cache: bool },
}

/// A rule that is left out, to see that the search finds out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weak {
    SettleBeforeClosing,
    /// A member that holds a file says so even when the time of the file is closed.
    ConfirmAfterClosing,
    DonorBehind,
    ClosingNotTakenOver,
    WholeWithTwoOfOneName,
    /// A member that was away is not told what it missed.
    MissedNotTold,
    /// A member asks for what it lacks in a view in which it is away.
    CopiesWhileAway,
    /// A whole member buries its own file of a name for that of one that is not whole.
    WholeYieldsToAny,
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) work: Vec<Work>,
    /// Members that are taken for away. Whether they are does not matter: who is away does nothing more.
    pub(crate) failures: u8,
    /// Members that start again.
    pub(crate) restarts: u8,
    /// Members replaced by a new disk.
    pub(crate) replacements: u8,
    /// Clients that wait no longer. One that crashed does nothing more.
    pub(crate) deadlines: u8,
    /// Buckets that can be closed: creates are in the first, deletes and burials in the second.
    pub(crate) closings: u64,
    pub(crate) min_ack: u8,
    /// Answers that are lost, so that the call is repeated.
    pub(crate) lost_answers: u8,
    pub(crate) sync: Sync,
    pub(crate) weak: Option<Weak>,
    /// Look whether members are equal when nothing is under way.
    pub(crate) checks_equal: bool,
    /// What has happened before the search begins.
    pub(crate) before: Vec<Move>,
}

impl Setup {
    pub(crate) fn new(work: &[Work]) -> Setup {
        Setup {
            work: work.to_vec(),
            failures: 0,
            restarts: 0,
            replacements: 0,
            deadlines: 0,
            closings: 0,
            min_ack: 2,
            lost_answers: 0,
            sync: Sync::Containment,
            weak: None,
            checks_equal: false,
            before: Vec::new(),
        }
    }

    pub(crate) fn is_weak(&self, weak: Weak) -> bool {
        self.weak == Some(weak)
    }

    pub(crate) fn files(&self) -> usize {
        let creates = self.work.iter().filter(|work| matches!(work, Work::Create(_)));
        creates.count()
    }

    pub(crate) fn first_view(&self) -> View {
        View {
            group: GroupId(1),
            epoch: Epoch(1),
            members: (1..=MEMBERS as u32).map(|disk| (DiskId(disk), Role::Normal)).collect(),
            replicas: MEMBERS as u8,
            min_ack: self.min_ack,
        }
    }
}

const CREATES: u64 = 1;
const DELETES: u64 = 2;
/// Nothing below it is ever used.
pub(crate) const FIRST: Bucket = Bucket(CREATES);

pub(crate) fn fid(file: usize) -> FileId {
    FileId::new(CREATES * BUCKET_MS, 0, file as u64)
}

pub(crate) fn create(file: usize) -> OpId {
    OpId(FileId::new(CREATES * BUCKET_MS, 1, file as u64).0)
}

pub(crate) fn delete(file: usize) -> OpId {
    OpId(FileId::new(DELETES * BUCKET_MS, 1, file as u64).0)
}

/// The number of a file.
pub(crate) fn number(fid: FileId) -> usize {
    fid.incarnation() as usize
}
