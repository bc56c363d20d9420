//! Recipes: the content of a disk, as a tree of three levels that snapshots share.
//!
//! Disk root -> pages of 512 segments (1 GiB) -> segment recipes -> chunks. Each node is an encrypted frame
//! in a recipe pack of its VM, named by a keyed hash of its logical content. Locations are not part of the
//! name: moving a chunk renames nothing.
//!
//! Format: docs/formats/backup-recipe.md v2
//! Invariants
//! - Equal content has equal names, so unchanged parts are shared and compared by name.
//! - The location in a reference is a hint: if its pack is missing, the index knows the frame's new location.

pub(crate) mod format;

use crate::packs::pack::FrameLocation;
use copal_chunk::ChunkId;

/// Segments of one page.
pub(crate) const PAGE_SEGMENTS: usize = 512;
/// Bytes of disk in one page.
pub(crate) const PAGE_BYTES: u64 = PAGE_SEGMENTS as u64 * copal_chunk::SEGMENT_BYTES as u64;

/// A reference: id and location of a chunk, recipe, page or root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameRef {
    pub(crate) id: ChunkId,
    pub(crate) location: FrameLocation,
}

impl FrameRef {
    /// Location and short id, by which packs and the index know the frame.
    pub(crate) fn place(&self) -> (FrameLocation, [u8; 16]) {
        (self.location, self.id.short())
    }
}

/// A run of bytes of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecipeEntry {
    pub(crate) length: u32,
    /// The chunk; `None`: a hole.
    pub(crate) chunk: Option<FrameRef>,
    /// No answer came in time, so the chunk was stored for this VM; a clean-up asks again.
    pub(crate) is_unresolved: bool,
}

impl RecipeEntry {
    /// An entry that got its answer, or needed none.
    pub(crate) fn new(length: u32, chunk: Option<FrameRef>) -> RecipeEntry {
        RecipeEntry { length, chunk, is_unresolved: false }
    }
}

/// Content of one segment; the entries are adjacent and cover it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SegmentRecipe {
    pub(crate) entries: Vec<RecipeEntry>,
}

/// Up to 512 segments; `None`: a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecipePage {
    pub(crate) segments: Vec<Option<FrameRef>>,
}

/// One disk; `None`: a page that is a hole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DiskRoot {
    pub(crate) size_bytes: u64,
    pub(crate) pages: Vec<Option<FrameRef>>,
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
