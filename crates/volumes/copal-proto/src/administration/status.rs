//! Health of a cluster: its servers, groups, tasks and master.

use super::nullable;
use serde::{Deserialize, Serialize};

/// Reply to `ShowStatus`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// `healthy`, `recovering`, `degraded` or `incomplete`.
    pub health: String,
    /// The same for people, with the reason.
    pub sentence: String,
    /// All data servers.
    pub servers: Vec<ServerStatus>,
    /// Groups by the number of their whole copies.
    pub groups: GroupCounts,
    /// Copies and moves: those that run, then the next that wait.
    pub tasks: Vec<TaskStatus>,
    /// The queue of copies and moves.
    pub recovery: RecoveryStatus,
    /// Version of the map.
    pub map_version: u64,
    /// Removed volumes whose files are not deleted everywhere yet.
    pub gone_volumes: usize,
    /// Release of the master.
    pub version: String,
    /// The master that answers.
    pub master: MasterStatus,
}

/// A data server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ServerStatus {
    /// Its name.
    pub name: String,
    /// Its id, 32 hexadecimal digits.
    pub uuid: String,
    /// Number of its disk.
    pub disk: u32,
    /// `up`, `recovering`, `down` or `lost`.
    pub state: String,
    /// Its zone; empty: none is known.
    pub zone: String,
    /// Its rack; empty: none is known.
    pub rack: String,
    /// Number of its process; 0: this master has not heard from it.
    pub pid: u32,
    /// host:port.
    pub address: String,
    /// Number of its boot.
    pub incarnation: u64,
    /// Bytes that its disk holds.
    pub used_bytes: u64,
    /// Bytes that its disk can hold.
    pub capacity_bytes: u64,
    /// Groups of which it is a member.
    pub groups: usize,
    /// It is being emptied.
    pub draining: bool,
    /// It takes no new files.
    pub full: bool,
    /// Its host ran full inside a write: it takes no operation before the next boot.
    pub host_full: bool,
    /// End of its announced absence, ms since 1970.
    #[serde(deserialize_with = "nullable")]
    pub announced_until_ms: Option<u64>,
    /// Distance of its clock from the reference, ms; null: not measured.
    #[serde(deserialize_with = "nullable")]
    pub clock_off_ms: Option<i64>,
    /// That distance is too long.
    pub clock_wrong: bool,
    /// It takes no part in writes, for its clock.
    pub shut_out: bool,
    /// Time since its last heartbeat, ms.
    pub silent_ms: u64,
}

/// Groups by the number of their whole copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCounts {
    /// All of them.
    pub total: u64,
    /// With every copy.
    pub whole: u64,
    /// With two copies or more, and not all.
    pub two_copies: u64,
    /// With one copy.
    pub one_copy: u64,
    /// Without a whole copy that is there.
    pub incomplete: u64,
}

/// A copy or a move of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// `copy`, `drain` or `move`.
    pub kind: String,
    /// Number of the group.
    pub gid: u32,
    /// Server that is read.
    #[serde(deserialize_with = "nullable")]
    pub src: Option<String>,
    /// Server that is written; null: no place was found.
    #[serde(deserialize_with = "nullable")]
    pub dst: Option<String>,
    /// Server that leaves the group afterwards.
    #[serde(deserialize_with = "nullable")]
    pub leaves: Option<String>,
    /// Place in the queue.
    pub priority: TaskPriority,
    /// `running`, `waiting`, `held`, `without_place` or `without_source`.
    pub state: String,
    /// Part that is copied, 0 to 1.
    pub done: f64,
    /// Bytes of the group, about.
    pub bytes: u64,
}

/// What the place of a task in the queue depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPriority {
    /// Whole copies of its group.
    #[serde(deserialize_with = "nullable")]
    pub whole_copies: Option<u8>,
    /// When the copy was lost, ms since 1970.
    #[serde(deserialize_with = "nullable")]
    pub since_ms: Option<u64>,
    /// Times that an operator put it first.
    #[serde(deserialize_with = "nullable")]
    pub boost: Option<u32>,
}

/// The queue of copies and moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryStatus {
    /// Tasks that run.
    pub running: usize,
    /// Tasks that wait.
    pub waiting: usize,
    /// Bytes left to copy.
    pub bytes_left: u64,
    /// Measured rate; null: nothing runs.
    #[serde(deserialize_with = "nullable")]
    pub bytes_per_s: Option<u64>,
    /// Seconds until the queue is empty; null: not known.
    #[serde(deserialize_with = "nullable")]
    pub ends_in_s: Option<u64>,
    /// Why no task begins.
    #[serde(deserialize_with = "nullable")]
    pub hold: Option<String>,
    /// What keeps tasks from ending, a sentence each.
    pub blocked: Vec<String>,
    /// Servers that are being emptied, a sentence each.
    pub drains: Vec<String>,
    /// Moves are paused.
    pub paused: bool,
}

/// The master that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterStatus {
    /// It leads.
    pub leader: bool,
    /// host:port.
    pub address: String,
    /// Its term.
    pub term: u64,
    /// Addresses of all masters.
    pub masters: Vec<String>,
    /// Distance of its clock from the reference, ms.
    pub clock_off_ms: i64,
    /// That distance is too long.
    pub clock_wrong: bool,
}
