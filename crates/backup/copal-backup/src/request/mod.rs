//! Requests and results of a repository: plain values without behaviour.
//!
//! Sizes are bytes, times are milliseconds since 1970 as stamped by the store. Summaries serialize to the
//! JSON that `copal --json` prints; the command adds its name and its own measurements.

mod backup;
mod check;
mod consolidate;
mod copied;
pub mod error;
mod identity;
mod init;
pub(crate) mod json;
pub(crate) mod open_session;
pub mod peers;
pub mod progress;
mod prune;
mod restore;
pub(crate) mod scheme;
mod snapshot;
mod vm;
pub(crate) mod words;

pub use backup::{BackupCounts, BackupRequest, BackupSummary, DiskMode, DiskSource, DiskSummary};
pub use check::{CheckReport, Damage, IndexSummary, LostFrame, ReadData};
pub use consolidate::{CleanUpOptions, CleanUpSummary, UnneededPacks};
pub use copied::{CopiedSnapshot, CopyOrigin};
pub(crate) use identity::MIN_DIGITS;
pub use identity::{SnapshotId, Vm};
pub use init::{InitOptions, Layout, RepositoryInfo, RepositoryStats, Unlock};
pub use prune::{
    FencedSession, ForgetOptions, ForgetSummary, FreeMethod, PruneOptions, PruneSummary, SweptPacks,
};
pub use restore::{RestoreRequest, RestoreSummary};
pub use snapshot::{DiskListing, Listing, Snapshot, SnapshotDisk};
pub use vm::VmStats;
