//! References of a snapshot to frames of its VM: recipes, pages, roots, and the VM's own chunks.

use crate::request::error::Result;
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::manifest::Manifest;
use crate::snapshot::recipe::{FrameRef, PAGE_SEGMENTS};
use crate::snapshot::tree::TreeReader;

/// Visits each reference of a snapshot, as often as it occurs.
/// # Errors
/// `Damaged`: a recipe cannot be read. Errors of the store and of `visit`.
pub(crate) fn for_each(
    parts: &RepositoryParts,
    manifest: &Manifest,
    mut visit: impl FnMut(&FrameRef) -> Result<()>,
) -> Result<()> {
    let mut tree = TreeReader::new(parts.pack_store(), manifest.vm)?;
    for disk in &manifest.disks {
        let size = disk.size_bytes;
        visit(&disk.root)?;
        let root = tree.root(&disk.root, size)?;
        for (index, page) in root.pages.iter().enumerate() {
            let Some(page) = page else { continue };
            visit(page)?;
            let index = index as u64;
            let page = tree.page(Some(page), size, index)?;
            tree.announce(page.segments.iter().flatten());
            for (within, segment) in page.segments.iter().enumerate() {
                let Some(segment) = segment else { continue };
                visit(segment)?;
                let number = index * PAGE_SEGMENTS as u64 + within as u64;
                let recipe = tree.segment(segment, size, number)?;
                let chunks = recipe.entries.iter().filter_map(|entry| entry.chunk.as_ref());
                chunks.filter(|chunk| is_private(chunk)).try_for_each(&mut visit)?;
            }
        }
    }
    Ok(())
}

/// Whether only the VM can refer to the frame.
pub(crate) fn is_private(reference: &FrameRef) -> bool {
    reference.location.home.vm().is_some()
}

/// Number of references that [`for_each`] visits.
/// # Errors
/// As [`for_each`].
pub(crate) fn count(parts: &RepositoryParts, manifest: &Manifest) -> Result<u64> {
    let mut references = 0;
    for_each(parts, manifest, |_| {
        references += 1;
        Ok(())
    })?;
    Ok(references)
}
