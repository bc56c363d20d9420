//! Groups: their replicas, why one lacks a replica in sync, and the events of the cluster.

use super::nullable;
use serde::{Deserialize, Serialize};

/// Reply to `ListGroups`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupList {
    /// All groups.
    pub groups: Vec<GroupMembers>,
}

/// Reply to `ShowGroup`: a group and its replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMembers {
    /// Its number.
    pub group: u32,
    /// Epoch of its view.
    pub epoch: u64,
    /// Its replicas.
    pub members: Vec<MemberRole>,
}

/// A replica of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberRole {
    /// Name of its server.
    pub name: String,
    /// host:port.
    pub address: String,
    /// Number of its disk.
    pub disk: u32,
    /// `N`, `R`, `F` or `M`.
    pub role: String,
}

/// Reply to `ExplainGroup`: why a group lacks a replica in sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStory {
    /// Its number.
    pub group: u32,
    /// Whether it has all its replicas in sync.
    pub whole: bool,
    /// The same as a sentence with numbers.
    pub sentence: String,
    /// Replicas that it should have.
    pub replicas: usize,
    /// Replicas in sync that it has.
    pub whole_copies: usize,
    /// Its replicas.
    pub members: Vec<MemberStory>,
    /// The next step of the recovery; null: none.
    #[serde(deserialize_with = "nullable")]
    pub next: Option<String>,
    /// Obstacles to the recovery, a sentence each.
    pub blocked: Vec<String>,
    /// Seconds until all its replicas are in sync; null: not known.
    #[serde(deserialize_with = "nullable")]
    pub ends_in_s: Option<u64>,
    /// Its events, the oldest first.
    pub events: Vec<EventRecord>,
}

/// A replica, and why it is not in sync.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStory {
    /// Name of its server.
    pub name: String,
    /// Number of its disk.
    pub disk: u32,
    /// `N`, `R`, `F` or `M`.
    pub role: String,
    /// `full`, `joining` or `leaving`.
    pub kind: String,
    /// Zone of its server; empty: not known.
    pub zone: String,
    /// Rack of its server; empty: not known.
    pub rack: String,
    /// Time since which it is not in sync, ms since 1970; null: it is in sync, or the time is not known.
    #[serde(deserialize_with = "nullable")]
    pub since_ms: Option<u64>,
    /// Why it is not in sync; null: it is.
    #[serde(deserialize_with = "nullable")]
    pub why: Option<String>,
}

/// Reply to `ListEvents`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventList {
    /// Events, the oldest first.
    pub events: Vec<EventRecord>,
}

/// An event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventRecord {
    /// Its number.
    pub number: u64,
    /// Time, ms since 1970.
    pub at_ms: u64,
    /// Kind, one word.
    pub kind: String,
    /// Description, a sentence.
    pub text: String,
}

/// Reply to `BoostGroup`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoostReport {
    /// Number of the group.
    pub group: u32,
    /// Whether it lacks a replica in sync.
    pub lacks: bool,
    /// Number of its boosts, each by an operator; absent: it lacks none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boost: Option<u32>,
    /// Copies ahead of it in the queue; null: its copy does not wait; absent: it lacks none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub ahead: Option<Option<usize>>,
}

/// Deserializes a field that may be absent, and may be null if present.
fn present<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    from: D,
) -> Result<Option<Option<T>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// Reply to `ForceAccept`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptReport {
    /// Number of the group.
    pub group: u32,
    /// Server whose replica is accepted.
    pub from: String,
    /// Operations acknowledged since this time may be lost, ms since 1970; 0: any operation.
    pub may_lack_since_ms: u64,
    /// Whether the replica has all older operations.
    pub covered: bool,
    /// Files that are removed because their names belong to other files.
    pub second_files: u32,
    /// Replicas that are down and may have more operations.
    pub away: Vec<AwayMember>,
    /// Whether this was a dry run, which changes nothing.
    pub dry_run: bool,
    /// Whether the replica is in sync now; absent: nothing was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<bool>,
    /// Epoch since which it is in sync; absent: nothing was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
}

/// A replica that is down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwayMember {
    /// Name of its server.
    pub name: String,
    /// Time since which it is down, ms since 1970.
    pub since_ms: u64,
}
