//! Sizes and counts of a whole repository.

use crate::index::reindex::{self, PackScope};
use crate::packs::home::PackHome;
use crate::request::RepositoryStats;
use crate::request::error::{Error, Result};
use crate::request::progress::{CancelFlag, Silent};
use crate::sessions::parts::{RepositoryParts, readable};
use crate::snapshot::manifest::ManifestDisk;
use copal_volume::VolumeId;

/// Carries out `Repository::stats`.
pub(crate) fn repository_stats(parts: &RepositoryParts) -> Result<RepositoryStats> {
    let mut stats = RepositoryStats::default();
    let store = &*parts.pack_store().volumes.store;
    let bytes_of = |vid: VolumeId| Ok::<_, Error>(store.volume_stats(vid)?.bytes);
    for vm in parts.directory().all()? {
        let state = parts.vm_state(vm.uuid)?;
        stats.unfinished_sessions += state.open.len() as u64;
        stats.snapshots += state.published.len() as u64;
        stats.vms += u64::from(!state.published.is_empty());
        for published in &state.published {
            match parts.any_manifest(vm.uuid, published) {
                Ok(manifest) => {
                    let logical = manifest.counts.logical_bytes;
                    stats.logical_bytes = stats.logical_bytes.saturating_add(logical);
                    let holes = |disk: &ManifestDisk| disk.size_bytes.saturating_sub(disk.data_bytes);
                    stats.hole_bytes += manifest.disks.iter().map(holes).sum::<u64>();
                }
                Err(error) if error.is_corruption() => stats.damaged_snapshots += 1,
                Err(error) => return Err(error),
            }
        }
        if let Some(vid) = parts.pack_store().volumes.meta(vm.uuid, false)? {
            stats.metadata_bytes += bytes_of(vid)?;
        }
    }
    stats.metadata_bytes += bytes_of(parts.catalog().files().vid())?;
    readable(parts.index_new_packs(&Silent, &CancelFlag::new()))?;
    reindex::for_each_pack(parts.pack_store(), PackScope::All, |pack| {
        stats.packs += 1;
        match pack.home {
            PackHome::Shared | PackHome::Private(_) => {
                stats.chunk_pack_bytes += pack.info.size;
                let entry = parts.pack_store().index.pack(pack.number)?;
                stats.chunks += entry.map_or(0, |entry| u64::from(entry.frames));
            }
            PackHome::Recipes(_) => stats.recipe_pack_bytes += pack.info.size,
        }
        Ok(())
    })?;
    Ok(stats)
}
