//! Random access to disks of snapshots, for exports and mounts, through one cache.
//!
//! Design: docs/design/backup.md#exports-and-mounts
//! Not here: protocols (`copal-export`).

mod cache;
mod disk;
pub(crate) mod pins;
mod streams;

pub use crate::catalog::pins::Shown;
pub use cache::{CACHE_BYTES, ServeCache};
pub use disk::{ServedDisk, ServedRun};
pub use pins::CatalogPin;

use crate::api::repository::Repository;
use crate::request::SnapshotId;
use crate::request::error::Result;
use crate::request::progress::{CancelFlag, Silent};
use crate::snapshot::manifest::ManifestDisk;
use std::sync::Arc;

/// Lends a repository to a reader. A store on one machine can be written only while no other process has it
/// open. So a process that exports for days opens the store only during reads.
pub trait Lender: Send + Sync {
    /// The repository, which stays open until it is dropped. Blocks while it is being opened.
    /// # Errors
    /// Errors of the opening.
    fn lend(&self) -> Result<Arc<Repository>>;
}

/// A repository that stays open.
pub struct AlwaysOpen(pub Arc<Repository>);

impl Lender for AlwaysOpen {
    fn lend(&self) -> Result<Arc<Repository>> {
        Ok(Arc::clone(&self.0))
    }
}

/// Opens the disks of a snapshot for random access. Reads go through `cache`, which belongs to this
/// repository. This does not protect the snapshot from being deleted meanwhile.
/// # Errors
/// `NotFound`; `Damaged`: a manifest or the root of a disk cannot be read. `Busy`; errors of the lender and
/// the store.
pub fn serve(
    lender: &Arc<dyn Lender>,
    cache: &Arc<ServeCache>,
    snapshot: SnapshotId,
) -> Result<Vec<Arc<ServedDisk>>> {
    let repository = &*lender.lend()?;
    let parts = repository.parts();
    let _shared = parts.enter()?;
    let manifest = repository.lookup().find(snapshot)?;
    parts.index_for_reading(manifest.vm, &Silent, &CancelFlag::new())?;
    let open = |disk: &ManifestDisk| {
        let what = format!("disk {} of snapshot {}", disk.name, snapshot.short());
        ServedDisk::open((lender, repository), cache, manifest.vm, what, disk).map(Arc::new)
    };
    manifest.disks.iter().map(open).collect()
}
