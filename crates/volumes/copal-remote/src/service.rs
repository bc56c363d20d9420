//! The requests that a store of volumes needs from an object store.
//!
//! `client` implements it, `client::hdfs` for HDFS; tests wrap it.
//!
//! Invariant: an error says whether the request can have taken effect. `Unanswered` is the only one after which it may
//! have; nothing here sends a request twice.

use crate::error::RemoteError;
use bytes::Bytes;
use std::{ops::Range, time::Duration};

/// Version of an object, as the store tells it; changes with every write of its key.
pub(crate) type ObjectTag = String;

/// Outcome of a request that did not succeed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServiceError {
    /// No such object.
    NotFound,
    /// The condition does not hold: the key is taken, or the object is another.
    Taken,
    /// Another conditional request on the key is in progress; without effect.
    Conflict,
    /// Too many requests; without effect.
    Busy {
        /// Status and code.
        reason: String,
    },
    /// No answer, or one that says nothing about the effect.
    Unanswered {
        /// Last known step.
        reason: String,
    },
    /// The request never reached the store.
    Unreachable {
        /// Cause.
        reason: String,
    },
    /// Another try changes nothing.
    Final(RemoteError),
}

/// Object in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ListedObject {
    /// Key, without the prefix of the repository.
    pub(crate) key: String,
    pub(crate) bytes: u64,
    pub(crate) tag: ObjectTag,
}

/// Part of a list of objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListedPage {
    pub(crate) objects: Vec<ListedObject>,
    /// No object follows.
    pub(crate) is_last: bool,
}

/// First bytes of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectFront {
    pub(crate) bytes: Bytes,
    /// Length of the whole object.
    pub(crate) total: u64,
    pub(crate) tag: ObjectTag,
}

/// Upload of an object in parts; visible at `complete`.
pub(crate) trait ObjectUpload: Send {
    /// Adds bytes at the end; sends a part once enough are there. Blocks.
    fn append(&mut self, data: Bytes) -> Result<(), ServiceError>;
    /// Makes the object visible, if the key is free.
    fn complete(&mut self) -> Result<ObjectTag, ServiceError>;
    /// Removes the parts. A store that does not answer keeps them until its own rule removes them.
    fn abort(&mut self);
}

/// Facts that answers of a store carry beside their outcome.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StoreObservation {
    /// Time of the store minus that of this machine: its amount, and whether the store is ahead.
    pub(crate) clock_offset: Option<(Duration, bool)>,
    /// Whether the answer to a create named a version of the object.
    pub(crate) keeps_versions: Option<bool>,
}

/// The requests; each blocks, and is sent once. See the module.
pub(crate) trait ObjectService: Send + Sync {
    /// Creates an object, if the key is free.
    fn create(&self, key: &str, body: Bytes) -> Result<ObjectTag, ServiceError>;
    /// Writes an object, whether the key is free or not; for probes.
    fn overwrite(&self, key: &str, body: Bytes) -> Result<(), ServiceError>;
    /// Starts an upload in parts.
    fn upload(&self, key: &str) -> Result<Box<dyn ObjectUpload>, ServiceError>;
    /// Up to `limit` first bytes of an object.
    fn front(&self, key: &str, limit: u64) -> Result<ObjectFront, ServiceError>;
    /// The bytes of `range`, which lies inside the object.
    fn read(&self, key: &str, range: Range<u64>) -> Result<Bytes, ServiceError>;
    /// Like `read`, if the object still has this tag; `Taken` otherwise.
    fn read_tagged(&self, key: &str, range: Range<u64>, tag: &str) -> Result<Bytes, ServiceError>;
    /// Objects whose keys begin with `prefix` and are above `after`, in order: up to `limit`, at least one unless there
    /// is none.
    fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Result<ListedPage, ServiceError>;
    /// Prefixes up to the next slash behind `prefix`, which ends with one, in order. Blocks for a request a thousand.
    fn groups(&self, prefix: &str) -> Result<Vec<String>, ServiceError>;
    /// Deletes an object, if it still has this tag; nothing happens if it is gone.
    fn delete(&self, key: &str, tag: Option<&str>) -> Result<(), ServiceError>;
    /// Time of the store: ms since 1970, from its last answer. 0: it has not answered yet.
    fn now_ms(&self) -> u64;
    /// Facts of the answers until now.
    fn observation(&self) -> StoreObservation;
    /// Deletes leftovers of writes that ended more than a day ago, unless a rule of the store does so; returns their number.
    fn sweep_unfinished(&self) -> Result<u64, ServiceError> {
        Ok(0)
    }
}
