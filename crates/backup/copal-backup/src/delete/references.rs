//! What a snapshot refers to of its VM: recipes, pages, roots, and chunks of the VM's own.

use crate::request::error::Result;
use crate::sessions::parts::Parts;
use crate::snapshot::manifest::Manifest;
use crate::snapshot::recipe::{PAGE_SEGMENTS, Ref};
use crate::snapshot::tree::TreeReader;

/// Hands over each reference of a snapshot, as often as it occurs.
/// # Errors
/// `Damaged`: a recipe cannot be read. Those of the store and of `visit`.
pub(crate) fn for_each(
    parts: &Parts,
    manifest: &Manifest,
    mut visit: impl FnMut(&Ref) -> Result<()>,
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

/// Whether nobody but the VM refers to it.
pub(crate) fn is_private(reference: &Ref) -> bool {
    reference.spot.home.vm().is_some()
}

/// How many references [`for_each`] hands over.
/// # Errors
/// As [`for_each`].
pub(crate) fn count(parts: &Parts, manifest: &Manifest) -> Result<u64> {
    let mut references = 0;
    for_each(parts, manifest, |_| {
        references += 1;
        Ok(())
    })?;
    Ok(references)
}
