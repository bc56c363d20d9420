//! Volumes of immutable files: the trait every store of volumes implements.
#![allow(missing_docs)]
use bytes::Bytes;
use std::ops::Range;

/// A directory of immutable files; ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u64);
/// Identity of one file for ever: 48-bit ms, 16-bit counter, 64-bit client incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u128);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    pub fid: FileId,
    pub size: u64,
    pub crc32c: u32,
    /** stamped by the store, ms since 1970 */
    pub created_ms: u64,
    pub metadata: Bytes,
}
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /** small caller metadata, at most 1 KiB, returned by stat and list */
    pub metadata: Bytes,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Consistency {
    #[default]
    Available,
    Strict,
}
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOptions {
    pub consistency: Consistency,
    pub if_file: Option<FileId>,
}
/// Which kind of storage a volume wants; one local node takes all.
#[derive(Clone, Debug, Default)]
pub struct VolumeOptions {
    pub replicas: Option<u8>,
    pub class: Option<String>,
    pub quota_bytes: Option<u64>,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remove {
    IfEmpty,
    WithFiles,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Committed,
    Aborted,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settle {
    Commit,
    Abort,
}
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    pub files: u64,
    pub bytes: u64,
}

#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum VolumeError {
    #[error("the name exists")]
    Exists { fid: FileId },
    #[error("a volume of that name exists")]
    VolumeExists { vid: VolumeId },
    #[error("not found")]
    NotFound,
    #[error("the volume is not empty")]
    NotEmpty,
    #[error("the outcome is unknown; settle it")]
    Unknown { fid: FileId },
    #[error("damaged: {what}")]
    Corrupt { what: String },
    #[error("the store is full; free space or grow it")]
    NoSpace,
    #[error("the volume is gone")]
    VolumeGone,
    #[error("denied: {reason}")]
    Denied { reason: String },
    #[error("unavailable: {reason}")]
    Unavailable { reason: String },
    #[error("{what} is too large: {bytes} bytes, at most {limit}")]
    TooLarge {
        what: &'static str,
        bytes: u64,
        limit: u64,
    },
    #[error("invalid name: {reason}")]
    InvalidName { reason: String },
}
impl VolumeError {
    pub fn is_retryable(&self) -> bool {
        matches!(self, VolumeError::Unavailable { .. })
    }
    pub fn is_unknown(&self) -> bool {
        matches!(self, VolumeError::Unknown { .. })
    }
    pub fn is_corruption(&self) -> bool {
        matches!(self, VolumeError::Corrupt { .. })
    }
}

/// Streams one file; visible at `commit`, abandoned on drop.
pub trait FileWriter: Send {
    fn append(&mut self, data: Bytes) -> Result<(), VolumeError>;
    fn commit(self: Box<Self>) -> Result<FileInfo, VolumeError>;
}

/// Volumes of immutable files. Blocking; call from a thread of your own.
pub trait VolumeStore: Send + Sync {
    fn create_volume(
        &self,
        parent: &str,
        name: &str,
        options: &VolumeOptions,
    ) -> Result<VolumeId, VolumeError>;
    fn open_volume(&self, path: &str) -> Result<VolumeId, VolumeError>;
    fn rename_volume(&self, from: &str, to: &str) -> Result<(), VolumeError>;
    fn list_volumes(
        &self,
        parent: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, VolumeId)>, VolumeError>;
    fn remove_volume(&self, vid: VolumeId, how: Remove) -> Result<(), VolumeError>;
    fn put(
        &self,
        vid: VolumeId,
        name: &[u8],
        body: Bytes,
        options: &PutOptions,
    ) -> Result<FileInfo, VolumeError>;
    fn writer(
        &self,
        vid: VolumeId,
        name: &[u8],
        options: &PutOptions,
    ) -> Result<Box<dyn FileWriter>, VolumeError>;
    fn get(
        &self,
        vid: VolumeId,
        name: &[u8],
        range: Range<u64>,
        options: &ReadOptions,
    ) -> Result<Bytes, VolumeError>;
    fn stat(&self, vid: VolumeId, name: &[u8], options: &ReadOptions) -> Result<FileInfo, VolumeError>;
    fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<(Bytes, FileInfo)>, VolumeError>;
    fn delete(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<(), VolumeError>;
    fn settle(&self, vid: VolumeId, fid: FileId, want: Settle) -> Result<Outcome, VolumeError>;
    fn put_batch(
        &self,
        vid: VolumeId,
        files: Vec<(Bytes, Bytes, PutOptions)>,
    ) -> Result<Vec<Result<FileInfo, VolumeError>>, VolumeError>;
    fn get_batch(
        &self,
        vid: VolumeId,
        names: &[Bytes],
        options: &ReadOptions,
    ) -> Result<Vec<Result<Bytes, VolumeError>>, VolumeError>;
    fn delete_batch(
        &self,
        vid: VolumeId,
        files: &[(Bytes, FileId)],
    ) -> Result<Vec<Result<(), VolumeError>>, VolumeError>;
    fn volume_stats(&self, vid: VolumeId) -> Result<VolumeStats, VolumeError>;
    /// Returns the space of deleted files now instead of in background; a hint on a cluster.
    fn reclaim(&self, vid: VolumeId) -> Result<(), VolumeError>;
}
