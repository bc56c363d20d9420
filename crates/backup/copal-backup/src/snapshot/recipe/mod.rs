//! Recipes: what a disk consists of, as a tree of three levels that snapshots share.
//!
//! Disk root -> pages of 512 segments (1 GiB) -> segment recipes -> chunks. Each is an encrypted frame in a
//! recipe pack of its VM, named by a keyed hash of what it says about the disk. Where things are stored is
//! not part of the name: moving a chunk renames nothing.
//!
//! Format: docs/formats/backup-recipe.md v2
//! Invariants
//! - Equal content gives equal names, so what did not change is shared and compared by name.
//! - A reference's spot is advice: if its pack is gone, the index knows where the frame went.

pub(crate) mod format;

use crate::packs::pack::Spot;
use copal_chunk::ChunkId;

/// Segments of one page.
pub(crate) const PAGE_SEGMENTS: usize = 512;
/// Bytes of disk one page stands for.
pub(crate) const PAGE_BYTES: u64 = PAGE_SEGMENTS as u64 * copal_chunk::SEGMENT_BYTES as u64;

/// Names one recipe, page or root, and says where it was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ref {
    pub(crate) id: ChunkId,
    pub(crate) spot: Spot,
}

/// A run of bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) length: u32,
    /// The chunk it is; `None`: a hole.
    pub(crate) chunk: Option<Ref>,
    /// Nobody answered in time whether the chunk is popular, so it was stored for this VM; a clean-up asks
    /// again.
    pub(crate) is_unresolved: bool,
}

impl Entry {
    /// An entry as it is but for timeouts.
    pub(crate) fn new(length: u32, chunk: Option<Ref>) -> Entry {
        Entry { length, chunk, is_unresolved: false }
    }
}

/// What one segment consists of; the entries touch and cover it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentRecipe {
    pub(crate) entries: Vec<Entry>,
}

/// Up to 512 segments; `None`: all hole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) segments: Vec<Option<Ref>>,
}

/// One disk; `None`: a page that is all hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Root {
    pub(crate) size_bytes: u64,
    pub(crate) pages: Vec<Option<Ref>>,
}

/// Segments of a disk of that size.
pub(crate) fn segments_of(size_bytes: u64) -> u64 {
    size_bytes.div_ceil(copal_chunk::SEGMENT_BYTES as u64)
}

/// Bytes of segment `index` of a disk.
pub(crate) fn segment_length(size_bytes: u64, index: u64) -> usize {
    let start = index * copal_chunk::SEGMENT_BYTES as u64;
    size_bytes.saturating_sub(start).min(copal_chunk::SEGMENT_BYTES as u64) as usize
}
