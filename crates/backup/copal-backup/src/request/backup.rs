//! Backups: disks to read, options, counts, summary.

use crate::request::copied::CopiedSnapshot;
use crate::request::identity::{SnapshotId, Vm};
use crate::request::json;
use crate::request::open_session::Holder;
use copal_disk::doubt::{DiskDoubt, DoubtKind};
use copal_disk::source::{BitmapState, ChangedExtents, ContentEvidence, Source};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// One disk to back up.
pub struct DiskSource {
    /// Its name within the VM: `sda`.
    pub name: String,
    /// Its bytes.
    pub source: Box<dyn Source>,
    /// Serial that distinguishes it from another disk of its name; empty if unknown. Changed extents are used
    /// only with a base of the same serial.
    pub serial: String,
    /// Changes since a base snapshot, if known.
    pub changed: Option<ChangedExtents>,
    /// Why the changes are unknown although a source for them was given: for example a missing bitmap.
    pub no_changes: Option<String>,
    /// The dirty bitmap that has recorded all writes since the moment of this backup, or longer. The next
    /// backup can use it.
    pub starts: Option<BitmapState>,
    /// The sentinel: a bitmap beside `starts` that records nothing. `starts` has all its marks, unless
    /// `starts` was cleared.
    pub sentinel: Option<BitmapState>,
    /// Location of the bytes, which distinguishes the disk from another of the same size, also after restarts
    /// of the host; empty if there is none. A bitmap is used only with a base of the same location.
    pub identity: String,
    /// Evidence that the source is a disk.
    pub content: ContentEvidence,
    /// Warnings from the opening of the source; the summary repeats them.
    pub warnings: Vec<String>,
    /// Doubts from the opening of the source.
    pub doubts: Vec<(DoubtKind, String)>,
}

impl DiskSource {
    /// A disk without known changes.
    pub fn new(name: impl Into<String>, source: Box<dyn Source>) -> DiskSource {
        DiskSource {
            name: name.into(),
            source,
            serial: String::new(),
            changed: None,
            no_changes: None,
            starts: None,
            sentinel: None,
            identity: String::new(),
            content: ContentEvidence::Guessed,
            warnings: Vec::new(),
            doubts: Vec::new(),
        }
    }
}

/// One backup of one VM.
pub struct BackupRequest {
    /// Name or UUID of the VM; a new one is added to the catalog.
    pub vm: String,
    /// Its disks, in order; at least one.
    pub disks: Vec<DiskSource>,
    /// Tags of the snapshot.
    pub tags: Vec<String>,
    /// Description of the snapshot, for example the host it was taken on.
    pub description: String,
    /// Fail instead of reading a whole disk if its changed extents cannot be used.
    pub strict_incremental: bool,
    /// Ignore the base: read everything.
    pub full: bool,
    /// Share of the spot check, in millionths of the data that changed extents leave out; at least 16 MiB of
    /// each such disk unless it is 0. If the check finds a difference, the whole disk is read, with a
    /// warning. `None`: [`BackupRequest::DEFAULT_SPOT_CHECK_MILLIONTHS`]. Where a dirty bitmap lists the
    /// changes it is five times as much, at least 64 MiB, since a bitmap that was disabled for a while leaves
    /// no trace.
    pub spot_check_millionths: Option<u32>,
    /// A disk may be smaller than in the newest snapshot that has it. The new snapshot is then doubtful.
    pub allow_smaller: bool,
    /// A disk that was not read whole for this long is read whole, despite any list of changes.
    pub full_every: Option<Duration>,
    /// Changed segments are stored whole, without a look-up of their chunks. Existing copies stay beside
    /// them.
    pub whole_segments: bool,
    /// Memory of the pipeline, in bytes; [`BackupRequest::DEFAULT_MEMORY_BYTES`].
    pub memory_bytes: u64,
    /// The holder of the session, shown to others that want the same VM. Used in a fleet on several servers,
    /// unless [`Repository::beat`](crate::Repository::beat) has set one before.
    pub holder: Holder,
    /// The snapshot that this backup copies. Its disks are not examined once more, since their doubts are known. The
    /// snapshot has the time of its origin if this handle may delete and that time is plausible.
    pub copied: Option<CopiedSnapshot>,
}

impl BackupRequest {
    /// One thousandth.
    pub const DEFAULT_SPOT_CHECK_MILLIONTHS: u32 = 1000;
    /// Keeps a process with a 32 MiB engine under 100 MB.
    pub const DEFAULT_MEMORY_BYTES: u64 = 40 << 20;
    /// A backup of `vm` with the defaults.
    pub fn new(vm: impl Into<String>, disks: Vec<DiskSource>) -> BackupRequest {
        BackupRequest {
            vm: vm.into(),
            disks,
            tags: Vec::new(),
            description: String::new(),
            strict_incremental: false,
            full: false,
            spot_check_millionths: None,
            allow_smaller: false,
            full_every: None,
            whole_segments: false,
            memory_bytes: BackupRequest::DEFAULT_MEMORY_BYTES,
            holder: Holder::default(),
            copied: None,
        }
    }
}

/// How a disk was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskMode {
    /// Only the changed extents.
    Incremental,
    /// Everything that is not a hole, compared with a base by fingerprint.
    Rescan,
    /// Everything that is not a hole; there was no base.
    Full,
}

impl fmt::Display for DiskMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DiskMode::Incremental => "incremental",
            DiskMode::Rescan => "rescan",
            DiskMode::Full => "full",
        })
    }
}

/// Result of the backup of one disk.
#[derive(Clone, Debug, Serialize)]
pub struct DiskSummary {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// How it was read.
    pub mode: DiskMode,
    /// Why it was not read incrementally; empty if it was.
    pub reason: String,
    /// The dirty bitmap that had recorded all later writes at the time of the backup.
    pub bitmap: Option<String>,
}

/// Counters of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BackupCounts {
    /// Sum of the disks' sizes.
    pub logical_bytes: u64,
    /// Bytes in the changed extents, or all data bytes without them.
    pub dirty_bytes: u64,
    /// Bytes read from the sources.
    pub read_bytes: u64,
    /// Bytes of the disks that are not holes.
    pub data_bytes: u64,
    /// Bytes read that the base held at the same place already, or that this backup stored before.
    pub inner_dup_bytes: u64,
    /// Bytes read that another snapshot or VM of the repository held, or that an interrupted backup left.
    pub cross_dup_bytes: u64,
    /// Bytes read that were new to the repository.
    pub new_bytes: u64,
    /// Bytes added to the store: packs of chunks and recipes, the manifest, the Publish record.
    pub stored_bytes: u64,
    /// Chunks read and fingerprinted.
    pub chunks: u64,
    /// Chunks stored.
    pub new_chunks: u64,
    /// Segments of the disks.
    pub segments: u64,
    /// Segments taken from the base unread.
    pub clean_segments: u64,
    /// Bytes read for spot checks.
    pub spot_check_bytes: u64,
    /// Bytes read in the second pass of a backup with other hosts.
    pub read_again_bytes: u64,
    /// Chunks for which other hosts were asked.
    pub asked_chunks: u64,
    /// Bytes read that are popular: other VMs have them too, and this one refers to the same frames.
    pub popular_dup_bytes: u64,
    /// Bytes stored as popular, before compression.
    pub popular_bytes: u64,
    /// Chunks stored for this VM because no answer came in time.
    pub unresolved_chunks: u64,
}

impl BackupCounts {
    /// Adds the counts of another part of a backup.
    pub(crate) fn add(&mut self, other: &BackupCounts) {
        let BackupCounts {
            logical_bytes,
            dirty_bytes,
            read_bytes,
            data_bytes,
            inner_dup_bytes,
            cross_dup_bytes,
            new_bytes,
            stored_bytes,
            chunks,
            new_chunks,
            segments,
            clean_segments,
            spot_check_bytes,
            read_again_bytes,
            asked_chunks,
            popular_dup_bytes,
            popular_bytes,
            unresolved_chunks,
        } = other;
        self.logical_bytes += logical_bytes;
        self.dirty_bytes += dirty_bytes;
        self.read_bytes += read_bytes;
        self.data_bytes += data_bytes;
        self.inner_dup_bytes += inner_dup_bytes;
        self.cross_dup_bytes += cross_dup_bytes;
        self.new_bytes += new_bytes;
        self.stored_bytes += stored_bytes;
        self.chunks += chunks;
        self.new_chunks += new_chunks;
        self.segments += segments;
        self.clean_segments += clean_segments;
        self.spot_check_bytes += spot_check_bytes;
        self.read_again_bytes += read_again_bytes;
        self.asked_chunks += asked_chunks;
        self.popular_dup_bytes += popular_dup_bytes;
        self.popular_bytes += popular_bytes;
        self.unresolved_chunks += unresolved_chunks;
    }
}

/// Result of a backup.
#[derive(Clone, Debug, Serialize)]
pub struct BackupSummary {
    /// The new snapshot.
    pub snapshot: SnapshotId,
    /// Its VM.
    pub vm: Vm,
    /// The snapshot it builds on.
    pub base: Option<SnapshotId>,
    /// Time of the store's clock when it became visible.
    pub created_ms: u64,
    /// Snapshots of the VM whose times are impossible by the same clock.
    #[serde(rename = "misdated_snapshots")]
    pub misdated: u64,
    /// One per disk.
    pub disks: Vec<DiskSummary>,
    /// Counts of bytes and chunks.
    pub counts: BackupCounts,
    /// Warnings about the disks, in sentences; the snapshot was made nevertheless.
    pub warnings: Vec<String>,
    /// Why the snapshot is doubtful until an operator accepts it; `warnings` repeats them.
    pub doubts: Vec<DiskDoubt>,
    /// Wall time of the backup.
    #[serde(rename = "seconds", serialize_with = "json::seconds")]
    pub duration: Duration,
}
