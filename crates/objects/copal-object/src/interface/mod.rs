//! Words of the interface: ids, kinds, options, reports.
//!
//! Not here: transactions (`operations`), what they do (`store`), what they look like on disk (`format`).

pub(crate) mod error;

/// Name of an object, chosen by the caller. Object 1 is where an upper layer keeps its root.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u64);

/// Position in the store's one commit order. The first transaction has 1; 0 is before all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// Number of a frame in its stream, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FramePos(pub u64);

/// What may be done with an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// Written, appended, truncated, punched.
    Plain,
    /// Immutable.
    Sealed,
    /// Framed and append-only; see `append_frame`.
    Stream,
}

/// How long the bytes are expected to live; objects that die together are placed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectLifetime {
    /// Seconds to minutes: logs, young tables.
    Short,
    /// In between, or unknown.
    Medium,
    /// For good.
    Long,
}

/// Who verifies a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadCheck {
    /// The store: one CRC32C per page, verified on each read. Reads are rounded to pages.
    Pages,
    /// The caller: its blocks carry sums. The store sums each 64 KiB for recovery and scrub only.
    Caller,
}

/// When a commit answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// Its place in the order is fixed; the store owns the bytes.
    Ordered,
    /// It and all earlier commits have completed on the device: survives a kill.
    Written,
    /// It and all earlier commits survive power loss.
    Durable,
}

/// What a new object is.
#[derive(Clone, Debug)]
pub struct CreateOptions {
    /// Plain or stream; `writer` makes sealed objects.
    pub kind: ObjectKind,
    /// Placement hint.
    pub lifetime: ObjectLifetime,
    /// Placement hint: final size, 0 when unknown.
    pub expected_bytes: u64,
    /// Who verifies reads.
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

/// How to lay out a new store.
#[derive(Clone, Debug, Default)]
pub struct MkfsOptions {
    /// Unit of allocation: 4096, 8192 or 16384. Default 4096.
    pub page_bytes: Option<u32>,
    /// Size of the journal. Default clamp(size/32, 8 MiB, 256 MiB).
    pub journal_bytes: Option<u64>,
}

/// How to open a store.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Nothing is written, not even the mount record.
    pub read_only: bool,
    /// The store does not grow beyond this. Default: as far as the device can.
    pub max_size_bytes: Option<u64>,
    /// Open although acknowledged commits are damaged, and drop them.
    pub accept_tail_loss: bool,
    /// Open whatever can be understood, to save what is readable: also an older state than the last, a store
    /// that was cut off in its middle, and one whose pages have two owners. Only with `read_only`; what is
    /// lost shows when it is read.
    pub salvage: bool,
}

/// What recovery found.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Records after the checkpoint that count.
    pub records_replayed: u64,
    /// Why the last records were dropped: they were never acknowledged as durable.
    pub tail_dropped: Option<String>,
    /// Why the last records were dropped although they may have been acknowledged as durable, or were. Only
    /// with `accept_tail_loss` or `salvage`.
    pub tail_lost: Option<String>,
    /// The state that was opened instead of the newest. Only with `salvage`.
    pub older_state: Option<OlderState>,
    /// Superblock copies that were damaged or old (rewritten unless the store is read-only).
    pub superblock_copies_repaired: u32,
    /// Pages of the checkpoint of which one of two copies was damaged (written anew unless the store is
    /// read-only).
    pub checkpoint_pages_repaired: u32,
    /// Bytes that were cut off the end of the store, where nothing lay. It has its length again unless it is
    /// read-only.
    pub cut_bytes: u64,
    /// Streams whose acknowledged frames are damaged: `frames` ends with `Corrupt` there.
    pub damaged_streams: Vec<ObjectId>,
}

/// A state older than the newest, whose tables cannot be read; what was committed since may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OlderState {
    /// Generation of the superblock that names it.
    pub generation: u64,
    /// The newest generation that was found.
    pub newest: u64,
    /// Commits of the newest state that are missing, as far as its superblock tells: those behind its tables
    /// come on top.
    pub missing_commits: u64,
}

/// Where the bytes of a store are. The parts add up to `size_bytes`.
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
    /// To be had without growing.
    pub free_bytes: u64,
    /// Given back to the file system by `shrink`, and to be had again as long as that has room.
    pub hollow_bytes: u64,
}

/// What writes may still take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WritableSpace {
    /// Bytes to be had, by growing to the largest size that the opening allowed as well, if there is one.
    pub bytes: u64,
    /// That largest size, or the present one where there is none, or where the host has refused the last
    /// growth.
    pub of_bytes: u64,
    /// The store may grow beyond that, as far as its host has space.
    pub is_open_ended: bool,
}

/// What is known of an object without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectStat {
    /// Its name.
    pub id: ObjectId,
    /// What it was created as; `Sealed` for published objects.
    pub kind: ObjectKind,
    /// Immutable.
    pub sealed: bool,
    /// Length in bytes; for a stream the number of the next frame.
    pub len: u64,
    /// Pages it occupies, in bytes (shared ones counted in full).
    pub allocated_bytes: u64,
    /// As given when it was created.
    pub label: [u8; 16],
}
