//! Old recipes of segments that are read whole: a thread needs one if the segment has changed.
//!
//! The reader announces the recipes of a page before its segments. The threads are less than a page behind it, so the
//! recipes of two pages are kept ahead. One thread at a time reads a recipe; most segments need none.

use crate::packs::pack_store::PackStore;
use crate::request::error::Result;
use crate::snapshot::recipe::{FrameRef, RecipePage, SegmentRecipe};
use crate::snapshot::tree::TreeReader;
use parking_lot::Mutex;
use uuid::Uuid;

/// Recipes of the base.
pub(super) struct OldRecipes<'a> {
    pages: Mutex<OldPages<'a>>,
}

struct OldPages<'a> {
    /// The readers of the page before the last one, and of the last one.
    trees: [TreeReader<'a>; 2],
    /// References of the last page.
    last: Vec<FrameRef>,
}

impl<'a> OldRecipes<'a> {
    pub(super) fn new(pack_store: &'a PackStore, vm: Uuid) -> Result<OldRecipes<'a>> {
        let trees = [TreeReader::new(pack_store, vm)?, TreeReader::new(pack_store, vm)?];
        Ok(OldRecipes { pages: Mutex::new(OldPages { trees, last: Vec::new() }) })
    }

    /// Announces the recipes of the next page.
    pub(super) fn announce(&self, page: &RecipePage) {
        let mut pages = self.pages.lock();
        pages.trees.rotate_left(1);
        pages.last = page.segments.iter().flatten().copied().collect();
        let OldPages { trees: [_, tree], last } = &mut *pages;
        tree.announce(&*last);
    }

    /// The recipe of a segment of `length` bytes.
    pub(super) fn segment(&self, reference: &FrameRef, length: u64) -> Result<SegmentRecipe> {
        let mut pages = self.pages.lock();
        let is_last = pages.last.contains(reference);
        // Segment 0 of a disk of `length` bytes is `length` bytes long.
        pages.trees[usize::from(is_last)].segment(reference, length, 0)
    }
}
