//! What a mount shows, and how it gets there: handed in by whoever mounts.

use copal_backup::{
    Error, Snapshot,
    serve::{Lender, ServeCache},
};
use std::sync::Arc;

/// What a mount shows, and how it gets there.
pub struct Shown {
    /// Opens the repository for reading.
    pub lender: Arc<dyn Lender>,
    /// The cache of this process.
    pub cache: Arc<ServeCache>,
    /// Lists the snapshots.
    pub list: Box<dyn Fn() -> Result<Vec<Snapshot>, Error> + Send + Sync>,
}
