//! Sizes and counts of the disks of a snapshot, from their recipe trees.

use crate::request::error::Result;
use crate::request::{DiskListing, SnapshotDisk};
use crate::sessions::parts::RepositoryParts;
use crate::snapshot::manifest::{Manifest, ManifestDisk};
use crate::snapshot::recipe::PAGE_SEGMENTS;
use crate::snapshot::tree::TreeReader;

/// Lists the disks of a snapshot. Reads their recipe trees.
/// # Errors
/// `Damaged`; errors of the store.
pub(crate) fn list_disks(parts: &RepositoryParts, manifest: &Manifest) -> Result<Vec<DiskListing>> {
    manifest.disks.iter().map(|disk| listing(parts, manifest, disk)).collect()
}

fn listing(parts: &RepositoryParts, manifest: &Manifest, disk: &ManifestDisk) -> Result<DiskListing> {
    let mut tree = TreeReader::new(parts.pack_store(), manifest.vm)?;
    let size = disk.size_bytes;
    let (mut data_bytes, mut chunks, mut segments) = (0, 0, 0);
    let root = tree.root(&disk.root, size)?;
    for (index, page) in root.pages.iter().enumerate() {
        let Some(page) = page else { continue };
        let index = index as u64;
        let page = tree.page(Some(page), size, index)?;
        tree.announce(page.segments.iter().flatten());
        for (within, segment) in page.segments.iter().enumerate() {
            let Some(segment) = segment else { continue };
            segments += 1;
            let recipe = tree.segment(segment, size, index * PAGE_SEGMENTS as u64 + within as u64)?;
            for entry in recipe.entries.iter().filter(|entry| entry.chunk.is_some()) {
                data_bytes += u64::from(entry.length);
                chunks += 1;
            }
        }
    }
    Ok(DiskListing { disk: snapshot_disk(disk), data_bytes, hole_bytes: size - data_bytes, chunks, segments })
}

/// Describes a disk by its entry in a manifest.
pub(crate) fn snapshot_disk(disk: &ManifestDisk) -> SnapshotDisk {
    SnapshotDisk {
        name: disk.name.clone(),
        size_bytes: disk.size_bytes,
        serial: disk.serial.clone(),
        mode: disk.mode,
        reason: disk.reason.clone(),
        bitmap: disk.bitmap.as_ref().map(|bitmap| bitmap.name.clone()),
        sentinel: disk.sentinel.clone(),
        identity: disk.identity.clone().unwrap_or_default(),
    }
}
