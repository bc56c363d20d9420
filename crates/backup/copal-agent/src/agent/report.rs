//! What became of each VM of a job.

use super::planned::PlannedBackup;
use copal_backup::{BackupSummary, CleanUpSummary, SnapshotId};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// How a VM's backup ended.
#[derive(Clone, Debug)]
pub(crate) enum VmOutcome {
    Done(Box<BackupSummary>),
    Failed { code: String, reason: String },
}

impl VmOutcome {
    pub(crate) fn failed(code: &str, reason: &str) -> VmOutcome {
        VmOutcome::Failed { code: code.to_owned(), reason: reason.to_owned() }
    }
}

/// What became of the chunks that a backup of the job stored for its VM alone.
#[derive(Clone, Debug)]
pub(crate) enum Settled {
    Done(CleanUpSummary),
    /// Why not; the snapshot stands.
    Failed(String),
}

/// A VM of a job.
#[derive(Clone, Debug)]
pub(crate) struct VmReport {
    vm: String,
    planned_bytes: u64,
    began: Option<Instant>,
    took: Duration,
    outcome: Option<VmOutcome>,
    /// Chunks that several VMs have, and that the fraction of popular chunks has no room for.
    refused: u64,
    settled: Option<Settled>,
}

impl VmReport {
    pub(crate) fn waiting(backup: &PlannedBackup) -> VmReport {
        VmReport {
            vm: backup.vm.clone(),
            planned_bytes: backup.bytes,
            began: None,
            took: Duration::ZERO,
            outcome: None,
            refused: 0,
            settled: None,
        }
    }

    pub(crate) fn name(&self) -> &str {
        &self.vm
    }

    pub(crate) fn refuse(&mut self, chunks: u64) {
        self.refused += chunks;
    }

    pub(crate) fn settle(&mut self, settled: Settled) {
        self.settled = Some(settled);
    }

    /// Whether asking again may bring something: a chunk had no answer that holds, or there was no room for
    /// it then.
    pub(crate) fn has_gain(&self) -> bool {
        let is_unresolved = |summary: &BackupSummary| summary.counts.unresolved_chunks > 0;
        self.refused > 0 || matches!(&self.outcome, Some(VmOutcome::Done(summary)) if is_unresolved(summary))
    }

    /// Its name and snapshot, if the backup stored chunks for the VM alone.
    pub(crate) fn to_settle(&self) -> Option<(String, SnapshotId)> {
        match &self.outcome {
            Some(VmOutcome::Done(summary)) if summary.counts.new_chunks > 0 => {
                Some((self.vm.clone(), summary.snapshot))
            }
            _ => None,
        }
    }

    pub(crate) fn begin(&mut self) {
        self.began = Some(Instant::now());
    }

    pub(crate) fn end(&mut self, outcome: VmOutcome) {
        self.took = self.began.map(|began| began.elapsed()).unwrap_or_default();
        self.outcome = Some(outcome);
    }

    /// As it is told.
    pub(crate) fn to_json(&self) -> Value {
        let mut told = json!({
            "vm": self.vm,
            "planned_bytes": self.planned_bytes,
            "seconds": self.took.as_secs_f64(),
        });
        let (state, more) = match &self.outcome {
            None if self.began.is_none() => ("waiting", json!({})),
            None => ("running", json!({})),
            Some(VmOutcome::Failed { code, reason }) => ("failed", json!({ "code": code, "error": reason })),
            Some(VmOutcome::Done(summary)) => ("done", done(summary)),
        };
        told["state"] = state.into();
        told["refused"] = self.refused.into();
        match &self.settled {
            Some(Settled::Done(summary)) => told["settled"] = settled_json(summary, false),
            Some(Settled::Failed(reason)) => told["settle_error"] = reason.clone().into(),
            None => {}
        }
        if let (Some(told), Value::Object(more)) = (told.as_object_mut(), more) {
            told.extend(more);
        }
        told
    }
}

/// What settling a VM did, or would do.
pub(crate) fn settled_json(summary: &CleanUpSummary, is_dry_run: bool) -> Value {
    json!({
        "dry_run": is_dry_run,
        "asked": summary.asked,
        "moved": summary.moved,
        "moved_bytes": summary.moved_bytes,
        "stored_popular": summary.stored_popular,
        "freed_bytes": summary.freed_bytes,
        "unanswered": summary.unanswered,
        "refused": summary.refused,
        "refused_bytes": summary.refused_bytes,
    })
}

fn done(summary: &BackupSummary) -> Value {
    let counts = &summary.counts;
    json!({
        "snapshot": summary.snapshot.to_string(),
        "short_id": summary.snapshot.short(),
        "uuid": summary.vm.uuid.to_string(),
        "base": summary.base.map(|base| base.to_string()),
        "disks": summary.disks.iter().map(|disk| json!({
            "name": disk.name,
            "size_bytes": disk.size_bytes,
            "mode": disk.mode.to_string(),
            "reason": disk.reason,
        })).collect::<Vec<_>>(),
        "bytes": {
            "logical": counts.logical_bytes,
            "dirty": counts.dirty_bytes,
            "read1": counts.read_bytes,
            "read2": counts.read_again_bytes,
            "inner_dup": counts.inner_dup_bytes + counts.cross_dup_bytes,
            "pds_dup": counts.popular_dup_bytes,
            "pds_new": counts.popular_bytes,
            "new": counts.new_bytes,
            "stored": counts.stored_bytes,
        },
        "chunks": counts.chunks,
        "asked": counts.asked_chunks,
        "new_chunks": counts.new_chunks,
        "unresolved": counts.unresolved_chunks,
        "warnings": summary.warnings,
        "doubts": summary.doubts.iter().map(|doubt| doubt.kind.word()).collect::<Vec<_>>(),
    })
}
