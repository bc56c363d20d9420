//! Volumes in an object store of other people: S3 and its relatives, Azure, Google, and HDFS with the feature `hdfs`.
//!
//! [`RemoteStore`] keeps the promises of [`VolumeStore`](copal_volume::VolumeStore) by an exclusive create, a list
//! that is current, and a delete: nothing else is asked of the object store. Any number of hosts use one prefix of a
//! bucket at once, without a lock.
//!
//! Design: docs/design/volume.md#remote
//!
//! Invariants
//! - An answer that did not come is no answer: a create is sent again with the same body and another file id, and
//!   its outcome is read from the object (VOL-2).
//! - No decision depends on a clock.
//! - Every byte is verified by a checksum of ours before it is returned (VOL-6).
//! - No secret and no header of an answer reaches an error or a log.
//!
//! Not here: the layout of a repository (`copal-backup`), which names come back.

mod client;
mod error;
mod format;
#[cfg(any(test, feature = "fuzz"))]
#[doc(hidden)]
pub mod fuzz;
mod keys;
mod probe;
mod retry;
mod service;
mod store;
mod url;

pub use error::{RemoteError, RemoteFailure};
pub use probe::{ProbeOutcome, ProbeReport};
pub use store::{ObjectCache, RemoteOptions, RemoteStore};
pub use url::{CloudKind, RemoteUrl, is_remote};
