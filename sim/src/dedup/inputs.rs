//! Inputs of the simulator: figures that the paper prints or implies; none was fitted to a result.
//!
//! Paper: low-profile-dedup §3, §5. Design: docs/design/backup.md#the-simulator has the arithmetic of each
//! figure.

/// Decimal, as in the paper.
pub(super) const MB: f64 = 1e6;
pub(super) const GB: f64 = 1e9;

/// Mean size of a VM: 22,000 GB of dirty segments are 24.14 % of 2,500 of them.
pub(super) const VM_BYTES: f64 = 36.5 * GB;
/// Share of a VM's segments that are dirty after a day.
pub(super) const DIRTY_SHARE: f64 = 0.2414;
/// Size of a segment; a dirty one is read and sent as a unit.
pub(super) const SEGMENT_BYTES: f64 = (2 << 20) as f64;

/// Speed of a host's disk.
pub(super) const DISK_BYTES_PER_S: f64 = 60.0 * MB;
/// Speed at which one host writes to the back end, or reads alone.
pub(super) const BACK_END_BYTES_PER_S: f64 = 50.0 * MB;
/// Default upload speed of a host of Copal's scheme.
pub(super) const UPLOAD_BYTES_PER_S: f64 = 40.0 * MB;
/// Round trip between two hosts.
pub(super) const ROUND_TRIP_S: f64 = 0.001;

/// Speed of each host's reads when `hosts` read at once.
pub(super) fn back_end_read_bytes_per_s(hosts: usize) -> f64 {
    const MEASURED: [(f64, f64); 3] = [(1.0, 50.0), (50.0, 30.0), (100.0, 25.0)];
    let hosts = (hosts as f64).max(1.0);
    let seconds_per_mb = |at: usize| 1.0 / MEASURED[at].1;
    // Linear interpolation of the time per byte, extended beyond the last point.
    let from = if hosts <= MEASURED[1].0 { 0 } else { 1 };
    let (first, last) = (MEASURED[from].0, MEASURED[from + 1].0);
    let slope = (seconds_per_mb(from + 1) - seconds_per_mb(from)) / (last - first);
    MB / (seconds_per_mb(from) + slope * (hosts - first))
}

/// Figures of the paper's own scheme.
pub(super) mod paper {
    /// Mean length of a chunk.
    pub(in crate::dedup) const CHUNK_BYTES: f64 = 4096.0;
    /// A row of an index, or of the table of chunks that wait for an answer.
    pub(in crate::dedup) const ROW_BYTES: f64 = 20.0;
    /// Request and answer for one chunk.
    pub(in crate::dedup) const MESSAGE_BYTES: f64 = 123.0;
    /// Rows of the index for each chunk of a day: versions kept times the share of unique ones.
    pub(in crate::dedup) const INDEX_ROWS_PER_CHUNK: f64 = 2.93;
    /// Snapshots kept of a VM.
    pub(in crate::dedup) const SNAPSHOTS: usize = 10;
    /// Share of a snapshot's chunks that are new to the VM.
    pub(in crate::dedup) const NEW_SHARE: f64 = 0.025;
    /// Chunks of a VM that no other VM has.
    pub(in crate::dedup) const PRIVATE_REFERENCES: f64 = 1.25e6;
    /// A reference in a recipe: 73.8 GB per host, 82 % of an hour at 25 MB/s, are ten recipes of 25 VMs.
    pub(in crate::dedup) const RECIPE_ENTRY_BYTES: f64 = 33.0;
    /// A row of the marking table.
    pub(in crate::dedup) const MARK_ROW_BYTES: f64 = 40.0;
    /// A private reference as read for a deletion.
    pub(in crate::dedup) const REFERENCE_BYTES: f64 = 28.0;
    /// Bits of a summary vector for each reference: one false positive in a hundred.
    pub(in crate::dedup) const VECTOR_BITS: f64 = 9.6;
    /// Share of the reads that grouped mark-and-sweep still does.
    pub(in crate::dedup) const GROUPED_SHARE: f64 = 0.517;
}

/// Shares of kinds among the chunks of a day.
pub(super) mod chunks {
    /// Share of the chunks in dirty segments that other VMs have too: full deduplication leaves 4,490 of
    /// 22,000 GB, since 4,840 are 98 % of it.
    pub(in crate::dedup) const SHARED: f64 = 0.7959;
    /// Distinct chunks among those, for each chunk of a day.
    pub(in crate::dedup) const POOL: f64 = 0.02;
    /// The chunk of rank r has popularity (r + this share of the pool)^-2: flat at its head, since no VM
    /// counts twice. The top 4 % of all ids then cover 98 % of the shared chunks.
    pub(in crate::dedup) const HEAD: f64 = 0.0168;
    /// Greatest share of popular ids.
    pub(in crate::dedup) const POPULAR: f64 = 0.04;
}

/// Figures of Copal beside the paper's.
pub(super) mod copal {
    pub(in crate::dedup) const CHUNK_BYTES: f64 = copal_agent::rounds::CHUNK_BYTES as f64;
    /// Short id and answer.
    pub(in crate::dedup) const MESSAGE_BYTES: f64 = 16.0 + 4.0;
    /// Overhead of a batch in both directions: frames and fields.
    pub(in crate::dedup) const BATCH_BYTES: f64 = 154.0;
    /// Bytes of a chunk's record in the spool between the passes; written and read.
    pub(in crate::dedup) const SPOOL_BYTES: f64 = 36.0;
    /// Bytes read for each needed byte in the second pass: its own limit.
    pub(in crate::dedup) const OVER_READ: f64 = 1.2;
    /// A row of a run.
    pub(in crate::dedup) const ROW_BYTES: f64 = 20.0;
    /// An id in a detector's spool.
    pub(in crate::dedup) const SPOOLED_ID_BYTES: f64 = 16.0;
    /// Time from the end of a host's patience until it gives up.
    pub(in crate::dedup) const TIMEOUT_S: f64 = 30.0;
    /// Interval of requests for carried ids.
    pub(in crate::dedup) const ASK_AGAIN_S: f64 = 0.3;
    /// Interval at which a checker looks for new packs.
    pub(in crate::dedup) const CHECKER_LOOK_S: f64 = 0.5;
    /// An entry of a segment recipe: id, length and location, in columns of runs.
    pub(in crate::dedup) const RECIPE_ENTRY_BYTES: f64 = 34.0;
    /// Pages and roots of a deleted snapshot.
    pub(in crate::dedup) const PAGES_BYTES: f64 = 2e6;
    /// A row of a pack's footer.
    pub(in crate::dedup) const FOOTER_ROW_BYTES: f64 = 40.0;
}
