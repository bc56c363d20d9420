//! References of a snapshot that its neighbours do not have in the same place: the candidates for removal.

use crate::request::error::{Error, Result};
use crate::request::progress::CancelFlag;
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::manifest::Manifest;
use crate::snapshot::recipe::{DiskRoot, FrameRef, PAGE_SEGMENTS, RecipePage};
use crate::snapshot::tree::TreeReader;

/// Visits each reference of a snapshot, except in pages and segments that a neighbour shares: those are live,
/// wherever their frames were put. A neighbour that cannot be read leads to more candidates, never to wrong
/// ones.
/// # Errors
/// `Damaged`: the snapshot's own recipes cannot be read. `Cancelled`; errors of the store and of `visit`.
pub(super) fn for_each_candidate(
    parts: &RepositoryParts,
    manifest: &Manifest,
    neighbours: &[Manifest],
    cancel: &CancelFlag,
    mut visit: impl FnMut(&FrameRef) -> Result<()>,
) -> Result<()> {
    let mut tree = TreeReader::new(parts.pack_store(), manifest.vm)?;
    for disk in &manifest.disks {
        let others = neighbours.iter().flat_map(|other| &other.disks);
        let others: Vec<_> = others.filter(|other| other.name == disk.name).collect();
        if others.iter().any(|other| other.root == disk.root) {
            continue;
        }
        let mut roots: Vec<DiskRoot> = Vec::new();
        for other in others {
            roots.extend(tree.root(&other.root, other.size_bytes).ok());
        }
        visit(&disk.root)?;
        let root = tree.root(&disk.root, disk.size_bytes)?;
        for (index, page) in root.pages.iter().enumerate() {
            let Some(reference) = page else { continue };
            if cancel.is_cancelled() {
                return Err(Error::Cancelled { kept_bytes: None });
            }
            let beside = roots.iter().filter_map(|root| Some((root, root.pages.get(index).copied()??)));
            let beside: Vec<(&DiskRoot, FrameRef)> = beside.collect();
            if beside.iter().any(|(_, other)| other == reference) {
                continue;
            }
            visit(reference)?;
            let page = tree.page(Some(reference), disk.size_bytes, index as u64)?;
            let mut pages: Vec<RecipePage> = Vec::new();
            for (root, other) in beside {
                pages.extend(tree.page(Some(&other), root.size_bytes, index as u64).ok());
            }
            let is_shared = |within: usize, segment: &FrameRef| {
                pages.iter().any(|page| page.segments.get(within) == Some(&Some(*segment)))
            };
            let segments = page.segments.iter().enumerate();
            let segments = segments.filter_map(|(within, segment)| Some((within, segment.as_ref()?)));
            let segments: Vec<(usize, &FrameRef)> =
                segments.filter(|(within, segment)| !is_shared(*within, segment)).collect();
            tree.announce(segments.iter().map(|(_, segment)| *segment));
            for (within, reference) in segments {
                visit(reference)?;
                let number = (index * PAGE_SEGMENTS + within) as u64;
                let recipe = tree.segment(reference, disk.size_bytes, number)?;
                let mut chunks = recipe.entries.iter().filter_map(|entry| entry.chunk.as_ref());
                chunks.try_for_each(&mut visit)?;
            }
        }
    }
    Ok(())
}
