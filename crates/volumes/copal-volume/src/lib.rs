//! Volumes of immutable files: ids, names, and the trait every store of volumes implements.
//!
//! A *volume* is a directory of files that are written once and never changed. Copal's backup layer keeps its
//! packs, manifests and catalog in volumes and uses nothing below [`VolumeStore`]. The embedded store
//! (`copal-data`), the cluster client (`copal-client`) and the in-memory twin ([`MemoryStore`]) implement it,
//! and all of them pass the same [`conformance`] suite.
//!
//! The idea is BeanFS's (docs/papers.md).
//!
//! Design: docs/design/volume.md#rules
//!
//! Invariants
//! - A file is named by (volume, name) and identified for ever by its [`FileId`]; neither a volume id nor a
//!   file id is ever used twice.
//! - At most one creator of a name is told that it won. Deletes name a file id, so a late delete cannot hit a
//!   later file of the same name (VOL-4).
//! - Only [`SystemClock`] and [`random_incarnation`], which callers pass in, read a clock or draw random
//!   numbers.
//!
//! [`group`] has the rules by which several members keep the same volumes.
//!
//! Not here: membership of groups (`copal-master`), rows on disk (`copal-data`).

mod clock;
pub mod conformance;
mod error;
pub mod group;
mod ids;
mod limits;
mod memory;
mod names;
mod store;
mod token_bucket;

pub use clock::{Clock, ManualClock, ReferenceClock, SystemClock};
pub use error::{RefusalCause, VolumeError};
pub use ids::{FileId, FileIds, LAST_CLOCK_MS, LAST_ID_MS, MAX_MS, OpId, VolumeId, random_incarnation};
pub use limits::{
    MAX_BATCH_BYTES, MAX_FILE_BYTES, MAX_FILE_NAME_BYTES, MAX_METADATA_BYTES, MAX_VOLUME_DEPTH,
    MAX_VOLUME_NAME_BYTES, check_metadata,
};
pub use memory::MemoryStore;
pub use names::{UNKNOWN_FILE_NAME, check_file_name, check_volume_name, split_parent, split_path};
pub use store::{
    Consistency, FileInfo, FilePage, FileTailSink, FileWriter, PutOptions, RangeSink, ReadOptions,
    RemoveMode, SettleChoice, SettleOutcome, StoreLimits, VolumeOptions, VolumeStats, VolumeStore,
};
pub use token_bucket::TokenBucket;
