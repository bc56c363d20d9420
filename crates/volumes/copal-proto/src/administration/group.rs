//! Groups: their members, why one lacks a copy, and the events of the cluster.

use super::nullable;
use serde::{Deserialize, Serialize};

/// Reply to `ListGroups`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupList {
    /// All groups.
    pub groups: Vec<GroupMembers>,
}

/// Reply to `ShowGroup`: a group and its members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupMembers {
    /// Its number.
    pub group: u32,
    /// Epoch of its view.
    pub epoch: u64,
    /// Its members.
    pub members: Vec<MemberRole>,
}

/// A member of a group.
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

/// Reply to `ExplainGroup`: why a group lacks a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupStory {
    /// Its number.
    pub group: u32,
    /// It lacks none.
    pub whole: bool,
    /// The same for people, in numbers.
    pub sentence: String,
    /// Copies that it is to have.
    pub replicas: usize,
    /// Whole copies that it has.
    pub whole_copies: usize,
    /// Its members.
    pub members: Vec<MemberStory>,
    /// What is done about it.
    #[serde(deserialize_with = "nullable")]
    pub next: Option<String>,
    /// What keeps it from getting its copy, a sentence each.
    pub blocked: Vec<String>,
    /// Seconds until it is whole; null: not known.
    #[serde(deserialize_with = "nullable")]
    pub ends_in_s: Option<u64>,
    /// Its events, the oldest first.
    pub events: Vec<EventRecord>,
}

/// A member, and why it is not whole.
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
    /// Zone of its server; empty: none is known.
    pub zone: String,
    /// Rack of its server; empty: none is known.
    pub rack: String,
    /// Since when it is not whole, ms since 1970; null: it is, or that is not known.
    #[serde(deserialize_with = "nullable")]
    pub since_ms: Option<u64>,
    /// Why it is not whole; null: it is.
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
    /// When, ms since 1970.
    pub at_ms: u64,
    /// A word.
    pub kind: String,
    /// A sentence.
    pub text: String,
}

/// Reply to `BoostGroup`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BoostReport {
    /// Number of the group.
    pub group: u32,
    /// It lacks a copy.
    pub lacks: bool,
    /// Times that its copy was put first; not there: it lacks none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boost: Option<u32>,
    /// Copies before its own; null: its copy does not wait; not there: it lacks none.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub ahead: Option<Option<usize>>,
}

/// A field that may be missing, and may be null where it is there.
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
    /// Operations acknowledged since then may be lost, ms since 1970; 0: any.
    pub may_lack_since_ms: u64,
    /// The replica has everything that is older.
    pub covered: bool,
    /// Files that go because their names belong to others.
    pub second_files: u32,
    /// Members that are away and may have more.
    pub away: Vec<AwayMember>,
    /// Nothing was changed.
    pub dry_run: bool,
    /// The member is whole now; not there: nothing was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<bool>,
    /// Epoch since when; not there: nothing was changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<u64>,
}

/// A member that is away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwayMember {
    /// Name of its server.
    pub name: String,
    /// Since when, ms since 1970.
    pub since_ms: u64,
}
