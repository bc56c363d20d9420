//! Health of a cluster: its servers, groups, tasks and master.

use super::nullable;
use serde::{Deserialize, Serialize};

/// Reply to `ShowStatus`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// `healthy`, `recovering`, `degraded` or `incomplete`.
    pub health: String,
    /// The same as a sentence with the reason.
    pub sentence: String,
    /// All data servers.
    pub servers: Vec<ServerStatus>,
    /// Groups by the number of their replicas in sync.
    pub groups: GroupCounts,
    /// Copies and moves: first those in progress, then the next ones that wait.
    pub tasks: Vec<TaskStatus>,
    /// The queue of copies and moves.
    pub recovery: RecoveryStatus,
    /// Version of the map.
    pub map_version: u64,
    /// Removed volumes of which some replica may not know yet.
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
    /// Its zone; empty: not known.
    pub zone: String,
    /// Its rack; empty: not known.
    pub rack: String,
    /// Id of its process; 0: this master has received no heartbeat from it.
    pub pid: u32,
    /// host:port.
    pub address: String,
    /// Number of its boot.
    pub incarnation: u64,
    /// Bytes in use on its disk.
    pub used_bytes: u64,
    /// Capacity of its disk in bytes.
    pub capacity_bytes: u64,
    /// Groups with a replica on it.
    pub groups: usize,
    /// Whether it is being drained.
    pub draining: bool,
    /// Whether it accepts no new files.
    pub full: bool,
    /// Whether its host ran out of space inside a write: it accepts no operation before its next start.
    pub host_full: bool,
    /// End of its announced absence, ms since 1970; null: none is announced.
    #[serde(deserialize_with = "nullable")]
    pub announced_until_ms: Option<u64>,
    /// Deviation of its clock from the reference, ms; null: not measured.
    #[serde(deserialize_with = "nullable")]
    pub clock_off_ms: Option<i64>,
    /// Whether that deviation is too large.
    pub clock_wrong: bool,
    /// Whether it takes no part in writes because of its clock.
    pub shut_out: bool,
    /// Time since its last heartbeat, ms.
    pub silent_ms: u64,
}

/// Groups by the number of their replicas in sync.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupCounts {
    /// All groups.
    pub total: u64,
    /// With all replicas in sync.
    pub whole: u64,
    /// With two or more replicas in sync, but not all.
    pub two_copies: u64,
    /// With one replica in sync.
    pub one_copy: u64,
    /// Without a replica in sync that is up.
    pub incomplete: u64,
}

/// A copy or a move of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TaskStatus {
    /// `copy`, `drain` or `move`.
    pub kind: String,
    /// Number of the group.
    pub gid: u32,
    /// Server that is copied from; null: none is available.
    #[serde(deserialize_with = "nullable")]
    pub src: Option<String>,
    /// Server that is copied to; null: no place was found.
    #[serde(deserialize_with = "nullable")]
    pub dst: Option<String>,
    /// Server that leaves the group afterwards; null: none.
    #[serde(deserialize_with = "nullable")]
    pub leaves: Option<String>,
    /// Its priority in the queue.
    pub priority: TaskPriority,
    /// `running`, `waiting`, `held`, `without_place` or `without_source`.
    pub state: String,
    /// Copied part, 0 to 1.
    pub done: f64,
    /// Bytes of the group, approximately.
    pub bytes: u64,
}

/// Criteria for the place of a task in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPriority {
    /// Replicas in sync of its group.
    #[serde(deserialize_with = "nullable")]
    pub whole_copies: Option<u8>,
    /// Time of the replica's loss, ms since 1970.
    #[serde(deserialize_with = "nullable")]
    pub since_ms: Option<u64>,
    /// Number of its boosts, each by an operator.
    #[serde(deserialize_with = "nullable")]
    pub boost: Option<u32>,
}

/// The queue of copies and moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryStatus {
    /// Tasks in progress.
    pub running: usize,
    /// Tasks that wait.
    pub waiting: usize,
    /// Bytes left to copy.
    pub bytes_left: u64,
    /// Measured rate; null: no task is in progress.
    #[serde(deserialize_with = "nullable")]
    pub bytes_per_s: Option<u64>,
    /// Seconds until the queue is empty; null: not known.
    #[serde(deserialize_with = "nullable")]
    pub ends_in_s: Option<u64>,
    /// Why only ordered tasks start; null: all may start.
    #[serde(deserialize_with = "nullable")]
    pub hold: Option<String>,
    /// Obstacles to tasks, a sentence each.
    pub blocked: Vec<String>,
    /// Servers that are being drained, a sentence each.
    pub drains: Vec<String>,
    /// Whether moves are paused.
    pub paused: bool,
}

/// The master that answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MasterStatus {
    /// Whether it is the leader.
    pub leader: bool,
    /// host:port.
    pub address: String,
    /// Its term.
    pub term: u64,
    /// Addresses of all masters.
    pub masters: Vec<String>,
    /// Deviation of its clock from the reference, ms.
    pub clock_off_ms: i64,
    /// Whether that deviation is too large.
    pub clock_wrong: bool,
}
