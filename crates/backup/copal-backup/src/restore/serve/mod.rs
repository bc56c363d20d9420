//! Serving: disks of snapshots that others read at any place, for as long as they like, through one cache.
//!
//! Design: docs/design/backup.md#exports-and-mounts
//! Not here: how they are reached (`copal-doors`).

mod cache;
mod disk;
mod pins;
mod streams;

pub use crate::catalog::pins::Shown;
pub use cache::{CACHE_BYTES, ServeCache};
pub use disk::{ServedDisk, ServedRun};
pub use pins::CatalogPin;

use crate::api::repository::Repository;
use crate::request::SnapshotId;
use crate::request::error::{Error, Result};
use crate::snapshot::manifest::ManifestDisk;
use std::sync::Arc;

/// Gives a repository to whoever is about to read of it. A store of one machine lets others write only while
/// nobody has it open, so whoever serves for days opens it for as long as it is read from.
pub trait Lender: Send + Sync {
    /// The repository, which stays open until it is dropped. Blocks for as long as opening takes.
    /// # Errors
    /// Those of opening it.
    fn lend(&self) -> Result<Arc<Repository>>;
}

/// One that stays open.
pub struct AlwaysOpen(pub Arc<Repository>);

impl Lender for AlwaysOpen {
    fn lend(&self) -> Result<Arc<Repository>> {
        Ok(Arc::clone(&self.0))
    }
}

/// The disks of a snapshot, to be read at any place until they are dropped. What they read goes through
/// `cache`, which is of this repository. Nothing here keeps the snapshot from being deleted meanwhile.
/// # Errors
/// `NotFound`, `Damaged`: manifest or root of a disk cannot be read. `Busy`; those of the lender and the
/// store.
pub fn serve(
    lender: &Arc<dyn Lender>,
    cache: &Arc<ServeCache>,
    snapshot: SnapshotId,
) -> Result<Vec<Arc<ServedDisk>>> {
    let repository = &*lender.lend()?;
    let parts = &repository.parts;
    let _shared = parts.enter()?;
    let manifest = repository.find(snapshot)?;
    parts.index_for_reading(manifest.vm)?;
    let open = |disk: &ManifestDisk| {
        let what = format!("disk {} of snapshot {}", disk.name, snapshot.short());
        ServedDisk::open((lender, repository), cache, manifest.vm, what, disk).map(Arc::new)
    };
    manifest.disks.iter().map(open).collect()
}

impl Repository {
    /// Whether a snapshot is still there, by the logs as they are now.
    /// # Errors
    /// `Damaged` (the catalog is); those of the store.
    pub fn is_published(&self, snapshot: SnapshotId) -> Result<bool> {
        match self.find(snapshot) {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            // Whatever is wrong with its manifest, it is named.
            Err(error) if error.is_corruption() => Ok(true),
            Err(error) => Err(error),
        }
    }
}
