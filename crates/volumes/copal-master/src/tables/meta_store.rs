//! The master's persistent tables as typed calls, independent of the database.
//!
//! Paper: beanfs §3.4.1 (metadata in a relational database)
//! Invariants
//! - A call is one transaction. Ids and versions come from the store and are never given twice.
//! - Every change of a server, a disk, a group or a quota takes a new version of the map, greater than all
//!   earlier ones.
//! - Only the holder of the lease changes tables. Each change checks the lease in its own transaction, so a
//!   master that was paused and replaced changes nothing ([`MetaError::Deposed`]).
//! - Only [`MetaStore::find`] searches a volume by its id. No index serves that, and a scan of fifty million
//!   rows stops the master.

pub use crate::tables::server_state::{MemberKind, ServerState};
use copal_volume::{
    VolumeError, VolumeId,
    group::{GroupId, Incarnation},
};
use std::collections::BTreeMap;

/// A data server with its disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerRow {
    /// Number of the disk; it identifies members of groups.
    pub disk: u32,
    /// The server's name, unique among the present servers.
    pub name: String,
    /// Address: host:port.
    pub address: String,
    /// Name in its certificate.
    pub server_uuid: [u8; 16],
    /// Identity of the disk; a disk in its place has another one.
    pub disk_uuid: [u8; 16],
    /// State.
    pub state: ServerState,
    /// Version of the map with its last change.
    pub version: u64,
    /// The newest boot that was seen.
    pub incarnation: Incarnation,
    /// It is being drained.
    pub is_draining: bool,
    /// Time of its failure, ms since 1970; 0: it is up. A time in the future is the end of an announced
    /// absence, which may not have begun.
    pub failed_since_ms: u64,
    /// Bytes that the disk can hold.
    pub capacity_bytes: u64,
    /// Zone of its last report; empty: not reported.
    pub zone: String,
    /// Rack in the zone; empty: not reported.
    pub rack: String,
}

impl ServerRow {
    /// Whether it takes part in no operation.
    pub fn is_away(&self) -> bool {
        self.state.is_away()
    }
}

/// A group, and the disk of a member without which its operations could complete.
pub type MissedMember = (GroupId, u32);

/// Numbers of groups as a list in a statement.
pub(crate) fn listed(groups: &[GroupId]) -> String {
    let numbers: Vec<String> = groups.iter().map(|group| group.0.to_string()).collect();
    numbers.join(",")
}

/// Disks of a group and the kinds of their membership, ascending.
pub type MemberList = Vec<(u32, MemberKind)>;

/// A group and its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupRow {
    /// The group.
    pub group: GroupId,
    /// Version of the map with the last change of its members.
    pub version: u64,
    /// Disks and the kinds of their membership, ascending.
    pub members: MemberList,
}

/// Order of an administrator for a group that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskRow {
    /// Its copy runs before others that became due in the same minute.
    Boost {
        /// The group.
        group: GroupId,
        /// Number of boosts.
        by: u32,
    },
    /// A copy of it moves.
    Move {
        /// The group.
        group: GroupId,
        /// The disk that it leaves.
        from: u32,
        /// The disk that takes its place.
        to: u32,
    },
}

/// Kind of a task.
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

    /// Its kind; a group has at most one task of each kind.
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

/// Names of settings.
pub mod setting {
    /// Unit in which the members of a group differ: `host`, `rack` or `zone`.
    pub const DOMAIN: &str = "domain";
    /// Data servers that a new cluster waits for before its groups get their first members.
    pub const FIRST_SERVERS: &str = "first_servers";
    /// `1`: no moves begin.
    pub const REBALANCE_PAUSED: &str = "rebalance_paused";
    /// A client of this name was removed; no other client gets the name.
    pub fn removed_client(name: &str) -> String {
        format!("removed_client/{name}")
    }
    /// The tables are a restored copy, or older than versions that data servers have seen; the value is the
    /// reason as a sentence. No master leads with them before their counters are raised
    /// ([`super::MetaStore::raise_counters`]).
    pub const STALE_TABLES: &str = "older";
}

/// Distance by which versions of the map and terms are raised above all that were given. A cluster makes fewer
/// in its lifetime.
pub(crate) const RAISED_VERSIONS: u64 = 1 << 32;
/// Distance by which the numbers of new volumes are raised in each group.
pub(crate) const RAISED_VOLUMES: u64 = 1 << 24;

/// Configuration of all groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolConfig {
    /// Copies of each group.
    pub replicas: u8,
    /// Members that must have an operation before it is complete.
    pub min_ack: u8,
    /// Number of groups, fixed when the cluster was created.
    pub groups: u32,
}

/// The cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterRow {
    /// Drawn when the cluster was created.
    pub uuid: [u8; 16],
    /// Highest version of the map.
    pub map_version: u64,
    /// Number of the term.
    pub term: u64,
    /// Configuration of all groups.
    pub pool: PoolConfig,
}

/// Place of a volume in the tree. Calls on a volume take its place, because rows are found by parent and name
/// alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumePlace<'a> {
    /// The parent volume.
    pub parent: VolumeId,
    /// Its name below its parent.
    pub name: &'a str,
    /// The volume. A call changes nothing if another volume has the name.
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

/// Quota of a volume, and the version of the map that set it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuotaRow {
    /// The volume.
    pub vid: VolumeId,
    /// Limit for the bytes of its files.
    pub bytes: u64,
    /// Version of the map.
    pub version: u64,
}

/// Identity of one start of a master: the uuid of the node, and a random number of the start, so that a restart
/// begins a new term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseHolder(pub [u8; 24]);

/// Answer to a request for the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseOutcome {
    /// The caller leads.
    Mine {
        /// Number of its term.
        term: u64,
    },
    /// Another master leads.
    Theirs {
        /// Time until its lease ends if it is not renewed, ms of the database's clock.
        left_ms: u64,
    },
}

/// Duration of the lease after each renewal, ms of the database's clock.
pub const LEASE_MS: u64 = 10_000;

/// Errors of the database.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetaError {
    /// The call failed and changed nothing.
    #[error("the master's database failed: {0}")]
    Failed(String),
    /// The database cannot be reached, or is starting or stopping. The call changed nothing.
    #[error("the master's database cannot be reached: {0}")]
    Away(String),
    /// The connection broke during the commit, so the outcome of the change is unknown. The master must begin
    /// a new term.
    #[error(
        "the connection to the master's database broke during a commit with unknown outcome: {0}; start the master again"
    )]
    Unclear(String),
    /// Another process has the file open.
    #[error("{path} is in use by another master; stop that one first")]
    Held {
        /// The file.
        path: String,
    },
    /// The caller does not hold the lease. The call changed nothing.
    #[error("this master does not lead, so it changes nothing; ask the leader")]
    Deposed,
}

/// Result of a call whose request may be invalid: the inner error is the user's.
pub type MetaOutcome<T> = Result<Result<T, VolumeError>, MetaError>;

/// The master's persistent tables.
pub trait MetaStore: Send {
    /// The cluster; `None`: the store is new.
    fn cluster(&mut self) -> Result<Option<ClusterRow>, MetaError>;
    /// Creates the cluster in a new store.
    fn create_cluster(&mut self, uuid: [u8; 16], pool: PoolConfig) -> Result<(), MetaError>;

    /// Requests the lease, which begins a term. The term is a new one also if the same holder had the lease,
    /// because this term does not know the reports to the one before. Before the lease is granted, only
    /// [`MetaStore::create_cluster`] may change tables.
    fn lead(&mut self, holder: LeaseHolder) -> Result<LeaseOutcome, MetaError>;
    /// Renews the lease for [`LEASE_MS`]; false: another master has had it since, so this one is deposed.
    fn renew(&mut self) -> Result<bool, MetaError>;

    /// Raises all counters above the values that were given after the tables were copied. The version of the
    /// map and the term rise above the arguments, and the numbers of new volumes rise by a fixed distance.
    /// Deletes [`setting::STALE_TABLES`] and all tokens. Returns the new term, in which the caller leads.
    fn raise_counters(&mut self, version: u64, term: u64) -> Result<u64, MetaError>;

    /// Whether the lease ends unless it is renewed, because several masters may share the store.
    fn has_lease(&self) -> bool;

    /// All settings by name ([`setting`]).
    fn settings(&mut self) -> Result<BTreeMap<String, String>, MetaError>;
    /// Sets a setting; `None` deletes it.
    fn set_setting(&mut self, name: &str, value: Option<&str>) -> Result<(), MetaError>;
    /// Orders of administrators, ascending by kind and group.
    fn tasks(&mut self) -> Result<Vec<TaskRow>, MetaError>;
    /// Stores tasks, each in the place of the one of its kind and group, and deletes others.
    fn change_tasks(&mut self, keep: &[TaskRow], forget: &[(TaskKind, GroupId)]) -> Result<(), MetaError>;

    /// Addresses of all masters, in the order in which they were added.
    fn masters(&mut self) -> Result<Vec<String>, MetaError>;
    /// Adds the address of a master, unless the table has it.
    fn add_master(&mut self, address: &str) -> Result<(), MetaError>;

    /// All servers.
    fn servers(&mut self) -> Result<Vec<ServerRow>, MetaError>;
    /// Adds a server and returns the number of its disk and the new version of the map.
    fn add_server(&mut self, server: &ServerRow) -> Result<(u32, u64), MetaError>;
    /// Changes a server as the next version of the map, which is returned. From that version on operations can
    /// complete without the members in `missed`.
    fn change_server(&mut self, server: &ServerRow, missed: &[MissedMember]) -> Result<u64, MetaError>;
    /// Removes a server that is a member of no group.
    fn remove_server(&mut self, disk: u32) -> Result<(), MetaError>;

    /// All groups that have members.
    fn groups(&mut self) -> Result<Vec<GroupRow>, MetaError>;
    /// Changes the members of groups as the next version of the map, which is returned. From that version on
    /// operations can complete without the members in `missed`. For a joining member the version before is
    /// stored, because it takes part from the new version on. Records of missed operations are deleted for
    /// disks that are no members any more.
    fn change_groups(
        &mut self,
        groups: &[(GroupId, MemberList)],
        missed: &[MissedMember],
    ) -> Result<u64, MetaError>;
    /// Deletes the records of missed operations of a disk in these groups. From then on operations can complete
    /// without the members in `missed`: these are recorded with `version`, the present version of the map.
    fn forget_missed(
        &mut self,
        disk: u32,
        groups: &[GroupId],
        missed: &[MissedMember],
        version: u64,
    ) -> Result<(), MetaError>;
    /// Members without which operations could complete, each with the newest version in which that began.
    fn missed_members(&mut self) -> Result<Vec<(MissedMember, u64)>, MetaError>;

    /// Volumes at the end of each prefix of a path, the top first. The list is shorter than the path if a volume
    /// is missing.
    fn resolve(&mut self, path: &[&str]) -> Result<Vec<DirRow>, MetaError>;
    /// Makes a volume in a group. A quota is a change of the map.
    fn mkdir(
        &mut self,
        parent: VolumeId,
        name: &str,
        group: GroupId,
        quota: Option<u64>,
    ) -> MetaOutcome<VolumeId>;
    /// Quotas that were set since a version of the map, ascending by version.
    fn quotas(&mut self, since: u64) -> Result<Vec<QuotaRow>, MetaError>;
    /// Parent and name of a volume by its id alone. Reads the whole table.
    fn find(&mut self, vid: VolumeId) -> Result<Option<(VolumeId, String)>, MetaError>;
    /// Direct children of a volume.
    fn list(&mut self, parent: VolumeId, after: Option<&str>, limit: usize)
    -> Result<Vec<DirRow>, MetaError>;
    /// Sets or clears the mark of a volume that is being removed. `NotEmpty`: it has volumes below it.
    /// `VolumeGone`: it does not exist.
    fn mark_removing(&mut self, at: VolumePlace<'_>, is_removing: bool) -> MetaOutcome<()>;
    /// Clears the marks of all volumes that are being removed, because the term that set them has ended.
    /// Returns their number.
    fn unmark_all(&mut self) -> Result<u64, MetaError>;
    /// Removes a volume for good, as the next version of the map, which is returned. `VolumeGone`: it does not
    /// exist.
    fn remove(&mut self, at: VolumePlace<'_>) -> MetaOutcome<u64>;
    /// Volumes that were removed since a version of the map, and that some member may not know of.
    fn removed_volumes(&mut self, since: u64) -> Result<Vec<(VolumeId, u64)>, MetaError>;
    /// Forgets a removed volume, after all members have recorded its removal for ever.
    fn forget_removed_volume(&mut self, vid: VolumeId) -> Result<(), MetaError>;
    /// Moves a volume that is not being removed. `NotFound`: it does not exist. `VolumeExists`: the name is
    /// taken.
    fn rename(&mut self, from: VolumePlace<'_>, parent: VolumeId, name: &str) -> MetaOutcome<()>;
    /// Number of volumes that were ever made in each group.
    fn volumes_by_group(&mut self) -> Result<Vec<(GroupId, u64)>, MetaError>;

    /// Stores the hash of a token's secret until it ends.
    fn add_token(&mut self, hash: [u8; 32], ends_ms: u64) -> Result<(), MetaError>;
    /// Deletes a token; false: it did not exist or had ended.
    fn take_token(&mut self, hash: [u8; 32], now_ms: u64) -> Result<bool, MetaError>;

    /// Clients with restricted rights, by name.
    fn clients(&mut self) -> Result<Vec<ClientRow>, MetaError>;
    /// Adds a client; false: a client has that name.
    fn add_client(&mut self, client: &ClientRow) -> Result<bool, MetaError>;
    /// Removes a client; false: no client has that name.
    fn remove_client(&mut self, name: &str) -> Result<bool, MetaError>;

    /// Adds an event.
    fn add_event(&mut self, now_ms: u64, kind: &str, text: &str) -> Result<(), MetaError>;
    /// The newest events after a number, the oldest first.
    fn events(&mut self, after: u64, limit: usize) -> Result<Vec<EventRow>, MetaError>;
}

/// A client with restricted rights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientRow {
    /// Its name, which its certificate holds.
    pub name: String,
    /// Path below which the rights are valid.
    pub path: String,
    /// Rights: 1 read, 2 create, 4 delete.
    pub rights: u32,
    /// Time of its creation, ms since 1970.
    pub made_ms: u64,
}

/// An event of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRow {
    /// Its number.
    pub number: u64,
    /// Time, ms since 1970.
    pub at_ms: u64,
    /// Kind, one word.
    pub kind: String,
    /// Description, one sentence.
    pub text: String,
}
