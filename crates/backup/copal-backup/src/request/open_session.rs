//! Open sessions and their holders.

use crate::request::json;
use serde::Serialize;
use std::fmt;

/// Identity of one attempt to back up one VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session(pub [u8; 16]);

impl fmt::Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// One run of a program that holds sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HolderId(pub [u8; 16]);

impl fmt::Display for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Name and address of a holder of sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// A readable name, at most 255 bytes.
    pub name: String,
    /// Address of its agent, at most 255 bytes; may be empty.
    pub address: String,
}

/// A holder of sessions, as its newest heartbeat describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HolderInfo {
    /// Its name; empty if the newest heartbeat cannot be read.
    pub name: String,
    /// Address of its agent; may be empty.
    pub address: String,
    /// Identity of the run of its program.
    #[serde(skip)]
    pub holder: HolderId,
    /// Number of its newest heartbeat; numbers ascend.
    #[serde(skip)]
    pub newest_beat_number: u64,
    /// Age of that heartbeat by the store's clock, which may be wrong: for display only.
    #[serde(rename = "beat_age_seconds", serialize_with = "json::seconds_of_ms")]
    pub beat_age_ms: u64,
    /// Bytes that it had read for backups at that heartbeat.
    #[serde(rename = "read_bytes")]
    pub progress: u64,
}

/// A session that has neither published nor been ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenSession {
    /// The session.
    pub session: Session,
    /// Its holder; `None`: opened by an older program, or in a store with one writer.
    pub holder: Option<HolderId>,
    /// State of the holder; `None`: it has no heartbeat, or has deleted them.
    pub info: Option<HolderInfo>,
}

impl OpenSession {
    /// The sentence that refuses a backup of `vm`: it names the holder and gives advice.
    pub(crate) fn in_the_way_of(&self, vm: &str) -> String {
        let way_out = format!("`copal sessions fence {vm}` ends it if its host is dead");
        match (&self.info, self.holder) {
            (Some(info), _) => {
                let address = match info.address.as_str() {
                    "" => String::new(),
                    address => format!(" ({address})"),
                };
                let name = match info.name.as_str() {
                    "" => "a process without a name",
                    name => name,
                };
                format!(
                    "VM {vm} is being backed up by {name}{address}, whose last heartbeat is {} old; wait for it with --wait 30m, \
                 which takes over 10 minutes after the last one, or {way_out}",
                    age(info.beat_age_ms)
                )
            }
            (None, Some(holder)) => format!(
                "VM {vm} is being backed up by process {holder}, which has written no heartbeat; wait for it with --wait 30m, which \
             takes over after 10 minutes without one, or {way_out}"
            ),
            (None, None) => format!(
                "VM {vm} has a backup under way that an older copal has begun, which writes no heartbeats; wait for it to end, or \
             {way_out}"
            ),
        }
    }
}

fn age(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}
