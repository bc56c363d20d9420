//! Types of the interface: ids, kinds, options, reports.
//!
//! Not here: transactions (`operations`), their execution (`store`), their disk format (`format`).

pub(crate) mod error;

use copal_device::probe::DeviceProfile;

/// Id of an object, chosen by the caller. Upper layers keep their root in object 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);

/// Position in the store's one commit order. The first transaction has 1; 0 is before all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// Number of a frame in its stream, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FramePos(pub u64);

/// Kind of an object; it determines the allowed operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// Written, appended, truncated, punched.
    Plain,
    /// Immutable.
    Sealed,
    /// Framed and append-only; see `append_frame`.
    Stream,
}

/// Expected lifetime of the bytes. Objects of one lifetime are placed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectLifetime {
    /// Seconds to minutes: logs, young tables.
    Short,
    /// In between, or unknown.
    Medium,
    /// Permanent.
    Long,
}

/// Verifier of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadCheck {
    /// The store: one CRC32C per page, verified on each read. Reads are rounded to pages.
    Pages,
    /// The caller: its blocks carry sums. The store sums each 64 KiB for recovery and scrub only.
    Caller,
}

/// Event at which a commit is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// Its position is fixed; the store owns the bytes.
    Ordered,
    /// It and all earlier commits have completed on the device: it survives a kill.
    Written,
    /// It and all earlier commits survive power loss.
    Durable,
}

/// Options of a new object.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Plain or stream; sealed objects are made with `writer`.
    pub kind: ObjectKind,
    /// Placement hint.
    pub lifetime: ObjectLifetime,
    /// Placement hint: final size, 0 when unknown.
    pub expected_bytes: u64,
    /// Verifier of reads.
    pub check: ReadCheck,
    /// Free text for tools; not interpreted.
    pub label: [u8; 16],
}

impl Default for CreateOptions {
    fn default() -> CreateOptions {
        CreateOptions {
            kind: ObjectKind::Plain,
            lifetime: ObjectLifetime::Medium,
            expected_bytes: 0,
            check: ReadCheck::Pages,
            label: [0; 16],
        }
    }
}

/// Backend of a store: the rules for places of data and records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum BackendKind {
    /// Free pages of a device or file, for SSDs.
    #[default]
    Cow,
    /// Segments of a device or file, for disks that seek.
    Log,
    /// Files of a directory.
    Hostfs,
}

impl BackendKind {
    /// Its name in commands and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BackendKind::Cow => "cow",
            BackendKind::Log => "log",
            BackendKind::Hostfs => "hostfs",
        }
    }
}

/// Layout options of a new store.
#[derive(Clone, Debug, Default)]
pub struct MkfsOptions {
    /// `Cow` or `Log` on a device; a store of files has one backend only. Default `Cow`.
    pub backend: BackendKind,
    /// Size of a segment of the `log` backend: a power of two from 64 KiB to 1 GiB. A frame is at most as long as a
    /// segment. Default: a 64th of the store, between 1 MiB and the profile's size of a segment, or 32 MiB.
    pub segment_bytes: Option<u32>,
    /// Unit of allocation: 4096, 8192 or 16384. Default 4096.
    pub page_bytes: Option<u32>,
    /// Size of the journal. Default clamp(size/32, 8 MiB, 256 MiB). The `log` backend has none.
    pub journal_bytes: Option<u64>,
    /// Figures of the device: the store keeps them, and takes sizes of pages and segments from them that are not
    /// given here.
    pub profile: Option<DeviceProfile>,
}

/// Whether free space is discarded while the store is open, so that flash and thin devices can use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum DiscardMode {
    /// On block devices that take discards and do not turn.
    Auto,
    /// On every block device that takes discards.
    On,
    /// Never. While a chunk is discarded, new data goes elsewhere, so it lies less together.
    #[default]
    Off,
}

/// Discards of free space since a store was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreDiscards {
    /// Free space is discarded.
    pub is_on: bool,
    /// Discards that the device refused. The first one was the last discard.
    pub failed: u64,
}

/// Options for opening a store.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Nothing is written, not even the mount record.
    pub read_only: bool,
    /// Largest size of the store. Default: as far as the device can grow.
    pub max_size_bytes: Option<u64>,
    /// Open although acknowledged commits are damaged, and drop them.
    pub accept_tail_loss: bool,
    /// Open everything that can be understood, to save readable data. This includes an older state than the
    /// last, a truncated store, and one whose pages have two owners. Only with `read_only`; lost data shows
    /// when it is read.
    pub salvage: bool,
    /// Largest distance in bytes at which two reads become one. Default: by kind of device, see
    /// [`Store::gap_bytes`](crate::Store::gap_bytes).
    pub gap_bytes: Option<u64>,
    /// Whether small commits have their data in their record, and write it to its place later (`cow` only): up to 64 KiB
    /// if no other commit waits, up to 16 KiB otherwise.
    /// Such a commit takes one write instead of two, and its data is written twice. Default: on disks that turn, and on
    /// those whose probe chose a log.
    pub inline_data: Option<bool>,
    /// Discards of free space. A store in a file or directory has none: [`Store::shrink`](crate::Store::shrink)
    /// gives the space of a file back.
    pub discard: DiscardMode,
}

/// Result of recovery.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Records after the checkpoint that count.
    pub records_replayed: u64,
    /// Reason why the last records were dropped; they were never acknowledged as durable.
    pub tail_dropped: Option<String>,
    /// Reason why the last records were dropped although they were, or may have been, acknowledged as
    /// durable. Only with `accept_tail_loss` or `salvage`.
    pub tail_lost: Option<String>,
    /// The state that was opened instead of the newest. Only with `salvage`.
    pub older_state: Option<OlderState>,
    /// Superblock copies that were damaged or old (rewritten unless the store is read-only).
    pub superblock_copies_repaired: u32,
    /// Checkpoint pages with one damaged copy of two (rewritten unless the store is read-only).
    pub checkpoint_pages_repaired: u32,
    /// Bytes missing at the end of the device, where the store held nothing. The length is restored unless
    /// the store is read-only.
    pub cut_bytes: u64,
    /// Streams with damaged acknowledged frames: `frames` ends with `Corrupt` there.
    pub damaged_streams: Vec<ObjectId>,
}

/// A state that is older than the newest, whose tables cannot be read. Later commits may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OlderState {
    /// Generation of the superblock that names it.
    pub generation: u64,
    /// The newest generation that was found.
    pub newest: u64,
    /// Number of missing commits, as far as the newest superblock tells. Commits after its tables are missing
    /// in addition.
    pub missing_commits: u64,
}

/// Use of a store's bytes. The parts add up to `size_bytes`.
#[derive(Clone, Copy, Debug, Default)]
pub struct StoreSpace {
    /// Size of the store.
    pub size_bytes: u64,
    /// Reachable from an object or stream, superblocks, journal and checkpoint.
    pub live_bytes: u64,
    /// Written, not yet published.
    pub staged_bytes: u64,
    /// Freed, not yet reusable.
    pub quarantine_bytes: u64,
    /// Kept by `reserve` and by the store itself.
    pub reserved_bytes: u64,
    /// Available without growing.
    pub free_bytes: u64,
    /// Returned to the file system by `shrink`; usable again as long as the file system has space.
    pub hollow_bytes: u64,
}

/// Segments of a store with the `log` backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSegments {
    /// Size of one.
    pub segment_bytes: u64,
    /// Segments that can be used.
    pub usable: u64,
    /// Without owned bytes, and of no head.
    pub free: u64,
    /// With owned bytes, and of no head.
    pub closed: u64,
    /// Of the head for records and small data, with those that recovery reads.
    pub commit_head: u64,
    /// Of the head for long data.
    pub data_head: u64,
    /// Of the heads for checkpoints and their second copies.
    pub checkpoint_heads: u64,
    /// Of the head to which the cleaner moves pages.
    pub survivor_head: u64,
}

/// Space that writes can still use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritableSpace {
    /// Available bytes, including growth up to the largest size if the opening gave one.
    pub bytes: u64,
    /// That largest size. The present size if the opening gave none, or if the host refused the last growth.
    pub of_bytes: u64,
    /// The store may grow beyond that, if its host has space.
    pub is_open_ended: bool,
}

/// Metadata of an object, without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectStat {
    /// Its id.
    pub id: ObjectId,
    /// Kind given at creation; `Sealed` for published objects.
    pub kind: ObjectKind,
    /// Immutable.
    pub sealed: bool,
    /// Length in bytes; for a stream the number of the next frame.
    pub len: u64,
    /// Pages it occupies, in bytes (shared ones counted in full).
    pub allocated_bytes: u64,
    /// As given at creation.
    pub label: [u8; 16],
}
