//! Progress of a job on one host, and results of its VMs: the reply of an agent, and part of the report.
//!
//! Not here: the counting (`report`, `job`), the report of all agents (`coordinator`).

use super::leak_repairs::LeakRepair;
use copal_backup::{BackupSummary, CleanUpSummary, DiskMode, SnapshotId};
use copal_disk::doubt::DoubtKind;
use serde::{Deserialize, Serialize};

/// Progress of a job on one host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// The job, as 32 hex digits.
    pub job: String,
    /// Milliseconds since the job began here.
    pub age_ms: u64,
    /// Rounds of the job.
    pub all_rounds: u32,
    /// The job has ended here.
    pub done: bool,
    /// All VMs of this host are stored.
    pub stored: bool,
    /// Whether chunks that VMs stored for themselves may be popular now; `None` for a job without settlement.
    pub gain: Option<bool>,
    /// This host has settled its VMs.
    pub settled: bool,
    /// The current round.
    pub round: u64,
    /// Seconds since the beginning, or the length of the ended job.
    pub seconds: f64,
    /// Answers that were dropped as invalid.
    pub dropped_answers: u64,
    /// Bytes sent and received for questions and answers.
    pub message_bytes: u64,
    /// Peak memory of the process.
    pub peak_memory_bytes: u64,
    /// VMs whose leak was repaired after the job.
    pub repairs: Vec<LeakRepair>,
    /// The VMs of this host.
    pub vms: Vec<VmStatus>,
}

/// Progress and result of a VM of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmStatus {
    /// Its name.
    pub vm: String,
    /// Its plan and progress.
    #[serde(flatten)]
    pub progress: VmProgress,
    /// State or result of its backup.
    #[serde(flatten)]
    pub state: VmState,
    /// Result of its settlement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled: Option<SettledVm>,
    /// Reason of a failed settlement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle_error: Option<String>,
}

/// Plan and progress of a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmProgress {
    /// Bytes to be read.
    pub planned_bytes: u64,
    /// Seconds of its backup.
    pub seconds: f64,
    /// Chunks of several VMs that the fraction of popular chunks has no space for.
    pub refused: u64,
}

/// State or result of the backup of a VM.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum VmState {
    /// Not yet begun.
    Waiting,
    /// In progress.
    Running,
    /// No new snapshot.
    Failed(VmFailure),
    /// A new snapshot.
    Done(Box<VmBackup>),
}

/// Reason why a VM has no new snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmFailure {
    /// Short, stable code.
    pub code: String,
    /// A sentence.
    pub error: String,
}

/// The new snapshot of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmBackup {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// Short form of its id.
    pub short_id: String,
    /// The VM's identity.
    pub uuid: String,
    /// The snapshot it builds on.
    pub base: Option<SnapshotId>,
    /// Its disks.
    pub disks: Vec<VmDisk>,
    /// Bytes by their treatment.
    pub bytes: VmBytes,
    /// Chunks read.
    pub chunks: u64,
    /// Chunks that other hosts were asked about.
    pub asked: u64,
    /// Chunks stored for this VM alone.
    pub new_chunks: u64,
    /// Chunks stored for this VM because no answer came in time.
    pub unresolved: u64,
    /// Warnings about the disks.
    pub warnings: Vec<String>,
    /// Reasons why the snapshot is doubtful.
    pub doubts: Vec<DoubtKind>,
}

/// A disk of a new snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmDisk {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// How it was read.
    pub mode: DiskMode,
    /// Reason why it was not read incrementally; empty if it was.
    pub reason: String,
}

/// Bytes of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmBytes {
    /// Sum of the disks' sizes.
    pub logical: u64,
    /// Bytes of the changed extents, or of all data without a list.
    pub dirty: u64,
    /// Read from the sources.
    pub read1: u64,
    /// Bytes read again, to be stored.
    pub read2: u64,
    /// Bytes read that this VM already had stored.
    pub inner_dup: u64,
    /// Bytes read that are popular.
    pub pds_dup: u64,
    /// Stored as popular.
    pub pds_new: u64,
    /// Bytes read that were not stored before.
    pub new: u64,
    /// Added to the store.
    pub stored: u64,
}

/// Result of settling a VM, or the estimate of a dry run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledVm {
    /// A dry run: nothing was changed.
    pub dry_run: bool,
    /// Chunks that other hosts were asked about.
    pub asked: u64,
    /// Chunks that were replaced by popular ones.
    pub moved: u64,
    /// Bytes of them.
    pub moved_bytes: u64,
    /// Chunks of these that became popular only then.
    pub stored_popular: u64,
    /// Stored bytes that a deletion frees.
    pub freed_bytes: u64,
    /// Chunks without an answer in time.
    pub unanswered: u64,
    /// Chunks that the fraction of popular chunks has no space for.
    pub refused: u64,
    /// Bytes of them.
    pub refused_bytes: u64,
}

impl AgentStatus {
    /// Adds the agent's work in the next stage of a job.
    pub(crate) fn add(&mut self, next: AgentStatus) {
        self.vms.extend(next.vms);
        self.message_bytes += next.message_bytes;
        self.dropped_answers += next.dropped_answers;
        self.seconds += next.seconds;
        self.peak_memory_bytes = next.peak_memory_bytes;
    }
}

impl VmStatus {
    /// The new snapshot, if there is one.
    #[must_use]
    pub fn backup(&self) -> Option<&VmBackup> {
        match &self.state {
            VmState::Done(backup) => Some(backup),
            VmState::Waiting | VmState::Running | VmState::Failed(_) => None,
        }
    }

    /// The snapshot, if the backup stored chunks for the VM alone.
    pub(crate) fn snapshot_to_settle(&self) -> Option<SnapshotId> {
        self.backup().filter(|backup| backup.new_chunks > 0).map(|backup| backup.snapshot)
    }
}

impl VmState {
    /// The backup has ended, with or without success.
    #[must_use]
    pub fn is_over(&self) -> bool {
        match self {
            VmState::Waiting | VmState::Running => false,
            VmState::Failed(_) | VmState::Done(_) => true,
        }
    }
}

impl SettledVm {
    pub(crate) fn of(summary: &CleanUpSummary, dry_run: bool) -> SettledVm {
        SettledVm {
            dry_run,
            asked: summary.asked,
            moved: summary.moved,
            moved_bytes: summary.moved_bytes,
            stored_popular: summary.stored_popular,
            freed_bytes: summary.freed_bytes,
            unanswered: summary.unanswered,
            refused: summary.refused,
            refused_bytes: summary.refused_bytes,
        }
    }
}

impl From<&BackupSummary> for VmBackup {
    fn from(summary: &BackupSummary) -> VmBackup {
        let counts = &summary.counts;
        let disks = summary.disks.iter().map(|disk| VmDisk {
            name: disk.name.clone(),
            size_bytes: disk.size_bytes,
            mode: disk.mode,
            reason: disk.reason.clone(),
        });
        VmBackup {
            snapshot: summary.snapshot,
            short_id: summary.snapshot.short(),
            uuid: summary.vm.uuid.to_string(),
            base: summary.base,
            disks: disks.collect(),
            bytes: VmBytes {
                logical: counts.logical_bytes,
                dirty: counts.dirty_bytes,
                read1: counts.read_bytes,
                read2: counts.read_again_bytes,
                inner_dup: counts.inner_dup_bytes + counts.cross_dup_bytes,
                pds_dup: counts.popular_dup_bytes,
                pds_new: counts.popular_bytes,
                new: counts.new_bytes,
                stored: counts.stored_bytes,
            },
            chunks: counts.chunks,
            asked: counts.asked_chunks,
            new_chunks: counts.new_chunks,
            unresolved: counts.unresolved_chunks,
            warnings: summary.warnings.clone(),
            doubts: summary.doubts.iter().map(|doubt| doubt.kind).collect(),
        }
    }
}

/// VMs for tests.
#[cfg(test)]
pub(crate) mod sample {
    use super::*;

    /// A VM with a state and nothing else.
    pub(crate) fn vm(name: &str, state: VmState) -> VmStatus {
        let progress = VmProgress { planned_bytes: 0, seconds: 0.0, refused: 0 };
        VmStatus { vm: name.to_owned(), progress, state, settled: None, settle_error: None }
    }

    /// A VM with a new snapshot that stored this number of chunks.
    pub(crate) fn done(name: &str, new_chunks: u64) -> VmStatus {
        let backup = VmBackup {
            snapshot: SnapshotId([7; 16]),
            short_id: "07070707".to_owned(),
            uuid: String::new(),
            base: None,
            disks: Vec::new(),
            bytes: VmBytes::default(),
            chunks: 0,
            asked: 0,
            new_chunks,
            unresolved: 0,
            warnings: Vec::new(),
            doubts: Vec::new(),
        };
        vm(name, VmState::Done(Box::new(backup)))
    }
}
