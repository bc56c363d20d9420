//! How far a job is on one host, and what became of its VMs: the reply of an agent, and part of the report.
//!
//! Not here: how an agent counts it (`report`, `job`), the report of all agents (`coordinator`).

use super::leak_repairs::LeakRepair;
use copal_backup::{BackupSummary, CleanUpSummary, DiskMode, SnapshotId};
use copal_disk::doubt::DoubtKind;
use serde::{Deserialize, Serialize};

/// How far a job is on one host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AgentStatus {
    /// The job, as 32 hex digits.
    pub job: String,
    /// Milliseconds since it began here.
    pub age_ms: u64,
    /// Rounds of the job.
    pub all_rounds: u32,
    /// It has ended here.
    pub done: bool,
    /// All VMs of this host are stored.
    pub stored: bool,
    /// Whether chunks may be popular by now that VMs stored for themselves; none in a job that settles nothing.
    pub gain: Option<bool>,
    /// This host has settled its VMs.
    pub settled: bool,
    /// The round that it is in.
    pub round: u64,
    /// Seconds since it began, or that it took.
    pub seconds: f64,
    /// Answers that were not believed.
    pub dropped_answers: u64,
    /// Bytes sent and received for questions and answers.
    pub message_bytes: u64,
    /// The most memory that the process has had.
    pub peak_memory_bytes: u64,
    /// VMs whose leak was repaired after the job.
    pub repairs: Vec<LeakRepair>,
    /// The VMs of this host.
    pub vms: Vec<VmStatus>,
}

/// What became of a VM of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmStatus {
    /// Its name.
    pub vm: String,
    /// What was planned for it, and what that took.
    #[serde(flatten)]
    pub progress: VmProgress,
    /// How its backup ended, if it has.
    #[serde(flatten)]
    pub state: VmState,
    /// What settling it did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settled: Option<SettledVm>,
    /// Why it was not settled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle_error: Option<String>,
}

/// What was planned for a VM, and what that took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmProgress {
    /// Bytes that were to be read.
    pub planned_bytes: u64,
    /// Seconds that its backup took.
    pub seconds: f64,
    /// Chunks that several VMs have, and that the fraction of popular chunks has no room for.
    pub refused: u64,
}

/// How the backup of a VM ended, if it has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum VmState {
    /// It has not begun.
    Waiting,
    /// It has.
    Running,
    /// It has no new snapshot.
    Failed(VmFailure),
    /// It has one.
    Done(Box<VmBackup>),
}

/// Why a VM has no new snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmFailure {
    /// A short stable word.
    pub code: String,
    /// A sentence.
    pub error: String,
}

/// The new snapshot of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmBackup {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// As people write it.
    pub short_id: String,
    /// The VM's identity.
    pub uuid: String,
    /// The snapshot it builds on.
    pub base: Option<SnapshotId>,
    /// Its disks.
    pub disks: Vec<VmDisk>,
    /// Bytes by what became of them.
    pub bytes: VmBytes,
    /// Chunks read.
    pub chunks: u64,
    /// Chunks that others were asked about.
    pub asked: u64,
    /// Chunks stored for this VM alone.
    pub new_chunks: u64,
    /// Chunks stored for this VM because nobody answered in time.
    pub unresolved: u64,
    /// What a person should know about the disks.
    pub warnings: Vec<String>,
    /// Why the snapshot counts as doubtful.
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
    /// Why it was not read incrementally; empty when it was.
    pub reason: String,
}

/// Bytes of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmBytes {
    /// Sum of the disks' sizes.
    pub logical: u64,
    /// Named by changed extents, or all data without them.
    pub dirty: u64,
    /// Read from the sources.
    pub read1: u64,
    /// Read again, to be stored.
    pub read2: u64,
    /// Read, and there already for this VM.
    pub inner_dup: u64,
    /// Read, and popular.
    pub pds_dup: u64,
    /// Stored as popular.
    pub pds_new: u64,
    /// Read, and held by nobody.
    pub new: u64,
    /// Added to the store.
    pub stored: u64,
}

/// What settling a VM did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SettledVm {
    /// Nothing was changed.
    pub dry_run: bool,
    /// Chunks that others were asked about.
    pub asked: u64,
    /// Chunks that were given up for popular ones.
    pub moved: u64,
    /// Bytes of them.
    pub moved_bytes: u64,
    /// Of them, those that became popular only then.
    pub stored_popular: u64,
    /// Stored bytes that a deletion frees.
    pub freed_bytes: u64,
    /// Chunks that nobody answered for in time.
    pub unanswered: u64,
    /// Chunks that the fraction of popular chunks has no room for.
    pub refused: u64,
    /// Bytes of them.
    pub refused_bytes: u64,
}

impl AgentStatus {
    /// Adds what the agent did in the next stage of a job.
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
    /// The backup has ended, either way.
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

    /// Of which nothing is known but its state.
    pub(crate) fn vm(name: &str, state: VmState) -> VmStatus {
        let progress = VmProgress { planned_bytes: 0, seconds: 0.0, refused: 0 };
        VmStatus { vm: name.to_owned(), progress, state, settled: None, settle_error: None }
    }

    /// With a new snapshot, for which so many chunks were stored.
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
