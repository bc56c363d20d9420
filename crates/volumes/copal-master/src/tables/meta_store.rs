//! What the master keeps for ever, as typed calls: no statement of a database leaks out of an implementation.
//!
//! Paper: beanfs §3.4.1 (all of it in a relational database)
//! Invariants
//! - A call is one transaction. Ids and versions come from the store and are never given twice.
//! - Every change of a server, a disk, a group or a quota takes a new version, greater than all before: the
//!   number of the map.
//! - Only the holder of the lease changes anything: each change begins with a look at the lease, in its own
//!   transaction, so that a master which was paused and has been replaced changes nothing
//!   ([`MetaError::Deposed`]).
//! - No call but [`MetaStore::find`] looks a volume up by its id: there is no index for that, and a scan of
//!   fifty million rows stops the master.

pub use crate::tables::server_state::{MemberKind, ServerState};
use copal_volume::{
    VolumeError, VolumeId,
    group::{GroupId, Incarnation},
};
use std::collections::BTreeMap;

/// A data server with its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRow {
    /// Number of the disk: what members of groups are known by.
    pub disk: u32,
    /// The server's name, unique among those that are there.
    pub name: String,
    /// Where it listens: host:port.
    pub address: String,
    /// Name in its certificate.
    pub server_uuid: [u8; 16],
    /// What tells the disk from one that was put in its place.
    pub disk_uuid: [u8; 16],
    /// State, and the version of the map since when.
    pub state: ServerState,
    /// Version of the map of its last change.
    pub version: u64,
    /// The newest boot that was seen.
    pub incarnation: Incarnation,
    /// It is being emptied.
    pub is_draining: bool,
    /// Away since, ms since 1970; 0: it is there. Ahead of now: its absence is announced until then, whether
    /// it is away yet.
    pub failed_since_ms: u64,
    /// Bytes it can hold.
    pub capacity_bytes: u64,
    /// Where it stands, as it told last; empty: not told.
    pub zone: String,
    /// The rack, in its zone; empty: not told.
    pub rack: String,
}

impl ServerRow {
    /// Whether it takes part in nothing now.
    pub fn is_away(&self) -> bool {
        self.state.is_away()
    }
}

/// A group, and the disk of a member without which its operations could hold.
pub type Missed = (GroupId, u32);

/// Numbers of groups as a statement names them.
pub(crate) fn listed(groups: &[GroupId]) -> String {
    let numbers: Vec<String> = groups.iter().map(|group| group.0.to_string()).collect();
    numbers.join(",")
}

/// Disks of a group and how they are members, ascending.
pub type Members = Vec<(u32, MemberKind)>;

/// A group and its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRow {
    /// The group.
    pub group: GroupId,
    /// Version of the map of the last change of its members.
    pub version: u64,
    /// Disks and how they are members, ascending.
    pub members: Members,
}

/// What an administrator wants of a group that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRow {
    /// Its copy goes before others of its age.
    Boost {
        /// The group.
        group: GroupId,
        /// By so much.
        by: u32,
    },
    /// A copy of it is to lie elsewhere.
    Move {
        /// The group.
        group: GroupId,
        /// The disk that it leaves.
        from: u32,
        /// The disk that takes its place.
        to: u32,
    },
}

/// Tells tasks of a group apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TaskKind {
    /// See [`TaskRow::Boost`].
    Boost,
    /// See [`TaskRow::Move`].
    Move,
}

impl TaskKind {
    pub(crate) fn word(self) -> &'static str {
        match self {
            TaskKind::Boost => "boost",
            TaskKind::Move => "move",
        }
    }
}

impl TaskRow {
    /// Its group.
    pub fn group(&self) -> GroupId {
        match *self {
            TaskRow::Boost { group, .. } | TaskRow::Move { group, .. } => group,
        }
    }

    /// Its kind: a group has one task of each at most.
    pub fn kind(&self) -> TaskKind {
        match self {
            TaskRow::Boost { .. } => TaskKind::Boost,
            TaskRow::Move { .. } => TaskKind::Move,
        }
    }

    /// Columns: kind, group, and two numbers.
    pub(crate) fn columns(&self) -> (&'static str, u32, u32, u32) {
        let word = self.kind().word();
        match *self {
            TaskRow::Boost { group, by } => (word, group.0, by, 0),
            TaskRow::Move { group, from, to } => (word, group.0, from, to),
        }
    }

    pub(crate) fn of_columns(word: &str, group: u32, first: u32, second: u32) -> Option<TaskRow> {
        let group = GroupId(group);
        match word {
            "boost" => Some(TaskRow::Boost { group, by: first }),
            "move" => Some(TaskRow::Move { group, from: first, to: second }),
            _ => None,
        }
    }
}

/// Names of what is kept beside the tables of rows.
pub mod setting {
    /// Servers, racks or zones: what the members of a group are to differ in (`host`, `rack`, `zone`).
    pub const DOMAIN: &str = "domain";
    /// Data servers that a new cluster waits for before its groups get their first members.
    pub const FIRST_SERVERS: &str = "first_servers";
    /// Moves do not begin: `1`.
    pub const REBALANCE_PAUSED: &str = "rebalance_paused";
    /// A client of this name was taken away, and none is to be called so again.
    pub fn removed_client(name: &str) -> String {
        format!("removed_client/{name}")
    }
    /// The tables are older than what data servers have heard of, or a copy that was put back; why, as a
    /// sentence. Nobody leads by them before they were raised ([`super::MetaStore::raise`]).
    pub const OLDER: &str = "older";
}

/// How far versions of the map, and terms, are raised above all that were given: a cluster makes fewer in a
/// lifetime.
pub(crate) const RAISED_VERSIONS: u64 = 1 << 32;
/// How far the numbers of new volumes are raised in each group.
pub(crate) const RAISED_VOLUMES: u64 = 1 << 24;

/// What holds for all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Copies of each group.
    pub replicas: u8,
    /// Members that must have an operation before it holds.
    pub min_ack: u8,
    /// Number of groups, fixed when the cluster was made.
    pub groups: u32,
}

/// The cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterRow {
    /// Drawn when the cluster was made.
    pub uuid: [u8; 16],
    /// Highest version that was given.
    pub map_version: u64,
    /// Number of the reign.
    pub term: u64,
    /// What holds for all groups.
    pub pool: Pool,
}

/// Where a volume stands in the tree. Calls on a volume take it, since rows are found by parent and name
/// alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The volume above it.
    pub parent: VolumeId,
    /// Its name below its parent.
    pub name: &'a str,
    /// The volume that is meant; another one of that name is left alone.
    pub vid: VolumeId,
}

/// A volume by its path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirRow {
    /// The volume.
    pub vid: VolumeId,
    /// Its name below its parent.
    pub name: String,
    /// It is being removed.
    pub is_removing: bool,
}

/// Limit of a volume, and the version of the map that set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaRow {
    /// The volume.
    pub vid: VolumeId,
    /// Bytes that its files may have.
    pub bytes: u64,
    /// Version of the map.
    pub version: u64,
}

/// One start of one master: uuid of the node, then a random number of the start, so that a restart begins a
/// new reign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder(pub [u8; 24]);

/// Who leads, after a master has asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lead {
    /// Whoever asked.
    Mine {
        /// Number of its reign.
        term: u64,
    },
    /// Another master.
    Theirs {
        /// Until its lease ends if it is not renewed, ms of the database's clock.
        left_ms: u64,
    },
}

/// A lease that is not renewed ends after so long, by the database's clock.
pub const LEASE_MS: u64 = 10_000;

/// Errors of the store below.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetaError {
    /// Nothing was changed.
    #[error("the master's database failed: {0}")]
    Failed(String),
    /// The database is not reached, or is just starting or ending. Nothing was changed.
    #[error("the master's database is not reached: {0}")]
    Away(String),
    /// The connection broke during the commit: whether the change holds is unknown, so the master has to
    /// begin a new reign.
    #[error(
        "the master's database went away during a commit, which may hold or not: {0}; start the master again"
    )]
    Unclear(String),
    /// Another process has the file.
    #[error("{path} is in use by another master; stop that one first")]
    Held {
        /// The file.
        path: String,
    },
    /// The lease is not held, or not any more. Nothing was changed.
    #[error("this master does not lead (any more), so it changes nothing; ask the one that does")]
    Deposed,
}

/// Outcome of a call that users can make fail.
pub type Meta<T> = Result<Result<T, VolumeError>, MetaError>;

/// What the master keeps for ever.
pub trait MetaStore: Send {
    /// The cluster; `None`: the store is new.
    fn cluster(&mut self) -> Result<Option<ClusterRow>, MetaError>;
    /// Makes the cluster in a new store.
    fn found(&mut self, uuid: [u8; 16], pool: Pool) -> Result<(), MetaError>;

    /// Asks for the lease, which begins a reign: its term is a new one, also where the same holder had the
    /// lease, since what others said to the reign before is not known to this one. Until it was given nothing
    /// but [`MetaStore::found`] changes anything.
    fn lead(&mut self, holder: Holder) -> Result<Lead, MetaError>;
    /// Renews the lease for [`LEASE_MS`]; false: another master has had it since, and this one is deposed.
    fn renew(&mut self) -> Result<bool, MetaError>;

    /// Raises what the leader gives above everything that was given after the tables were copied: the version
    /// of the map and the term above these, the numbers of new volumes by far, and takes away
    /// [`setting::OLDER`] and all tokens. The reign goes on under the new term, which is returned.
    fn raise(&mut self, version: u64, term: u64) -> Result<u64, MetaError>;

    /// Whether the lease ends unless it is renewed: several masters may share the store.
    fn has_lease(&self) -> bool;

    /// What is kept under names ([`setting`]).
    fn settings(&mut self) -> Result<BTreeMap<String, String>, MetaError>;
    /// Keeps a setting; `None`: it goes.
    fn set(&mut self, name: &str, value: Option<&str>) -> Result<(), MetaError>;
    /// What administrators want of groups, ascending by kind and group.
    fn tasks(&mut self) -> Result<Vec<TaskRow>, MetaError>;
    /// Keeps tasks, each in the place of one of its kind and group, and forgets others.
    fn change_tasks(&mut self, keep: &[TaskRow], forget: &[(TaskKind, GroupId)]) -> Result<(), MetaError>;

    /// Addresses of all masters, in the order in which they were added.
    fn masters(&mut self) -> Result<Vec<String>, MetaError>;
    /// Adds the address of a master; one that is there is left as it is.
    fn add_master(&mut self, address: &str) -> Result<(), MetaError>;

    /// All servers.
    fn servers(&mut self) -> Result<Vec<ServerRow>, MetaError>;
    /// Adds a server; its disk's number, and the map's version.
    fn add_server(&mut self, server: &ServerRow) -> Result<(u32, u64), MetaError>;
    /// Keeps what changed of a server, as the map's next version, which is returned. From that version on
    /// operations can hold without the members in `missed`.
    fn change_server(&mut self, server: &ServerRow, missed: &[Missed]) -> Result<u64, MetaError>;
    /// Takes a server away that is a member of no group.
    fn remove_server(&mut self, disk: u32) -> Result<(), MetaError>;

    /// All groups that have members.
    fn groups(&mut self) -> Result<Vec<GroupRow>, MetaError>;
    /// Keeps the members of groups, as the map's next version, which is returned. From that version on
    /// operations can hold without the members in `missed`; what is kept of disks that are no members any
    /// more goes. Of a member that is joining the version before is kept: it takes part from this one on.
    fn change_groups(&mut self, groups: &[(GroupId, Members)], missed: &[Missed]) -> Result<u64, MetaError>;
    /// A disk has everything again in these groups.
    fn forget_missed(&mut self, disk: u32, groups: &[GroupId]) -> Result<(), MetaError>;
    /// Members without which operations could hold, and the newest version in which that began.
    fn missed(&mut self) -> Result<Vec<(Missed, u64)>, MetaError>;

    /// Volumes at the end of each prefix of a path, the top first; shorter than the path where one is
    /// missing.
    fn resolve(&mut self, path: &[&str]) -> Result<Vec<DirRow>, MetaError>;
    /// Makes a volume in a group; with a quota it is a change of the map.
    fn mkdir(&mut self, parent: VolumeId, name: &str, group: GroupId, quota: Option<u64>) -> Meta<VolumeId>;
    /// Quotas that were set since a version of the map, in their order.
    fn quotas(&mut self, since: u64) -> Result<Vec<QuotaRow>, MetaError>;
    /// Where a volume is, by its id alone. Reads the whole table: for who has lost the path.
    fn find(&mut self, vid: VolumeId) -> Result<Option<(VolumeId, String)>, MetaError>;
    /// Direct children of a volume.
    fn list(&mut self, parent: VolumeId, after: Option<&str>, limit: usize)
    -> Result<Vec<DirRow>, MetaError>;
    /// Marks a volume as being removed, or not any more. `NotEmpty`: it has volumes below it. `VolumeGone`:
    /// it is not there.
    fn mark_removing(&mut self, at: Place<'_>, is_removing: bool) -> Meta<()>;
    /// Takes back every mark of a volume that is being removed: whoever began that rules no more. Returns how
    /// many there were.
    fn unmark_all(&mut self) -> Result<u64, MetaError>;
    /// Takes a volume away for good; the map's version from which on it is gone. `VolumeGone`: it is not
    /// there.
    fn remove(&mut self, at: Place<'_>) -> Meta<u64>;
    /// Volumes that are gone since a version of the map, and not yet from everywhere.
    fn gone(&mut self, since: u64) -> Result<Vec<(VolumeId, u64)>, MetaError>;
    /// Every member knows that a volume is gone, for ever: nobody has to be told any more.
    fn forget_gone(&mut self, vid: VolumeId) -> Result<(), MetaError>;
    /// Moves a volume that is not being removed. `NotFound`: it is not there. `VolumeExists`: the name is
    /// taken.
    fn rename(&mut self, from: Place<'_>, parent: VolumeId, name: &str) -> Meta<()>;
    /// Volumes born in each group: for spreading new ones.
    fn volumes_by_group(&mut self) -> Result<Vec<(GroupId, u64)>, MetaError>;

    /// Keeps the hash of a token's secret until it ends.
    fn add_token(&mut self, hash: [u8; 32], ends_ms: u64) -> Result<(), MetaError>;
    /// Takes a token: whether it was there and had not ended.
    fn take_token(&mut self, hash: [u8; 32], now_ms: u64) -> Result<bool, MetaError>;

    /// Clients that may do only what they were granted, by name.
    fn clients(&mut self) -> Result<Vec<ClientRow>, MetaError>;
    /// Adds a client; false: there is one of that name.
    fn add_client(&mut self, client: &ClientRow) -> Result<bool, MetaError>;
    /// Takes a client away; false: there is none of that name.
    fn remove_client(&mut self, name: &str) -> Result<bool, MetaError>;

    /// Writes down what happened.
    fn note(&mut self, now_ms: u64, kind: &str, text: &str) -> Result<(), MetaError>;
    /// What happened last, the oldest first.
    fn events(&mut self, after: u64, limit: usize) -> Result<Vec<EventRow>, MetaError>;
}

/// A client that may do only what it was granted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRow {
    /// Its name, which stands in its certificate.
    pub name: String,
    /// Below which path it may do something.
    pub path: String,
    /// What: 1 read, 2 create, 4 delete.
    pub rights: u32,
    /// Since when, ms since 1970.
    pub made_ms: u64,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRow {
    /// Its number.
    pub number: u64,
    /// When, ms since 1970.
    pub at_ms: u64,
    /// A word.
    pub kind: String,
    /// A sentence.
    pub text: String,
}
