//! Fields of JSON lines that several commands print. Field names are stable: fields are added, never renamed.
//!
//! Not here: fields of summaries of the library (`copal_backup` serializes them).

use crate::human::utc_time;
use copal_backup::Snapshot;
use serde::Serialize;

/// A command and the fields of its summary.
#[derive(Serialize)]
pub(crate) struct CommandFields<T> {
    command: &'static str,
    #[serde(flatten)]
    fields: T,
}

impl<T> CommandFields<T> {
    pub(crate) fn new(command: &'static str, fields: T) -> CommandFields<T> {
        CommandFields { command, fields }
    }
}

/// [`CommandFields`] with the peak memory of this process.
#[derive(Serialize)]
pub(crate) struct MeasuredFields<T> {
    #[serde(flatten)]
    fields: CommandFields<T>,
    peak_memory_bytes: u64,
}

impl<T> MeasuredFields<T> {
    pub(crate) fn new(command: &'static str, fields: T) -> MeasuredFields<T> {
        MeasuredFields { fields: CommandFields::new(command, fields), peak_memory_bytes: peak_memory_bytes() }
    }

    /// Includes the peak memory of an earlier phase.
    pub(crate) fn with_peak(self, before: u64) -> MeasuredFields<T> {
        MeasuredFields { peak_memory_bytes: self.peak_memory_bytes.max(before), ..self }
    }
}

/// A snapshot.
#[derive(Serialize)]
pub(crate) struct SnapshotFields<'a> {
    #[serde(flatten)]
    snapshot: &'a Snapshot,
    short_id: String,
    time: String,
    held_until: Option<String>,
    doubtful: bool,
}

impl<'a> From<&'a Snapshot> for SnapshotFields<'a> {
    fn from(snapshot: &'a Snapshot) -> SnapshotFields<'a> {
        SnapshotFields {
            snapshot,
            short_id: snapshot.id.short(),
            time: utc_time(snapshot.created_ms),
            held_until: held_until(snapshot),
            doubtful: snapshot.is_doubtful(),
        }
    }
}

/// Several snapshots.
pub(crate) fn snapshots(snapshots: &[Snapshot]) -> Vec<SnapshotFields<'_>> {
    snapshots.iter().map(SnapshotFields::from).collect()
}

/// The end of a hold: a time, `release` for a hold that only `--release` ends, none for a snapshot without a
/// hold.
fn held_until(snapshot: &Snapshot) -> Option<String> {
    match snapshot.held_until_ms {
        0 => None,
        u64::MAX => Some("release".to_owned()),
        until_ms => Some(utc_time(until_ms)),
    }
}

/// Peak memory of this process so far, from the kernel; 0 if unknown.
pub(crate) fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Restarts the measurement of [`peak_memory_bytes`], where the system supports that. Returns the peak so
/// far.
pub(crate) fn begin_peak() -> u64 {
    let before = peak_memory_bytes();
    if let Err(error) = std::fs::write("/proc/self/clear_refs", "5") {
        tracing::debug!(%error, "peak memory not reset, it covers the whole process");
    }
    before
}
