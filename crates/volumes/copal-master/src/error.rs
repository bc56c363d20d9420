//! Errors of the master's calls.

use crate::tables::meta_store::MetaError;
use copal_volume::VolumeError;

/// A refused or failed call of the master.
#[derive(Debug, thiserror::Error)]
pub enum MasterError {
    /// A rule of volumes refuses the request.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The database failed.
    #[error(transparent)]
    Meta(#[from] MetaError),
    /// The tables are a restored copy, or older than versions that data servers have seen. No master leads
    /// with them.
    #[error(
        "the tables of the cluster are not the newest: {0}. Put back newer ones; or, if these are the newest that exist, \
         start the master with --after-restore while all data servers run: it continues above all lost versions"
    )]
    StaleTables(String),
    /// The caller lacks the right, or the state of the cluster forbids the request.
    #[error("denied: {0}")]
    Denied(String),
}

/// Result of the master's calls.
pub type MasterResult<T> = Result<T, MasterError>;
