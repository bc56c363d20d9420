//! Progress and result of each VM of a job.

use super::{
    planned_rounds::PlannedBackup,
    status::{SettledVm, VmBackup, VmFailure, VmProgress, VmState, VmStatus},
};
use copal_backup::{BackupSummary, CleanUpSummary, SnapshotId};
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

/// Result of settling the chunks that a backup stored for its VM alone.
#[derive(Clone, Debug)]
pub(crate) enum SettleOutcome {
    Done(CleanUpSummary),
    /// Reason of a failure; the snapshot remains valid.
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
    /// Chunks of several VMs that the fraction of popular chunks has no space for.
    refused: u64,
    settled: Option<SettleOutcome>,
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

    pub(crate) fn settle(&mut self, settled: SettleOutcome) {
        self.settled = Some(settled);
    }

    /// Whether a settlement may move chunks: a chunk had no valid answer, or no space at that time.
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

    /// The status of the VM in the reply.
    pub(crate) fn status(&self) -> VmStatus {
        let (settled, settle_error) = match &self.settled {
            Some(SettleOutcome::Done(summary)) => (Some(SettledVm::of(summary, false)), None),
            Some(SettleOutcome::Failed(reason)) => (None, Some(reason.clone())),
            None => (None, None),
        };
        VmStatus {
            vm: self.vm.clone(),
            progress: VmProgress {
                planned_bytes: self.planned_bytes,
                seconds: self.took.as_secs_f64(),
                refused: self.refused,
            },
            state: match &self.outcome {
                None if self.began.is_none() => VmState::Waiting,
                None => VmState::Running,
                Some(VmOutcome::Failed { code, reason }) => {
                    VmState::Failed(VmFailure { code: code.clone(), error: reason.clone() })
                }
                Some(VmOutcome::Done(summary)) => VmState::Done(Box::new(VmBackup::from(&**summary))),
            },
            settled,
            settle_error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use copal_backup::{BackupCounts, DiskMode, DiskSummary, Vm};
    use copal_disk::doubt::{DiskDoubt, DoubtKind};

    fn waiting() -> VmReport {
        VmReport {
            vm: "web".to_owned(),
            planned_bytes: 7,
            began: None,
            took: Duration::ZERO,
            outcome: None,
            refused: 0,
            settled: None,
        }
    }

    fn summary() -> BackupSummary {
        let counts = BackupCounts {
            logical_bytes: 1,
            dirty_bytes: 2,
            read_bytes: 3,
            inner_dup_bytes: 4,
            cross_dup_bytes: 5,
            new_bytes: 6,
            stored_bytes: 7,
            chunks: 8,
            new_chunks: 9,
            read_again_bytes: 10,
            asked_chunks: 11,
            popular_dup_bytes: 12,
            popular_bytes: 13,
            unresolved_chunks: 14,
            ..BackupCounts::default()
        };
        BackupSummary {
            snapshot: SnapshotId([0xab; 16]),
            vm: Vm { uuid: uuid::Uuid::from_bytes([1; 16]), name: "web".to_owned() },
            base: None,
            created_ms: 0,
            misdated: 0,
            disks: vec![DiskSummary {
                name: "sda".to_owned(),
                size_bytes: 4096,
                mode: DiskMode::Rescan,
                reason: "no list".to_owned(),
                bitmap: Some("day-1".to_owned()),
            }],
            counts,
            warnings: vec!["it shrank".to_owned()],
            doubts: vec![DiskDoubt { disk: "sda".to_owned(), kind: DoubtKind::Smaller, text: String::new() }],
            duration: Duration::ZERO,
        }
    }

    fn settled() -> CleanUpSummary {
        CleanUpSummary {
            asked: 1,
            moved: 2,
            stored_popular: 3,
            moved_bytes: 4,
            freed_bytes: 5,
            unanswered: 6,
            refused: 7,
            refused_bytes: 8,
            ..CleanUpSummary::default()
        }
    }

    fn encoded(report: &VmReport) -> String {
        let encoded = crate::fleet::control::to_json(&report.status()).unwrap();
        let read: VmStatus = serde_json::from_str(&encoded).unwrap();
        assert_eq!(read, report.status());
        encoded
    }

    /// The command line prints these fields, and agents of one release exchange them.
    #[test]
    fn a_vm_report_has_the_agreed_fields() {
        let (mut waiting, mut done) = (waiting(), waiting());
        assert_eq!(
            encoded(&waiting),
            r#"{"planned_bytes":7,"refused":0,"seconds":0.0,"state":"waiting","vm":"web"}"#
        );
        waiting.began = Some(Instant::now());
        assert_eq!(
            encoded(&waiting),
            r#"{"planned_bytes":7,"refused":0,"seconds":0.0,"state":"running","vm":"web"}"#
        );
        waiting.outcome = Some(VmOutcome::failed("source", "it is gone"));
        waiting.settle(SettleOutcome::Failed("interrupted".to_owned()));
        let failed = r#"{"code":"source","error":"it is gone","planned_bytes":7,"refused":0,"seconds":0.0,"settle_error":"interrupted","state":"failed","vm":"web"}"#;
        assert_eq!(encoded(&waiting), failed);
        done.outcome = Some(VmOutcome::Done(Box::new(summary())));
        done.settle(SettleOutcome::Done(settled()));
        done.refuse(3);
        let fields = [
            r#"{"asked":11,"base":null,"bytes":{"dirty":2,"inner_dup":9,"logical":1,"new":6,"pds_dup":12,"pds_new":13,"#,
            r#""read1":3,"read2":10,"stored":7},"chunks":8,"disks":[{"mode":"rescan","name":"sda","reason":"no list","#,
            r#""size_bytes":4096}],"doubts":["smaller"],"new_chunks":9,"planned_bytes":7,"refused":3,"seconds":0.0,"#,
            r#""settled":{"asked":1,"dry_run":false,"freed_bytes":5,"moved":2,"moved_bytes":4,"refused":7,"#,
            r#""refused_bytes":8,"stored_popular":3,"unanswered":6},"short_id":"abababab","#,
            r#""snapshot":"abababababababababababababababab","state":"done","unresolved":14,"#,
            r#""uuid":"01010101-0101-0101-0101-010101010101","vm":"web","warnings":["it shrank"]}"#,
        ];
        assert_eq!(encoded(&done), fields.concat());
    }
}
