//! Requests and results of a repository: plain values without behaviour.
//!
//! Sizes are bytes, times are milliseconds since 1970 as stamped by the store. Summaries are `Serialize` as
//! `copal --json` prints them: a command adds its name, and what it measures itself.

pub mod error;
pub(crate) mod json;
pub(crate) mod open_session;
pub mod peers;
pub mod progress;
pub(crate) mod scheme;
pub(crate) mod words;

use crate::keys::role::RoleKey;
use crate::packs::volumes::PackHome;
use crate::request::open_session::{Holder, HolderId, Session};
use crate::retention::Misdated;
use copal_chunk::ChunkProfile;
use copal_disk::doubt::{DiskDoubt, DoubtKind};
use copal_disk::source::{BitmapState, ChangedExtents, ContentEvidence, Source};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::collections::HashSet;
use std::fmt;
use std::time::Duration;
use zeroize::Zeroizing;

/// Credential that opens a repository.
#[derive(Clone, Debug)]
pub enum Unlock {
    /// The password of one of its key slots.
    Password(Zeroizing<String>),
    /// A role key of it; the key decides the rights.
    Key(RoleKey),
    /// The repository was made with `--insecure-no-password`.
    Insecure,
}

/// The chunks that a snapshot may refer to; fixed for the life of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// All chunks of the repository: one exact index, one writer at a time. Best for one host.
    Solo,
    /// The VM's own chunks, and popular ones of the domain. Operations on one VM touch no other, and many
    /// hosts write at once.
    Fleet {
        /// Share of all unique chunks that may be popular, in millionths.
        popular_millionths: u32,
    },
}

impl Layout {
    /// Default share of popular chunks: 4 %.
    pub const DEFAULT_POPULAR_MILLIONTHS: u32 = 40_000;

    /// Whether this is the layout of a fleet.
    pub fn is_fleet(self) -> bool {
        matches!(self, Layout::Fleet { .. })
    }
}

/// Options of a new repository.
#[derive(Clone, Debug)]
pub struct InitOptions {
    /// The chunks that a snapshot may refer to.
    pub layout: Layout,
    /// Its first password, or none.
    pub unlock: Unlock,
    /// Chunking profile of its disks; fixed for the life of the repository.
    pub profile: ChunkProfile,
    /// Memory of the password hash, in KiB; 65536 by default.
    pub argon2_memory_kib: u32,
}

impl InitOptions {
    /// The defaults, with this password.
    pub fn new(unlock: Unlock) -> InitOptions {
        InitOptions {
            layout: Layout::Solo,
            unlock,
            profile: ChunkProfile::Default,
            argon2_memory_kib: 65_536,
        }
    }
}

/// What a repository says about itself.
#[derive(Clone, Debug, Serialize)]
pub struct RepositoryInfo {
    /// Its identity.
    #[serde(serialize_with = "json::text")]
    pub domain: uuid::Uuid,
    /// Who may refer to a chunk.
    #[serde(skip)]
    pub layout: Layout,
    /// How disks are cut into chunks.
    #[serde(skip)]
    pub profile: ChunkProfile,
    /// Whether a password protects it.
    pub encrypted: bool,
    /// Creation time.
    pub created_ms: u64,
    /// Format version.
    #[serde(skip)]
    pub version: u16,
}

/// Least digits of a prefix that names a snapshot.
pub(crate) const MIN_DIGITS: usize = 4;

/// Identity of a snapshot: 16 random bytes, written as 32 hex digits; people use the first 8.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub [u8; 16]);

impl Serialize for SnapshotId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        json::text(self, serializer)
    }
}

impl<'de> Deserialize<'de> for SnapshotId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<SnapshotId, D::Error> {
        let digits = String::deserialize(deserializer)?;
        let id = uuid::Uuid::try_parse(&digits).ok().filter(|_| digits.len() == 32);
        let id = id.ok_or_else(|| D::Error::custom("the id of a snapshot is not 32 hex digits"))?;
        Ok(SnapshotId(id.into_bytes()))
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
impl fmt::Debug for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
impl SnapshotId {
    /// The first 8 hex digits.
    pub fn short(&self) -> String {
        self.to_string()[..8].to_owned()
    }
}

/// A VM the catalog knows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vm {
    /// Its identity for ever.
    #[serde(serialize_with = "json::text")]
    pub uuid: uuid::Uuid,
    /// Its name; unique in the repository.
    pub name: String,
}

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
    /// How it is known that the source is a disk.
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

/// What became of one disk.
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

/// What a backup did.
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
    /// Snapshots of the VM whose times cannot be, by the same clock.
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
    /// Wall time of the whole.
    #[serde(rename = "seconds", serialize_with = "json::seconds")]
    pub duration: Duration,
}

/// One disk of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotDisk {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// Serial that distinguishes it from another disk of its name; empty if unknown.
    pub serial: String,
    /// How it was read.
    pub mode: DiskMode,
    /// Why it was not read incrementally; empty if it was.
    pub reason: String,
    /// The dirty bitmap that had recorded all later writes at the time of the backup.
    pub bitmap: Option<String>,
    /// The bitmap beside it that records nothing, by which one that was cleared is known.
    #[serde(skip)]
    pub sentinel: Option<BitmapState>,
    /// What tells the disk from another one; empty when nothing does.
    #[serde(skip)]
    pub identity: String,
}

/// The readable snapshots, and the VMs whose log is damaged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Oldest first.
    pub snapshots: Vec<Snapshot>,
    /// VMs with a damaged log, each with the damage as a sentence.
    pub damaged: Vec<(Vm, String)>,
}

/// A published snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Snapshot {
    /// Its identity.
    pub id: SnapshotId,
    /// Its VM.
    pub vm: Vm,
    /// Position in the VM's history, ascending.
    pub sequence: u64,
    /// Time of the store's clock when it became visible. May go back if a clock was wrong.
    pub created_ms: u64,
    /// Why that time is impossible, compared with the present clock and with other snapshots.
    pub misdated: Option<Misdated>,
    /// Its base snapshot.
    pub base: Option<SnapshotId>,
    /// Tags given at backup.
    pub tags: Vec<String>,
    /// Text given at backup.
    pub description: String,
    /// Its disks.
    pub disks: Vec<SnapshotDisk>,
    /// Counters of the backup that made it.
    pub counts: BackupCounts,
    /// A verify decoded every chunk of it and found nothing wrong.
    #[serde(rename = "verified")]
    pub is_verified: bool,
    /// It may not be forgotten before this time, in ms since 1970; 0: it is not held.
    #[serde(skip)]
    pub held_until_ms: u64,
    /// Why it may not be what its disks should be.
    pub doubts: Vec<DiskDoubt>,
    /// A person has seen the doubts and takes the snapshot as it is.
    #[serde(skip)]
    pub is_accepted: bool,
    /// Why its manifest cannot be read; then base, tags, description, disks and counts are empty.
    pub damage: Option<String>,
}

impl Snapshot {
    /// Whether it has a doubt that no operator has accepted.
    pub fn is_doubtful(&self) -> bool {
        !self.doubts.is_empty() && !self.is_accepted
    }
}

/// Content of one disk of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskListing {
    /// The disk.
    pub disk: SnapshotDisk,
    /// Bytes that are not holes.
    pub data_bytes: u64,
    /// Bytes of holes.
    pub hole_bytes: u64,
    /// Chunk references.
    pub chunks: u64,
    /// Segments with data.
    pub segments: u64,
}

/// Request to restore one disk.
#[derive(Clone, Debug)]
pub struct RestoreRequest {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The disk; `None` if the snapshot has only one.
    pub disk: Option<String>,
    /// Fetches in flight, 1 to 64.
    pub fetches: usize,
    /// Memory of the fetches, in bytes.
    pub memory_bytes: u64,
}

impl RestoreRequest {
    /// The only disk of `snapshot`, with the defaults.
    pub fn new(snapshot: SnapshotId) -> RestoreRequest {
        RestoreRequest { snapshot, disk: None, fetches: 8, memory_bytes: 40 << 20 }
    }
}

/// What a restore did.
#[derive(Clone, Debug, Serialize)]
pub struct RestoreSummary {
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// Name of the disk.
    pub disk: String,
    /// Its size.
    pub size_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes left as holes.
    pub hole_bytes: u64,
    /// Bytes fetched from packs.
    pub fetched_bytes: u64,
    /// Chunks written.
    pub chunks: u64,
    /// Wall time of the whole.
    #[serde(rename = "seconds", serialize_with = "json::seconds")]
    pub duration: Duration,
}

/// One damaged object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The object: a pack, a recipe, a manifest, a record.
    pub what: String,
    /// The mismatch.
    pub detail: String,
    /// Snapshots that refer to it; a check names all of them.
    pub snapshots: Vec<SnapshotId>,
}

/// What a check or a verification found.
#[derive(Clone, Debug, Default, Serialize)]
pub struct CheckReport {
    /// Everything that is wrong; empty when all is well.
    #[serde(skip)]
    pub damages: Vec<Damage>,
    /// Damages beyond the first thousand are only counted.
    #[serde(skip)]
    pub more_damages: u64,
    /// Snapshots that those hurt, or that lead to a pack where some of them are.
    #[serde(skip)]
    pub more_snapshots: Vec<SnapshotId>,
    /// Snapshots walked.
    pub snapshots: u64,
    /// Packs whose structure was checked.
    pub packs: u64,
    /// Recipes, pages and roots read.
    pub recipes: u64,
    /// Chunk references that resolve.
    pub references: u64,
    /// Frames decoded.
    pub decoded_frames: u64,
    /// Stored bytes decoded.
    pub decoded_bytes: u64,
    /// Snapshots whose times cannot be. No damage: nothing of them is lost.
    #[serde(skip)]
    pub misdated: Vec<(SnapshotId, Misdated)>,
    /// Packs of backups that never finished; the next backup uses them or `prune` frees them.
    pub unfinished_packs: u64,
}

impl CheckReport {
    /// Whether no damage was found.
    pub fn is_clean(&self) -> bool {
        self.damages.is_empty() && self.more_damages == 0
    }
}

/// A damaged frame of a pack, for [`Repository::note_lost`](crate::Repository::note_lost).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostFrame {
    pub(crate) home: PackHome,
    pub(crate) pack: u64,
    pub(crate) slot: u32,
    pub(crate) id: [u8; 16],
}

/// Share of the packs that a check decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReadData {
    /// None: structure only.
    #[default]
    No,
    /// The packs whose number falls in slice `index` (from 1) of `of`.
    Slice {
        /// From 1 to `of`.
        index: u32,
        /// Number of slices.
        of: u32,
    },
    /// All packs.
    All,
}

/// Options of `forget`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForgetOptions {
    /// Trust the clock even if it is further ahead of all snapshots than
    /// [`PAUSE_MS`](crate::retention::PAUSE_MS).
    pub accept_clock: bool,
}

/// Result of `forget`.
#[derive(Clone, Debug, Default)]
pub struct ForgetSummary {
    /// Snapshots that are no longer visible.
    pub forgotten: Vec<SnapshotId>,
}

/// Method to find the frames that only forgotten snapshots of a VM of a fleet refer to. In the layout solo it
/// is always exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FreeMethod {
    /// Merged summary vectors: reads the recipes that differ between neighbours, and misses one frame in a
    /// thousand. Without a complete set of vectors, as `Exact`.
    #[default]
    Summary,
    /// A walk of all snapshots of the VM: reads all recipes, misses nothing.
    Exact,
    /// As `Exact`, but as if chunks belonged to no VM: the snapshots of all VMs are walked for each. For
    /// comparison.
    MarkSweep,
    /// As `MarkSweep`, but of the other VMs only those with forgotten snapshots are walked, since marks of
    /// the rest are unchanged. For comparison.
    Grouped,
}

/// Options of `prune`.
#[derive(Clone, Debug)]
pub struct PruneOptions {
    /// Method to find dead frames, in a fleet.
    pub method: FreeMethod,
    /// Only this VM, in a fleet.
    pub vm: Option<uuid::Uuid>,
    /// Packs are rewritten until at most this share of the stored bytes is unused, in percent; 0 to 100.
    /// Rewriting the rest costs more than it frees.
    pub max_unused_percent: u8,
    /// Determine and report the result, change nothing.
    pub dry_run: bool,
    /// Memory of the mark, in bytes; a larger repository is marked in several passes.
    pub memory_bytes: u64,
    /// Snapshots that a dry run treats as forgotten; ignored otherwise.
    pub without: HashSet<SnapshotId>,
}

impl Default for PruneOptions {
    fn default() -> PruneOptions {
        PruneOptions {
            method: FreeMethod::Summary,
            vm: None,
            max_unused_percent: 5,
            dry_run: false,
            memory_bytes: 24 << 20,
            without: HashSet::new(),
        }
    }
}

/// What `prune` or `delete` did, or would do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PruneSummary {
    /// Unfinished backups ended and swept.
    pub swept_sessions: u64,
    /// VMs of a fleet that were skipped because they are being backed up.
    pub busy_vms: u64,
    /// VMs of a fleet that something was freed of by summary vectors, and by a walk.
    #[serde(skip)]
    pub by_summary: u64,
    /// See `by_summary`.
    #[serde(skip)]
    pub by_walk: u64,
    /// By summary vectors: examined references of forgotten snapshots. By a walk: frames. Each is dead or
    /// kept.
    pub candidates: u64,
    /// Those of them that no other snapshot has.
    #[serde(rename = "dead")]
    pub candidates_dead: u64,
    /// Those that another one has, or seems to have.
    #[serde(rename = "kept")]
    pub candidates_kept: u64,
    /// Stored bytes of frames that became dead; they count as free from then on.
    #[serde(skip)]
    pub freed_bytes: u64,
    /// Bytes read from the store, in a fleet.
    pub read_bytes: u64,
    /// Estimate of dead bytes that the deletions of these VMs have missed since their last repair.
    pub leak_estimate_bytes: u64,
    /// Frames that a snapshot refers to.
    pub live_frames: u64,
    /// Frames that no snapshot refers to.
    pub dead_frames: u64,
    /// Packs unlinked because all of their frames were dead.
    pub removed_packs: u64,
    /// Packs rewritten because some of their frames were dead.
    pub rewritten_packs: u64,
    /// Stored bytes before.
    pub before_bytes: u64,
    /// Stored bytes after.
    pub after_bytes: u64,
    /// Bytes of new packs with frames of rewritten ones.
    pub written_bytes: u64,
    /// Bytes of dead frames in packs that were not rewritten, as far as these are readable.
    pub unused_bytes: u64,
    /// Passes of the mark under its memory bound.
    pub mark_passes: u64,
}

/// Size and shape of a repository.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RepositoryStats {
    /// VMs with at least one snapshot.
    pub vms: u64,
    /// Published snapshots.
    pub snapshots: u64,
    /// Published snapshots with an unreadable manifest.
    pub damaged_snapshots: u64,
    /// Sum of the logical sizes of all other snapshots.
    pub logical_bytes: u64,
    /// Bytes of those that are holes.
    pub hole_bytes: u64,
    /// Bytes of chunk packs.
    pub chunk_pack_bytes: u64,
    /// Bytes of recipe packs.
    pub recipe_pack_bytes: u64,
    /// Bytes of manifests, catalog and key slots.
    pub metadata_bytes: u64,
    /// Number of packs.
    pub packs: u64,
    /// Chunks stored.
    pub chunks: u64,
    /// Backups that never ended.
    pub unfinished_sessions: u64,
}

/// A session that was ended because its holder was silent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedSession {
    /// The VM of the backup.
    pub vm: Vm,
    /// The session.
    pub session: Session,
    /// Its holder.
    pub holder: HolderId,
}

/// Size and shape of one VM of a fleet.
#[derive(Clone, Debug, Default, Serialize)]
pub struct VmStats {
    /// The VM.
    #[serde(skip)]
    pub vm: Option<Vm>,
    /// Published snapshots.
    pub snapshots: u64,
    /// Published snapshots with an unreadable manifest.
    pub damaged_snapshots: u64,
    /// Forgotten snapshots whose space is not freed yet.
    pub forgotten: u64,
    /// Sum of the logical sizes of all readable snapshots.
    pub logical_bytes: u64,
    /// Bytes of packs of the VM's own chunks.
    pub chunk_pack_bytes: u64,
    /// Bytes of packs of recipes.
    pub recipe_pack_bytes: u64,
    /// Bytes of manifests, summary vectors and lists of dead frames.
    pub metadata_bytes: u64,
    /// Number of packs.
    pub packs: u64,
    /// Known dead frames in them.
    pub dead_frames: u64,
    /// Bytes of the known dead frames.
    pub dead_bytes: u64,
    /// Estimate of dead bytes that are not known as dead; `copal repair leak` finds them.
    pub leak_estimate_bytes: u64,
    /// Backups that have not ended.
    pub unfinished_sessions: u64,
    /// Chunks about which nobody answered when they were stored, and about which no clean-up has asked since.
    #[serde(skip)]
    pub unresolved_chunks: u64,
    /// Chunks whose own frames the VM gave up for popular ones.
    #[serde(skip)]
    pub moved_chunks: u64,
}

impl VmStats {
    /// Share of a VM's bytes above which its leak is repaired, in percent: the paper's tau.
    pub const LEAK_SHARE_PERCENT: u8 = 10;

    /// Whether the estimated leak exceeds a share of the VM's bytes, so that a walk of its snapshots pays
    /// off.
    pub fn leaks_more_than(&self, share_percent: u8) -> bool {
        let bytes = u128::from(self.chunk_pack_bytes) + u128::from(self.recipe_pack_bytes);
        u128::from(self.leak_estimate_bytes) * 100 > bytes * u128::from(share_percent)
    }
}

/// Options of a clean-up of a VM of a fleet.
#[derive(Clone, Copy, Debug)]
pub struct CleanUpOptions {
    /// Memory of one round.
    pub memory_bytes: u64,
    /// Ask only about the frames that the backup of this snapshot stored; `None`: about all frames of the
    /// VM's own chunks.
    pub snapshot: Option<SnapshotId>,
    /// Count the frames that would be given up, change nothing.
    pub dry_run: bool,
}

impl CleanUpOptions {
    /// Asks about all frames of the VM's own chunks.
    pub fn all(memory_bytes: u64) -> CleanUpOptions {
        CleanUpOptions { memory_bytes, snapshot: None, dry_run: false }
    }
}

/// What a clean-up of one VM of a fleet did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CleanUpSummary {
    /// The VM.
    #[serde(skip)]
    pub vm: Option<Vm>,
    /// Own frames of the VM about which other hosts were asked.
    pub asked: u64,
    /// Frames that were given up for popular ones.
    pub moved: u64,
    /// Chunks that were stored as popular ones.
    pub stored_popular: u64,
    /// Bytes of the chunks of `moved`.
    pub moved_bytes: u64,
    /// Stored bytes of frames that became dead; they count as free from then on.
    pub freed_bytes: u64,
    /// Frames without a usable answer in time: the next clean-up asks again.
    pub unanswered: u64,
    /// Frames of chunks that several VMs have, and that may not become popular: as many chunks are as the
    /// fraction allows.
    #[serde(rename = "refused_by_fraction")]
    pub refused: u64,
    /// Bytes of the chunks of `refused`.
    #[serde(skip)]
    pub refused_bytes: u64,
    /// Bytes read from the store.
    #[serde(skip)]
    pub read_bytes: u64,
}

impl CleanUpSummary {
    /// Adds the counts of another clean-up.
    pub fn add(&mut self, other: &CleanUpSummary) {
        self.asked += other.asked;
        self.moved += other.moved;
        self.stored_popular += other.stored_popular;
        self.moved_bytes += other.moved_bytes;
        self.freed_bytes += other.freed_bytes;
        self.unanswered += other.unanswered;
        self.refused += other.refused;
        self.refused_bytes += other.refused_bytes;
        self.read_bytes += other.read_bytes;
    }
}

/// Writes VMs as a list of their names.
fn names_of_vms<S: Serializer>(vms: &[Vm], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(vms.iter().map(|vm| &vm.name))
}

/// What became of popular packs that nobody needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct UnneededPacks {
    /// VMs that are being backed up: as long as they are, nothing is decided.
    #[serde(serialize_with = "names_of_vms")]
    pub waiting_for: Vec<Vm>,
    /// Packs of which no snapshot needed a chunk at first.
    pub unneeded_packs: u64,
    /// Packs that are still condemned: they take no new references, and the next run decides.
    pub condemned_packs: u64,
    /// Packs that turned out to be needed.
    pub spared_packs: u64,
    /// Packs that no snapshot needs.
    pub gone_packs: u64,
    /// Packs whose files were removed, including those left by earlier runs and dead writers.
    pub removed_packs: u64,
    /// Their bytes.
    pub removed_bytes: u64,
}

/// Packs that were removed because no record names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweptPacks {
    /// Number of packs.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a rebuild of the index did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct IndexSummary {
    /// Packs whose footers were read.
    pub packs: u64,
    /// Rows added.
    pub rows: u64,
    /// Packs with an unreadable footer; their chunks are unknown until the packs are repaired.
    pub damaged_packs: u64,
}
