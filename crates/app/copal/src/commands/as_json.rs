//! Values of the library as JSON. Field names are a promise: they are added to, never renamed.

use crate::human::utc_time;
use copal_backup::{BackupCounts, DiskSummary, Snapshot, SnapshotDisk, Vm};
use copal_disk::doubt::DiskDoubt;
use serde_json::{Value, json};

pub(crate) fn vm(vm: &Vm) -> Value {
    json!({ "uuid": vm.uuid.to_string(), "name": vm.name })
}

pub(crate) fn counts(counts: &BackupCounts) -> Value {
    json!({
        "logical_bytes": counts.logical_bytes,
        "dirty_bytes": counts.dirty_bytes,
        "read_bytes": counts.read_bytes,
        "data_bytes": counts.data_bytes,
        "inner_dup_bytes": counts.inner_dup_bytes,
        "cross_dup_bytes": counts.cross_dup_bytes,
        "new_bytes": counts.new_bytes,
        "stored_bytes": counts.stored_bytes,
        "chunks": counts.chunks,
        "new_chunks": counts.new_chunks,
        "segments": counts.segments,
        "clean_segments": counts.clean_segments,
        "spot_check_bytes": counts.spot_check_bytes,
        "read_again_bytes": counts.read_again_bytes,
        "asked_chunks": counts.asked_chunks,
        "popular_dup_bytes": counts.popular_dup_bytes,
        "popular_bytes": counts.popular_bytes,
        "unresolved_chunks": counts.unresolved_chunks,
    })
}

pub(crate) fn disk_summary(disk: &DiskSummary) -> Value {
    json!({
        "name": disk.name,
        "size_bytes": disk.size_bytes,
        "mode": disk.mode.to_string(),
        "reason": disk.reason,
        "bitmap": disk.bitmap,
    })
}

pub(crate) fn disk(disk: &SnapshotDisk) -> Value {
    json!({
        "name": disk.name,
        "size_bytes": disk.size_bytes,
        "serial": disk.serial,
        "mode": disk.mode.to_string(),
        "reason": disk.reason,
        "bitmap": disk.bitmap,
    })
}

pub(crate) fn doubt(doubt: &DiskDoubt) -> Value {
    json!({ "disk": doubt.disk, "kind": doubt.kind.word(), "message": doubt.text })
}

pub(crate) fn snapshot(snapshot: &Snapshot) -> Value {
    json!({
        "id": snapshot.id.to_string(),
        "short_id": snapshot.id.short(),
        "vm": vm(&snapshot.vm),
        "sequence": snapshot.sequence,
        "time": utc_time(snapshot.created_ms),
        "created_ms": snapshot.created_ms,
        "base": snapshot.base.map(|id| id.to_string()),
        "tags": snapshot.tags,
        "description": snapshot.description,
        "disks": snapshot.disks.iter().map(disk).collect::<Vec<_>>(),
        "counts": counts(&snapshot.counts),
        "verified": snapshot.is_verified,
        "held_until": held_until(snapshot),
        "doubtful": snapshot.is_doubtful(),
        "doubts": snapshot.doubts.iter().map(doubt).collect::<Vec<_>>(),
        "damage": snapshot.damage,
        "misdated": snapshot.misdated.map(|misdated| misdated.to_string()),
    })
}

/// The end of a hold: a time, `"release"` for one that ends by `--release`, null for none.
fn held_until(snapshot: &Snapshot) -> Value {
    match snapshot.held_until_ms {
        0 => Value::Null,
        u64::MAX => json!("release"),
        until_ms => json!(utc_time(until_ms)),
    }
}

/// Peak memory of this process so far, as the kernel counts it; 0 where it does not say.
pub(crate) fn peak_memory_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// From here on [`peak_memory_bytes`] is of what comes now, where the system can do that. Returns the peak of
/// what was before.
pub(crate) fn begin_peak() -> u64 {
    let before = peak_memory_bytes();
    if let Err(error) = std::fs::write("/proc/self/clear_refs", "5") {
        tracing::debug!(%error, "the peak of memory is that of the whole process");
    }
    before
}

/// Seconds with milliseconds.
pub(crate) fn seconds(duration: std::time::Duration) -> f64 {
    (duration.as_secs_f64() * 1000.0).round() / 1000.0
}
