//! Content of a mount: the repository, the cache and the list of snapshots, supplied by the caller.

use copal_backup::{
    Error, Snapshot,
    serve::{Lender, ServeCache},
};
use std::sync::Arc;

/// Content of a mount.
pub struct MountContent {
    /// Opens the repository for reading.
    pub lender: Arc<dyn Lender>,
    /// The shared cache of the process.
    pub cache: Arc<ServeCache>,
    /// Lists the snapshots.
    pub list: Box<dyn Fn() -> Result<Vec<Snapshot>, Error> + Send + Sync>,
}
