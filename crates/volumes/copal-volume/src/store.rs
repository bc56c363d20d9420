//! The interface between users of files and stores of volumes.
//!
//! Paper: beanfs §2.3, §3.3 (volumes, write-once files, their operations)
//! Not here: exact meaning of each promise (`conformance`), names (`names`), limits (`limits`).

use crate::error::VolumeError;
use crate::ids::{FileId, VolumeId};
use crate::limits::MAX_FILE_NAME_BYTES;
use bytes::Bytes;
use std::ops::{ControlFlow, Range};

/// The head of a file: everything but its bytes. Never changes while the file lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Identity of this file; another file of the same name has another.
    pub fid: FileId,
    /// Length of the body in bytes.
    pub size: u64,
    /// CRC32C of the whole body.
    pub crc32c: u32,
    /// Time at which the file became visible, stamped by the store: ms since 1970. A file created after
    /// another was acknowledged never has a smaller one, over restarts and clock changes too. It is an order:
    /// after the clock was ahead, it stays ahead until the clock catches up. [`VolumeStore::now_ms`] has the
    /// time.
    pub created_ms: u64,
    /// The caller's metadata of [`PutOptions`].
    pub metadata: Bytes,
}

/// Options of writing a file.
#[derive(Clone, Debug, Default)]
pub struct PutOptions {
    /// Small caller metadata, at most 1 KiB, returned by `stat` and `list`.
    pub metadata: Bytes,
}

/// Acknowledged operations that a read must have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Consistency {
    /// May still show a file that was just deleted. An embedded store answers as for `Strict`.
    #[default]
    Available,
    /// Sees every create and delete acknowledged before the read began.
    Strict,
    /// For a name that no second file ever gets: any copy of the file serves, also of a deleted one. An embedded
    /// store answers as for `Strict`.
    AnyCopy,
}

/// Options of reading a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct ReadOptions {
    /// Acknowledged operations that the read must have seen.
    pub consistency: Consistency,
    /// Read only this file; if the name leads to another one now, the answer is `NotFound`.
    pub if_file: Option<FileId>,
}

impl ReadOptions {
    /// Sees every create and delete acknowledged before; reads any file of the name.
    pub const STRICT: ReadOptions = ReadOptions { consistency: Consistency::Strict, if_file: None };
    /// Reads any copy of the only file that ever has the name.
    pub const ANY_COPY: ReadOptions = ReadOptions { consistency: Consistency::AnyCopy, if_file: None };
}

/// Options of a volume, set when it is created.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeOptions {
    /// Limit on the bytes of live files; none: the store's size.
    pub quota_bytes: Option<u64>,
    /// Keep a second copy of each small file, apart from the first and for rescues only. For files without
    /// which all others are worthless. A store with replicas does not use it.
    pub spare_copies: bool,
}

/// Treatment of existing files by `remove_volume`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemoveMode {
    /// Refuse with `NotEmpty`.
    IfEmpty,
    /// Remove them with the volume. Volumes below it are never removed with it.
    WithFiles,
}

/// Final outcome of a create with an unknown one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleOutcome {
    /// The file is there.
    Committed,
    /// The file is not there and never will be (again).
    Aborted,
}

/// Outcome that the caller of `settle` prefers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettleChoice {
    /// Keep the file if any copy of it is complete.
    Commit,
    /// Delete the file unless its create is settled already.
    Abort,
}

/// Totals over the live files of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeStats {
    /// Number of files.
    pub files: u64,
    /// Sum of their sizes in bytes.
    pub bytes: u64,
}

/// Capabilities of a store. One that can do less than the default says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// Longest name of a file, in bytes.
    pub file_name_bytes: usize,
    /// Longest file that is created in one step; callers that choose their sizes stay below it. `None`: no such size.
    pub whole_file_bytes: Option<u64>,
    /// One process can hold the store for itself: by a lock of its file, or by a lease.
    pub leases: bool,
    /// Volumes can be renamed.
    pub renames: bool,
    /// Volumes can have quotas.
    pub quotas: bool,
    /// An empty volume is removed with [`RemoveMode::IfEmpty`]. Otherwise the answer is always `NotEmpty`.
    pub removes_empty: bool,
}

impl Default for StoreLimits {
    fn default() -> StoreLimits {
        StoreLimits {
            file_name_bytes: MAX_FILE_NAME_BYTES,
            whole_file_bytes: None,
            leases: true,
            renames: true,
            quotas: true,
            removes_empty: true,
        }
    }
}

/// Part of a listing of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilePage {
    /// Names and heads, in order.
    pub files: Vec<(Bytes, FileInfo)>,
    /// No file follows; otherwise the next page may still be empty.
    pub is_last: bool,
}

/// Streams one file; visible at `commit`, abandoned on drop.
pub trait FileWriter: Send {
    /// Adds bytes at the end. May block on the device; holds at most one 4 MiB piece in memory.
    /// # Errors
    /// `NoSpace`, `TooLarge`, `QuotaExceeded`, `Failed`; the writer is then only good for dropping.
    fn append(&mut self, data: Bytes) -> Result<(), VolumeError>;
    /// Makes the file visible, complete and durable.
    /// # Errors
    /// As [`VolumeStore::put`]. Also after an `append` that failed: then nothing becomes visible.
    fn commit(self: Box<Self>) -> Result<FileInfo, VolumeError>;
}

/// Receives the answers of [`VolumeStore::read_ranges`]: the index of the range, and its bytes. `Break` ends the
/// call; ranges without an answer are then not read.
pub type RangeSink<'a> = dyn FnMut(usize, Result<Bytes, VolumeError>) -> ControlFlow<()> + 'a;

/// Receives the answers of [`VolumeStore::tails`]: the index of the file, its head, and its last bytes. `Break` ends the
/// call.
pub type FileTailSink<'a> = dyn FnMut(usize, Result<(FileInfo, Bytes), VolumeError>) -> ControlFlow<()> + 'a;

/// Volumes of immutable files. Blocking; call from a dedicated thread.
///
/// Every operation on a volume that was removed (or never was) answers `VolumeGone`; every
/// operation may answer `Unavailable` or `Failed`, every write `NoSpace` or `Denied`, every read
/// `Corrupt`. Names follow the rules of [`check_file_name`](crate::check_file_name) and
/// [`split_path`](crate::split_path), else `InvalidName`.
pub trait VolumeStore: Send + Sync {
    /// Current time of the store's clock: ms since 1970. May go back.
    fn now_ms(&self) -> u64;

    /// Whether files lie on several servers. Then an operation whose caller died may take effect at any later
    /// time, when a server that was down returns.
    fn is_replicated(&self) -> bool {
        false
    }

    /// Capabilities of this store.
    fn limits(&self) -> StoreLimits {
        StoreLimits::default()
    }

    /// Creates an empty volume below `parent` (`""`: the root); durable on return.
    /// # Errors
    /// `VolumeExists`; `NotFound`: no such parent.
    fn create_volume(
        &self,
        parent: &str,
        name: &str,
        options: &VolumeOptions,
    ) -> Result<VolumeId, VolumeError>;

    /// The volume at `path`, components joined by `/`.
    /// # Errors
    /// `NotFound`.
    fn open_volume(&self, path: &str) -> Result<VolumeId, VolumeError>;

    /// Moves a volume, with all volumes below it, to another path whose parent exists. Ids stay.
    /// # Errors
    /// `NotFound`: no such volume or no such new parent. `VolumeExists`: the new name is taken.
    /// `InvalidName`: the new path lies below the old one.
    fn rename_volume(&self, from: &str, to: &str) -> Result<(), VolumeError>;

    /// Up to `limit` direct children of `parent`, names bytewise ascending and above `after`; fewer only at the end.
    /// # Errors
    /// `NotFound`: no such parent.
    fn list_volumes(
        &self,
        parent: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, VolumeId)>, VolumeError>;

    /// Removes a volume, completely or not at all; frees its space without reading its files.
    /// # Errors
    /// `NotEmpty`: it holds volumes, or files and `how` is `IfEmpty`.
    fn remove_volume(&self, vid: VolumeId, how: RemoveMode) -> Result<(), VolumeError>;

    /// Creates a file: exclusive, whole or absent, durable on return.
    /// # Errors
    /// `Exists`: the name is taken, final for this call. `Unknown`: `settle` it. `TooLarge`,
    /// `QuotaExceeded`, `NoSpace`: nothing was written.
    fn put(
        &self,
        vid: VolumeId,
        name: &[u8],
        body: Bytes,
        options: &PutOptions,
    ) -> Result<FileInfo, VolumeError>;

    /// Starts a file that is streamed; the name is decided at `commit`.
    /// # Errors
    /// As [`put`](VolumeStore::put); `Exists` may come here already, or only at `commit`.
    fn writer(
        &self,
        vid: VolumeId,
        name: &[u8],
        options: &PutOptions,
    ) -> Result<Box<dyn FileWriter>, VolumeError>;

    /// The part of `range` that lies inside the file: shorter at its end, empty beyond it. The answer is
    /// checked against stored checksums, and held in memory as a whole.
    /// # Errors
    /// `NotFound`; `Corrupt`.
    fn get(
        &self,
        vid: VolumeId,
        name: &[u8],
        range: Range<u64>,
        options: &ReadOptions,
    ) -> Result<Bytes, VolumeError>;

    /// Reads several ranges of one file, each as [`get`](VolumeStore::get) does. A store sorts the ranges by place
    /// and reads neighbours together, so callers hand over all ranges they know they need.
    ///
    /// `sink` gets each range once, on this thread, in the order in which the reads end. Damage in one range
    /// does not affect the others. The store holds a bounded number of unanswered bytes, plus one range. Ranges
    /// may overlap, be empty, reversed (empty as well), or pass the end of the file. Answers may share memory:
    /// a caller that keeps few of many copies those.
    /// # Errors
    /// Those that concern all ranges, such as `NotFound`: ranges without an answer then get none.
    fn read_ranges(
        &self,
        vid: VolumeId,
        name: &[u8],
        ranges: &[Range<u64>],
        options: &ReadOptions,
        sink: &mut RangeSink<'_>,
    ) -> Result<(), VolumeError> {
        for (index, range) in ranges.iter().enumerate() {
            match self.get(vid, name, range.clone(), options) {
                Err(error) if !error.is_corruption() => return Err(error),
                answer => {
                    if sink(index, answer).is_break() {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    /// Heads and last bytes of several files of a volume, at most `tail_bytes` of each: as [`stat`](VolumeStore::stat)
    /// and [`get`](VolumeStore::get) for each of them. A store may read neighbours together, so callers hand over all
    /// files they know they need.
    ///
    /// `sink` gets each file once, by its index in `names`, on this thread, in any order. It may end the call. Damage
    /// of one file does not affect the others.
    /// # Errors
    /// Those that concern all files: files without an answer then get none.
    fn tails(
        &self,
        vid: VolumeId,
        names: &[&[u8]],
        tail_bytes: u64,
        options: &ReadOptions,
        sink: &mut FileTailSink<'_>,
    ) -> Result<(), VolumeError> {
        for (index, name) in names.iter().enumerate() {
            let tail = self.stat(vid, name, options).and_then(|info| {
                let start = info.size.saturating_sub(tail_bytes);
                // The name may lead to another file by now.
                let of_this = ReadOptions { if_file: Some(info.fid), ..*options };
                let bytes = self.get(vid, name, start..info.size, &of_this)?;
                Ok((info, bytes))
            });
            if sink(index, tail).is_break() {
                break;
            }
        }
        Ok(())
    }

    /// The head of a file; reads no body.
    /// # Errors
    /// `NotFound`; `Corrupt`.
    fn stat(&self, vid: VolumeId, name: &[u8], options: &ReadOptions) -> Result<FileInfo, VolumeError>;

    /// Up to `limit` files whose names begin with `prefix` and are above `after`, bytewise ascending. Paging
    /// by the last name shows every file that existed throughout exactly once. For each name, a strict list
    /// agrees with a strict `stat` that began with it, also for names that it does not show. A page is not a
    /// snapshot: names are read one after the other. `if_file` has no effect.
    /// # Errors
    /// `Corrupt`.
    fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        options: &ReadOptions,
    ) -> Result<Vec<(Bytes, FileInfo)>, VolumeError>;

    /// Like [`list`](VolumeStore::list), and tells whether this page is the last. Where each request costs, a store that
    /// knows saves the one that finds nothing.
    /// # Errors
    /// `Corrupt`.
    fn list_page(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        options: &ReadOptions,
    ) -> Result<FilePage, VolumeError> {
        let files = self.list(vid, prefix, after, limit, options)?;
        Ok(FilePage { is_last: files.is_empty(), files })
    }

    /// Lets lists and look-ups in a volume show it as it is now, for a command that reads many parts of it once;
    /// [`VolumeId::ROOT`] stands for the names of all volumes. This ends with
    /// [`release_lists`](VolumeStore::release_lists), with the first change through this store, and when a file turns out
    /// to be gone. A list of more than `most` files or volumes is not held. A store in which a list costs little does
    /// nothing.
    /// # Errors
    /// Only those common to all operations.
    fn hold_list(&self, _vid: VolumeId, _most: usize) -> Result<(), VolumeError> {
        Ok(())
    }

    /// Ends [`hold_list`](VolumeStore::hold_list): later lists and look-ups ask again.
    fn release_lists(&self) {}

    /// Deletes the file if the name still leads to `fid`; otherwise nothing happens, without an error.
    /// Durable on return; may be repeated.
    /// # Errors
    /// `Unknown`: some copy may have it, and then it spreads by itself; repeat the call to know.
    fn delete(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<(), VolumeError>;

    /// Ends an `Unknown`: the outcome is final when this returns. An acknowledged file stays, for every
    /// preference.
    /// # Errors
    /// Only those common to all operations.
    fn settle(&self, vid: VolumeId, fid: FileId, want: SettleChoice) -> Result<SettleOutcome, VolumeError>;

    /// Creates several small files (name, body, options), one answer each in the same order. One durable
    /// write, or a few with little memory. Not atomic as a whole.
    /// # Errors
    /// `TooLarge`: above 4 MiB together, nothing was written.
    fn put_batch(
        &self,
        vid: VolumeId,
        files: Vec<(Bytes, Bytes, PutOptions)>,
    ) -> Result<Vec<Result<FileInfo, VolumeError>>, VolumeError>;

    /// Reads several whole files, one answer each in the same order. Once the answer has 4 MiB, further files
    /// are answered `TooLarge`; call again for them.
    /// # Errors
    /// Only those common to all operations.
    fn get_batch(
        &self,
        vid: VolumeId,
        names: &[Bytes],
        options: &ReadOptions,
    ) -> Result<Vec<Result<Bytes, VolumeError>>, VolumeError>;

    /// Deletes several files as [`delete`](VolumeStore::delete) does; one durable write.
    /// # Errors
    /// `TooLarge`: names above 4 MiB together, nothing was deleted.
    fn delete_batch(
        &self,
        vid: VolumeId,
        files: &[(Bytes, FileId)],
    ) -> Result<Vec<Result<(), VolumeError>>, VolumeError>;

    /// Counts the live files of a volume. May scan all heads of the volume.
    /// # Errors
    /// `Corrupt`.
    fn volume_stats(&self, vid: VolumeId) -> Result<VolumeStats, VolumeError>;

    /// Deletes files of volumes that no longer exist: a process that died while it removed a volume leaves them. Returns
    /// their number. A store whose removals are atomic has none.
    /// # Errors
    /// `Denied`; `Corrupt`: a volume cannot be read, so nothing was deleted; errors of the store.
    fn sweep(&self) -> Result<u64, VolumeError> {
        Ok(0)
    }

    /// Lets a process that has read none of these volumes read all their short files by a few requests, where each
    /// request costs as much as many bytes. A hint, for volumes that change seldom.
    /// # Errors
    /// `Denied`; errors of the store.
    fn bundle(&self, vids: &[VolumeId]) -> Result<(), VolumeError> {
        let _ = vids;
        Ok(())
    }

    /// Frees the space of deleted files now instead of in the background; a hint on a cluster.
    /// # Errors
    /// Only those common to all operations.
    fn reclaim(&self, vid: VolumeId) -> Result<(), VolumeError>;
}
