//! What is asked of a repository, and what it answers: plain values, no behaviour.
//!
//! Sizes are bytes, times are milliseconds since 1970 as stamped by the store.

pub mod error;
pub(crate) mod open_session;
pub mod peers;
pub mod progress;
pub(crate) mod scheme;
pub(crate) mod words;

use crate::keys::role::RoleKey;
use crate::packs::volumes::Home;
use crate::request::open_session::{Holder, HolderId, Session};
use crate::retention::Misdated;
use copal_chunk::ChunkProfile;
use copal_disk::doubt::{DiskDoubt, DoubtKind};
use copal_disk::source::{BitmapState, ChangedExtents, ContentEvidence, Source};
use std::collections::HashSet;
use std::fmt;
use std::time::Duration;
use zeroize::Zeroizing;

/// What opens a repository.
#[derive(Clone, Debug)]
pub enum Unlock {
    /// The password of one of its key slots.
    Password(Zeroizing<String>),
    /// A role key of it; what may be done then is for the key to say.
    Key(RoleKey),
    /// The repository was made with `--insecure-no-password`.
    Insecure,
}

/// Who may refer to a chunk; fixed for the life of a repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Every snapshot to every chunk: one exact index, one writer at a time. Best for one host.
    Solo,
    /// Each VM to its own chunks, and to those that are popular in the domain: what one VM does touches no
    /// other, and many hosts write at once.
    Fleet {
        /// How much of all unique chunks may be popular, in millionths.
        popular_millionths: u32,
    },
}

impl Layout {
    /// Share of popular chunks unless told otherwise: 4 %.
    pub const DEFAULT_POPULAR_MILLIONTHS: u32 = 40_000;

    /// Whether it is that of a fleet.
    pub fn is_fleet(self) -> bool {
        matches!(self, Layout::Fleet { .. })
    }
}

/// How a new repository is made.
#[derive(Clone, Debug)]
pub struct InitOptions {
    /// Who may refer to a chunk.
    pub layout: Layout,
    /// Its first password, or none at all.
    pub unlock: Unlock,
    /// How disks are cut into chunks; fixed for the life of the repository.
    pub profile: ChunkProfile,
    /// Memory the password hash takes, in KiB; 65536 unless told otherwise.
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
#[derive(Clone, Debug)]
pub struct RepositoryInfo {
    /// Its identity.
    pub domain: uuid::Uuid,
    /// Who may refer to a chunk.
    pub layout: Layout,
    /// How disks are cut into chunks.
    pub profile: ChunkProfile,
    /// Whether a password protects it.
    pub encrypted: bool,
    /// When it was made.
    pub created_ms: u64,
    /// Format version.
    pub version: u16,
}

/// Fewer digits of the id of a snapshot mean nothing.
pub(crate) const MIN_DIGITS: usize = 4;

/// Identity of a snapshot: 16 random bytes, written as 32 hex digits, by people as the first 8.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SnapshotId(pub [u8; 16]);

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vm {
    /// Its identity for ever.
    pub uuid: uuid::Uuid,
    /// What people call it; unique in the repository.
    pub name: String,
}

/// One disk to back up.
pub struct DiskSource {
    /// Its name within the VM: `sda`.
    pub name: String,
    /// Its bytes.
    pub source: Box<dyn Source>,
    /// What tells it from another disk that may get its name; empty when nobody says. Changed extents are
    /// used only with a base of the same serial.
    pub serial: String,
    /// What changed since a base snapshot, when somebody knows.
    pub changed: Option<ChangedExtents>,
    /// Why nobody knows, although somebody was asked: a bitmap that is missing.
    pub no_changes: Option<String>,
    /// The dirty bitmap that has recorded all writes since the moment that is backed up, or longer: what the
    /// next backup can be told by.
    pub starts: Option<BitmapState>,
    /// A bitmap beside `starts` that records nothing: what it says, `starts` says as well, unless that was
    /// cleared.
    pub sentinel: Option<BitmapState>,
    /// What tells where the bytes lie from another disk of the same size, over restarts of the host; empty
    /// when nothing does. A bitmap is believed only with a base of the same identity.
    pub identity: String,
    /// How it is known that this is a disk.
    pub content: ContentEvidence,
    /// What a person should know about the source, seen when it was opened; the summary repeats it.
    pub warnings: Vec<String>,
    /// The same, of what makes the snapshot doubtful.
    pub doubts: Vec<(DoubtKind, String)>,
}

impl DiskSource {
    /// A disk of which nobody knows what changed.
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
    /// Name or UUID of the VM; a new one is entered in the catalog.
    pub vm: String,
    /// Its disks, in order; at least one.
    pub disks: Vec<DiskSource>,
    /// Words kept with the snapshot.
    pub tags: Vec<String>,
    /// Free text kept with the snapshot, for example the host it was taken on.
    pub description: String,
    /// Fail instead of reading a whole disk when its changed extents cannot be used.
    pub strict_incremental: bool,
    /// Ignore the base: read everything.
    pub full: bool,
    /// Share of the data that changed extents leave out which is read and compared with the base, in
    /// millionths; at least 16 MiB of each such disk unless it is 0. A difference makes the disk be read as a
    /// whole, with a warning. `None`: [`BackupRequest::DEFAULT_SPOT_CHECK_MILLIONTHS`], and five times as
    /// much, at least 64 MiB, where a dirty bitmap tells what changed: nobody can tell whether that was
    /// disabled for a while.
    pub spot_check_millionths: Option<u32>,
    /// A disk may have fewer bytes than in the newest snapshot with it. The new one is doubtful then.
    pub allow_smaller: bool,
    /// A disk that was not read as a whole for this long is read so, whatever tells what changed.
    pub full_every: Option<Duration>,
    /// Segments that changed are stored whole: none of their chunks is looked for. What is stored otherwise
    /// stands beside that.
    pub whole_segments: bool,
    /// Memory the pipeline may hold, in bytes; [`BackupRequest::DEFAULT_MEMORY_BYTES`].
    pub memory_bytes: u64,
    /// Who backs up, told to others who want the same VM; counts in a fleet on several servers, unless
    /// [`Repository::beat`](crate::Repository::beat) has said it before.
    pub holder: Holder,
}

impl BackupRequest {
    /// A thousandth.
    pub const DEFAULT_SPOT_CHECK_MILLIONTHS: u32 = 1000;
    /// Keeps a whole process with a 32 MiB engine under 100 MB.
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskMode {
    /// Only what the changed extents named.
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
#[derive(Clone, Debug)]
pub struct DiskSummary {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// How it was read.
    pub mode: DiskMode,
    /// Why it was not read incrementally; empty when it was.
    pub reason: String,
    /// The dirty bitmap that had recorded all later writes when it was backed up.
    pub bitmap: Option<String>,
}

/// Counters of a backup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackupCounts {
    /// Sum of the disks' sizes.
    pub logical_bytes: u64,
    /// Bytes the changed extents named, or all data bytes without them.
    pub dirty_bytes: u64,
    /// Bytes read from the sources.
    pub read_bytes: u64,
    /// Bytes of the disks that are not holes.
    pub data_bytes: u64,
    /// Bytes read that the base held at the same place already, or that this backup stored before.
    pub inner_dup_bytes: u64,
    /// Bytes read that another snapshot or VM of the repository held, or an interrupted backup left.
    pub cross_dup_bytes: u64,
    /// Bytes read that nobody held.
    pub new_bytes: u64,
    /// Bytes added to the store: packs of chunks and recipes, the manifest, the record that makes it visible.
    pub stored_bytes: u64,
    /// Chunks read and fingerprinted.
    pub chunks: u64,
    /// Chunks stored.
    pub new_chunks: u64,
    /// Segments the disks have.
    pub segments: u64,
    /// Segments kept from the base unread.
    pub clean_segments: u64,
    /// Bytes read besides, to compare some of what the changed extents leave out with the base.
    pub spot_check_bytes: u64,
    /// Bytes read again, to be stored: where others are asked what they have, a disk is read in two passes.
    pub read_again_bytes: u64,
    /// Chunks others were asked about.
    pub asked_chunks: u64,
    /// Bytes read that are popular: other VMs have them, too, and this one refers to the same frames.
    pub popular_dup_bytes: u64,
    /// Bytes stored as popular, before compression.
    pub popular_bytes: u64,
    /// Chunks stored for this VM because nobody answered in time.
    pub unresolved_chunks: u64,
}

impl BackupCounts {
    /// Adds what another part of a backup counted.
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
#[derive(Clone, Debug)]
pub struct BackupSummary {
    /// The new snapshot.
    pub snapshot: SnapshotId,
    /// Its VM.
    pub vm: Vm,
    /// The snapshot it builds on.
    pub base: Option<SnapshotId>,
    /// What the store's clock showed when it became visible.
    pub created_ms: u64,
    /// Snapshots of the VM whose times cannot be, by the same clock.
    pub misdated: u64,
    /// One per disk.
    pub disks: Vec<DiskSummary>,
    /// What was read and stored.
    pub counts: BackupCounts,
    /// What a person should know about the disks, in sentences; the snapshot was made all the same.
    pub warnings: Vec<String>,
    /// Why the snapshot counts as doubtful until somebody accepts it; `warnings` has them, too.
    pub doubts: Vec<DiskDoubt>,
    /// Wall time of the whole.
    pub duration: Duration,
}

/// One disk of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotDisk {
    /// Its name.
    pub name: String,
    /// Its size.
    pub size_bytes: u64,
    /// What tells it from another disk of its name; empty when nobody said.
    pub serial: String,
    /// How it was read.
    pub mode: DiskMode,
    /// Why it was not read incrementally; empty when it was.
    pub reason: String,
    /// The dirty bitmap that had recorded all later writes when it was backed up.
    pub bitmap: Option<String>,
    /// The bitmap beside it that records nothing, by which one that was cleared is known.
    pub sentinel: Option<BitmapState>,
    /// What tells the disk from another one; empty when nothing does.
    pub identity: String,
}

/// The snapshots that can be listed, and the VMs whose cannot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Oldest first.
    pub snapshots: Vec<Snapshot>,
    /// VMs whose log is damaged, and how, as a sentence.
    pub damaged: Vec<(Vm, String)>,
}

/// A published snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Its identity.
    pub id: SnapshotId,
    /// Its VM.
    pub vm: Vm,
    /// Position in the VM's history, ascending.
    pub sequence: u64,
    /// What the store's clock showed when it became visible. May go back where a clock was wrong.
    pub created_ms: u64,
    /// Why that cannot be, seen from the clock now and from the snapshots beside it.
    pub misdated: Option<Misdated>,
    /// The snapshot it was built on.
    pub base: Option<SnapshotId>,
    /// Words given at backup.
    pub tags: Vec<String>,
    /// Text given at backup.
    pub description: String,
    /// Its disks.
    pub disks: Vec<SnapshotDisk>,
    /// Counters of the backup that made it.
    pub counts: BackupCounts,
    /// A verify decoded every chunk of it and found nothing wrong.
    pub is_verified: bool,
    /// It may not be forgotten before this time, in ms since 1970; 0: it is not held.
    pub held_until_ms: u64,
    /// Why it may not be what its disks should be.
    pub doubts: Vec<DiskDoubt>,
    /// A person has seen the doubts and takes the snapshot as it is.
    pub is_accepted: bool,
    /// Why its manifest cannot be read; then base, tags, description, disks and counts are empty.
    pub damage: Option<String>,
}

impl Snapshot {
    /// Whether a warning stands against it that nobody has accepted.
    pub fn is_doubtful(&self) -> bool {
        !self.doubts.is_empty() && !self.is_accepted
    }
}

/// What one disk of a snapshot consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskListing {
    /// The disk.
    pub disk: SnapshotDisk,
    /// Bytes that are not holes.
    pub data_bytes: u64,
    /// Bytes that are.
    pub hole_bytes: u64,
    /// Chunk references.
    pub chunks: u64,
    /// Segments that hold data.
    pub segments: u64,
}

/// What to restore.
#[derive(Clone, Debug)]
pub struct RestoreRequest {
    /// Which snapshot.
    pub snapshot: SnapshotId,
    /// Which disk; `None` when the snapshot has one.
    pub disk: Option<String>,
    /// Fetches in flight, 1 to 64.
    pub fetches: usize,
    /// Memory the fetches may hold, in bytes.
    pub memory_bytes: u64,
}

impl RestoreRequest {
    /// The only disk of `snapshot`, with the defaults.
    pub fn new(snapshot: SnapshotId) -> RestoreRequest {
        RestoreRequest { snapshot, disk: None, fetches: 8, memory_bytes: 40 << 20 }
    }
}

/// What a restore did.
#[derive(Clone, Debug)]
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
    pub duration: Duration,
}

/// One thing that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Which object: a pack, a recipe, a manifest, a record.
    pub what: String,
    /// What does not fit.
    pub detail: String,
    /// Snapshots that lead to it; a check names all of them.
    pub snapshots: Vec<SnapshotId>,
}

/// What a check or a verification found.
#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// Everything that is wrong; empty when all is well.
    pub damages: Vec<Damage>,
    /// Damages beyond the first thousand are only counted.
    pub more_damages: u64,
    /// Snapshots that those hurt, or that lead to a pack where some of them are.
    pub more_snapshots: Vec<SnapshotId>,
    /// Snapshots walked.
    pub snapshots: u64,
    /// Packs whose structure was looked at.
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
    pub misdated: Vec<(SnapshotId, Misdated)>,
    /// Packs of backups that never finished; the next backup uses them or `prune` frees them.
    pub unfinished_packs: u64,
}

impl CheckReport {
    /// Nothing wrong was found.
    pub fn is_clean(&self) -> bool {
        self.damages.is_empty() && self.more_damages == 0
    }
}

/// A frame of a pack that was found damaged, for [`Repository::note_lost`](crate::Repository::note_lost).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostFrame {
    pub(crate) home: Home,
    pub(crate) pack: u64,
    pub(crate) slot: u32,
    pub(crate) id: [u8; 16],
}

/// How much of the packs a check decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum ReadData {
    /// None: structure only.
    #[default]
    No,
    /// The packs whose number falls in slice `index` (from 1) of `of`.
    Slice {
        /// From 1 to `of`.
        index: u32,
        /// How many slices.
        of: u32,
    },
    /// All.
    All,
}

/// How `forget` works.
#[derive(Clone, Copy, Debug, Default)]
pub struct ForgetOptions {
    /// Believe the clock also where it stands further ahead of all snapshots than
    /// [`PAUSE_MS`](crate::retention::PAUSE_MS).
    pub accept_clock: bool,
}

/// What `forget` did.
#[derive(Clone, Debug, Default)]
pub struct ForgetSummary {
    /// Snapshots no longer visible.
    pub forgotten: Vec<SnapshotId>,
}

/// How it is found out what only forgotten snapshots of a VM of a fleet referred to. In the layout solo it is
/// always exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum FreeMethod {
    /// By merged summary vectors: reads what differs between neighbours, and leaves a thousandth. Where a
    /// vector is missing, as `Exact`.
    #[default]
    Summary,
    /// By a walk of all snapshots of the VM: reads all recipes, leaves nothing.
    Exact,
    /// As `Exact`, and as if chunks were not a VM's own: the snapshots of all VMs are walked for each. A
    /// comparator.
    MarkSweep,
    /// As `MarkSweep`, but of the other VMs only those with forgotten snapshots are walked, since what was
    /// marked of the rest is as it was. A comparator.
    Grouped,
}

/// How `prune` works.
#[derive(Clone, Debug)]
pub struct PruneOptions {
    /// How dead frames are found, in a fleet.
    pub method: FreeMethod,
    /// Only this VM, in a fleet.
    pub vm: Option<uuid::Uuid>,
    /// Packs are rewritten until at most this share of the stored bytes is unused, in percent; 0 to 100.
    /// Rewriting the rest costs more than it frees.
    pub max_unused_percent: u8,
    /// Find out and report, change nothing.
    pub dry_run: bool,
    /// Memory the mark may hold, in bytes; a repository that needs more is marked in several passes.
    pub memory_bytes: u64,
    /// Snapshots that a dry run counts as forgotten; ignored otherwise.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PruneSummary {
    /// Unfinished backups ended and swept.
    pub swept_sessions: u64,
    /// VMs of a fleet that were left alone because they are being backed up.
    pub busy_vms: u64,
    /// VMs of a fleet that something was freed of by summary vectors, and by a walk.
    pub by_summary: u64,
    /// See `by_summary`.
    pub by_walk: u64,
    /// By summary vectors: references of forgotten snapshots that were asked about. By a walk: frames. Each
    /// is dead or kept.
    pub candidates: u64,
    /// Those of them that no other snapshot has.
    pub candidates_dead: u64,
    /// Those that another one has, or seems to have.
    pub candidates_kept: u64,
    /// Stored bytes of frames that became dead; they count as free from then on.
    pub freed_bytes: u64,
    /// Bytes read from the store, in a fleet.
    pub read_bytes: u64,
    /// Bytes that are dead by estimate and were not found so, of all deletions of these VMs since their last
    /// repair.
    pub leak_estimate_bytes: u64,
    /// Frames that a live snapshot names.
    pub live_frames: u64,
    /// Frames that none names.
    pub dead_frames: u64,
    /// Packs unlinked because all of their frames were dead.
    pub removed_packs: u64,
    /// Packs rewritten because some were.
    pub rewritten_packs: u64,
    /// Stored bytes before.
    pub before_bytes: u64,
    /// Stored bytes after.
    pub after_bytes: u64,
    /// Bytes of packs written to rewrite others.
    pub written_bytes: u64,
    /// Bytes of dead frames in packs that were not rewritten, as far as they can be read.
    pub unused_bytes: u64,
    /// Passes the mark took under its memory bound.
    pub mark_passes: u64,
}

/// Size and shape of a repository.
#[derive(Clone, Debug, Default)]
pub struct RepositoryStats {
    /// VMs with at least one snapshot.
    pub vms: u64,
    /// Published snapshots.
    pub snapshots: u64,
    /// Those of them whose manifest cannot be read.
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
    /// Backups that never finished.
    pub unfinished_sessions: u64,
}

/// A session that was ended because its holder had gone silent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FencedSession {
    /// Whose backup it was.
    pub vm: Vm,
    /// Which.
    pub session: Session,
    /// Who held it.
    pub holder: HolderId,
}

/// Size and shape of one VM of a fleet.
#[derive(Clone, Debug, Default)]
pub struct VmStats {
    /// The VM.
    pub vm: Option<Vm>,
    /// Published snapshots.
    pub snapshots: u64,
    /// Those of them whose manifest cannot be read.
    pub damaged_snapshots: u64,
    /// Forgotten snapshots of which nothing was freed yet.
    pub forgotten: u64,
    /// Sum of the logical sizes of all snapshots that can be read.
    pub logical_bytes: u64,
    /// Bytes of packs of chunks that are the VM's own.
    pub chunk_pack_bytes: u64,
    /// Bytes of packs of recipes.
    pub recipe_pack_bytes: u64,
    /// Bytes of manifests, summary vectors and lists of dead frames.
    pub metadata_bytes: u64,
    /// Number of packs.
    pub packs: u64,
    /// Frames in them that nobody refers to, as far as is known, and their bytes.
    pub dead_frames: u64,
    /// See `dead_frames`.
    pub dead_bytes: u64,
    /// Bytes that nobody refers to and that are not known to be dead, by estimate; `copal repair leak` finds
    /// them.
    pub leak_estimate_bytes: u64,
    /// Backups that have not ended.
    pub unfinished_sessions: u64,
    /// Chunks about which nobody answered when they were stored, and about which no clean-up has asked since.
    pub unresolved_chunks: u64,
    /// Chunks whose own frames the VM gave up for popular ones.
    pub moved_chunks: u64,
}

impl VmStats {
    /// The share of a VM's bytes above which its leak is repaired, in percent: the paper's tau.
    pub const LEAK_SHARE_PERCENT: u8 = 10;

    /// Whether more than a share of the VM's bytes has leaked, by estimate: a walk of its snapshots would
    /// pay.
    pub fn leaks_more_than(&self, share_percent: u8) -> bool {
        let bytes = u128::from(self.chunk_pack_bytes) + u128::from(self.recipe_pack_bytes);
        u128::from(self.leak_estimate_bytes) * 100 > bytes * u128::from(share_percent)
    }
}

/// How a VM of a fleet is cleaned up.
#[derive(Clone, Copy, Debug)]
pub struct CleanUpOptions {
    /// Most memory for what is asked about at once.
    pub memory_bytes: u64,
    /// Others are asked about the frames that the backup of this snapshot stored; `None`: about all that the
    /// VM has for itself.
    pub snapshot: Option<SnapshotId>,
    /// Frames that would be given up are counted, and nothing is changed.
    pub dry_run: bool,
}

impl CleanUpOptions {
    /// All that the VM has for itself is asked about.
    pub fn all(memory_bytes: u64) -> CleanUpOptions {
        CleanUpOptions { memory_bytes, snapshot: None, dry_run: false }
    }
}

/// What a clean-up of one VM of a fleet did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CleanUpSummary {
    /// The VM.
    pub vm: Option<Vm>,
    /// Frames of the VM's own that others were asked about.
    pub asked: u64,
    /// Those of them that were given up for popular ones.
    pub moved: u64,
    /// Chunks that were stored where all find them.
    pub stored_popular: u64,
    /// Bytes of the chunks of `moved`.
    pub moved_bytes: u64,
    /// Stored bytes of frames that became dead; they count as free from then on.
    pub freed_bytes: u64,
    /// Frames about which nobody answered in time, or nothing that holds: the next clean-up asks again.
    pub unanswered: u64,
    /// Frames of chunks that several VMs have, and that may not become popular: as many chunks are as the
    /// fraction allows.
    pub refused: u64,
    /// Bytes of the chunks of `refused`.
    pub refused_bytes: u64,
    /// Bytes read from the store.
    pub read_bytes: u64,
}

/// What became of popular packs that nobody needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnneededPacks {
    /// VMs that are being backed up: as long as they are, nothing is decided.
    pub waiting_for: Vec<Vm>,
    /// Packs of which no snapshot needed a chunk at first.
    pub unneeded_packs: u64,
    /// Those that are condemned still: nobody refers to them anew, and the next run decides.
    pub condemned_packs: u64,
    /// Those that turned out to be needed.
    pub spared_packs: u64,
    /// Those that nobody needs.
    pub gone_packs: u64,
    /// Packs whose files were removed, also those that earlier runs, and writers that died, had left.
    pub removed_packs: u64,
    /// Their bytes.
    pub removed_bytes: u64,
}

/// Packs that were removed because nothing names them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SweptPacks {
    /// How many.
    pub packs: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What a rebuild of the index did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexSummary {
    /// Packs whose footers were read.
    pub packs: u64,
    /// Rows entered.
    pub rows: u64,
    /// Packs whose footer cannot be read; their chunks are unknown until they are healed.
    pub damaged_packs: u64,
}
