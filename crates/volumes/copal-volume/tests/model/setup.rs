//! Setup of a search: numbers of clients, failures and seals, and the rules.

use crate::moves::ModelMove;
use copal_volume::{
    FileId, OpId, VolumeId,
    group::{BUCKET_MS, Bucket, DiskId, Epoch, GroupId, Role, View},
};

pub(crate) const MEMBERS: usize = 3;
pub(crate) const VID: VolumeId = VolumeId(1);
/// The name of all files.
pub(crate) const NAME: &[u8] = b"a";

/// A client's operation; files are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ClientWork {
    Create(usize),
    /// Starts as soon as a client can know of the file.
    Delete(usize),
}

/// How a member that was down learns the operations it missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResyncRule {
    /// Copal: it copies everything of a donor's snapshot.
    Containment,
    /// The paper: an in-sync member keeps a log of missed operations for each member that is down. `cache`: a
    /// duplicate is answered from memory, and not logged again.
    MissedLog { cache: bool },
}

/// A rule that is left out, to check that the search finds the fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WeakRule {
    SettleBeforeSeal,
    /// A member confirms a file even after its bucket is sealed.
    ConfirmAfterSeal,
    DonorBehind,
    SealNotCopied,
    InSyncWithTwoFiles,
    /// A member that was down does not learn that it missed operations.
    MissedNotSent,
    /// The master's record that a member is in sync does not record which members are down meanwhile.
    ReportRecordsNoMiss,
    /// A member requests missing operations in a view in which it is down.
    CopiesWhileDown,
    /// An in-sync member deletes its own file of a name in favour of that of a member that is not in sync.
    InSyncYieldsToAny,
}

#[derive(Clone, Debug)]
pub(crate) struct SearchSetup {
    pub(crate) work: Vec<ClientWork>,
    /// Members taken for down. It makes no difference whether they are: a member that is down does nothing.
    pub(crate) failures: u8,
    /// Number of restarts of members.
    pub(crate) restarts: u8,
    /// Number of members replaced by a new disk.
    pub(crate) replacements: u8,
    /// Number of clients that give up. A crashed client simply does nothing more.
    pub(crate) deadlines: u8,
    /// Number of buckets that can be sealed: creates are in the first, deletes in the second.
    pub(crate) seals: u64,
    pub(crate) min_ack: u8,
    /// Number of lost answers; the call is then repeated.
    pub(crate) lost_answers: u8,
    pub(crate) sync: ResyncRule,
    pub(crate) weak: Option<WeakRule>,
    /// Whether members must be equal when no operation is under way.
    pub(crate) checks_equal: bool,
    /// Events before the search begins.
    pub(crate) before: Vec<ModelMove>,
}

impl SearchSetup {
    pub(crate) fn new(work: &[ClientWork]) -> SearchSetup {
        SearchSetup {
            work: work.to_vec(),
            failures: 0,
            restarts: 0,
            replacements: 0,
            deadlines: 0,
            seals: 0,
            min_ack: 2,
            lost_answers: 0,
            sync: ResyncRule::Containment,
            weak: None,
            checks_equal: false,
            before: Vec::new(),
        }
    }

    pub(crate) fn is_weak(&self, weak: WeakRule) -> bool {
        self.weak == Some(weak)
    }

    pub(crate) fn files(&self) -> usize {
        let creates = self.work.iter().filter(|work| matches!(work, ClientWork::Create(_)));
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
