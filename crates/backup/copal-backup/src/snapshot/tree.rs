//! Reads the recipe tree of one VM and compares every node with its name.

use crate::keys::RecipeKey;
use crate::packs::frame_reader::FrameReader;
use crate::packs::pack::FrameLocation;
use crate::packs::pack_store::PackStore;
use crate::request::error::{Error, Result};
use crate::snapshot::recipe::format::{PAGE_LEVEL, ROOT_LEVEL, SEGMENT_LEVEL};
use crate::snapshot::recipe::{
    DiskRoot, FrameRef, PAGE_SEGMENTS, RecipePage, SegmentRecipe, segment_length, segments_of,
};
use uuid::Uuid;

/// Reads roots, pages and recipes of one VM. One per thread.
pub(crate) struct TreeReader<'a> {
    pack_store: &'a PackStore,
    frames: FrameReader<'a>,
    vm: Uuid,
    key: RecipeKey,
    place: Option<FrameLocation>,
    /// Announced nodes that were not read ahead yet.
    announced: Vec<FrameRef>,
}

impl<'a> TreeReader<'a> {
    pub(crate) fn new(pack_store: &'a PackStore, vm: Uuid) -> Result<TreeReader<'a>> {
        Ok(TreeReader {
            pack_store,
            frames: FrameReader::new(pack_store)?,
            vm,
            key: pack_store.keys.recipe_key(vm),
            place: None,
            announced: Vec::new(),
        })
    }

    /// Location of the frame that was read last.
    pub(crate) fn place(&self) -> Option<FrameLocation> {
        self.place
    }

    /// Announces the nodes that are read next, in this order, in place of earlier announcements. They are read
    /// together, as many at a time as there is memory for. Some of them may be left out.
    pub(crate) fn announce<'r>(&mut self, references: impl IntoIterator<Item = &'r FrameRef>) {
        self.announced.clear();
        self.announced.extend(references);
    }

    /// The root of a disk of `size_bytes`.
    pub(crate) fn root(&mut self, reference: &FrameRef, size_bytes: u64) -> Result<DiskRoot> {
        let vm = self.vm;
        let decode = |bytes: &[u8]| DiskRoot::decode(bytes, vm);
        let root = self.node(reference, ROOT_LEVEL, decode, DiskRoot::logical)?;
        if root.size_bytes != size_bytes {
            return Err(damaged(reference, "it is the root of a disk of another size"));
        }
        Ok(root)
    }

    /// Page `index` of a disk of `size_bytes`; a page that is a hole has no reference.
    pub(crate) fn page(
        &mut self,
        reference: Option<&FrameRef>,
        size_bytes: u64,
        index: u64,
    ) -> Result<RecipePage> {
        let count = page_segments(size_bytes, index);
        match reference {
            None => Ok(RecipePage { segments: vec![None; count] }),
            Some(reference) => {
                let vm = self.vm;
                let decode = |bytes: &[u8]| RecipePage::decode(bytes, count, vm);
                self.node(reference, PAGE_LEVEL, decode, RecipePage::logical)
            }
        }
    }

    /// The recipe of segment `index` of a disk of `size_bytes`.
    pub(crate) fn segment(
        &mut self,
        reference: &FrameRef,
        size_bytes: u64,
        index: u64,
    ) -> Result<SegmentRecipe> {
        let length = segment_length(size_bytes, index);
        let vm = self.vm;
        let decode = |bytes: &[u8]| SegmentRecipe::decode(bytes, length, vm);
        self.node(reference, SEGMENT_LEVEL, decode, SegmentRecipe::logical)
    }

    fn node<T>(
        &mut self,
        reference: &FrameRef,
        level: u8,
        decode: impl Fn(&[u8]) -> std::result::Result<T, String>,
        logical: impl Fn(&T) -> Vec<u8>,
    ) -> Result<T> {
        if !self.frames.has(self.frames.place_of(reference.location))
            && let Some(at) = self.announced.iter().position(|announced| announced == reference)
        {
            let next = self.announced[at..].iter().map(FrameRef::place);
            let count = self.frames.read_ahead(next)?;
            self.announced.drain(..at + count);
        }
        let found = FrameRef { location: self.frames.place_of(reference.location), ..*reference };
        let (frames, key) = (&mut self.frames, &self.key);
        let (node, place) = self.pack_store.first_good(&found, |located| {
            let node = decode(frames.raw(located)?).map_err(|detail| damaged(reference, detail))?;
            if key.id(level, &logical(&node)) != reference.id {
                return Err(damaged(reference, "its content does not match its name"));
            }
            Ok((node, located.location))
        })?;
        self.place = Some(place);
        Ok(node)
    }
}

/// Segments of page `index` of a disk.
pub(crate) fn page_segments(size_bytes: u64, index: u64) -> usize {
    let first = index * PAGE_SEGMENTS as u64;
    segments_of(size_bytes).saturating_sub(first).min(PAGE_SEGMENTS as u64) as usize
}

fn damaged(reference: &FrameRef, detail: impl Into<String>) -> Error {
    Error::Damaged {
        what: format!("recipe {:?} in pack {}", reference.id, reference.location.pack),
        detail: detail.into(),
    }
}
