//! The embedded volume store.
//!
//! Paper:  beanfs §3.3, §3.4.2
//! Invariants
//! - A create checks and writes under a reservation of its name, so at most one of several concurrent
//!   creators wins. No lock is held across the flush, so creates of different names share it.
//! - A body above one piece is staged first, under a row in `uploads`, and becomes visible with its head.
//!   After a crash the engine has a prefix of the commit order. A piece without a head therefore always has
//!   its upload row.
//! - One process owns the store. Every upload found at opening is therefore dead and is freed.
//! - Removing a volume is one batch, which deletes its name and changes its state (VOL-7). The purge of its
//!   rows follows; the next opening finishes it after a crash.
//! - After a write with an unknown outcome, nothing more is written until the store is reopened.

mod batches;
mod body;
mod create;
mod delete;
mod lists;
mod open;
mod put;
mod ranges;
mod read;
mod tails;
mod tree;
mod writer;

pub(crate) use body::{add_piece, delete_pieces, is_single_block, piece_sums, read as read_body};
pub(crate) use open::EPOCH;
pub use open::LocalOptions;
pub(crate) use ranges::read_ranges as read_body_ranges;

use crate::check::{self, CheckOptions, VolumeCheckReport};
use crate::error::{WriteFence, of_engine, refused_cleanly};
use crate::format::{VolumeRow, VolumeState};
use crate::keys;
use crate::keyspaces::DataKeyspaces;
use crate::name_locks::{NameLocks, VolumeLoader};
use crate::operation_clock::OperationClock;
use bytes::Bytes;
use copal_kv::{Batch, Durability, Store};
use copal_volume::{
    FileId, FileInfo, FileTailSink, FileWriter, PutOptions, RangeSink, ReadOptions, RemoveMode, SettleChoice,
    SettleOutcome, VolumeError, VolumeId, VolumeOptions, VolumeStats, VolumeStore,
};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// [`VolumeStore`] on one `copal-kv` store: no network, no runtime. Cheap to clone.
#[derive(Clone)]
pub struct LocalStore {
    inner: Arc<LocalCore>,
}

struct LocalCore {
    kv: Store,
    spaces: DataKeyspaces,
    name_locks: NameLocks,
    times: OperationClock,
    /// Held during changes of the tree of volumes.
    tree: Mutex<()>,
    /// Volumes whose small files have second copies.
    copied_volumes: Mutex<BTreeSet<VolumeId>>,
    fence: WriteFence,
}

impl LocalStore {
    /// Opens the volumes in `kv` and initialises a new store. Frees the remains of uploads and removals that
    /// a crash interrupted. Blocks on the device.
    /// # Errors
    /// `Corrupt`: the rows that describe the store are damaged. `Denied`: the store is read-only and not a
    /// volume store. `Failed`: the engine failed, or another release wrote the store.
    pub fn open(kv: Store) -> Result<LocalStore, VolumeError> {
        LocalStore::open_with(kv, LocalOptions::default())
    }

    /// The engine below, for its counters.
    pub fn kv(&self) -> &Store {
        &self.inner.kv
    }

    /// Random identity of the store, drawn at its creation.
    /// # Errors
    /// `Corrupt`; `Failed`.
    pub fn uuid(&self) -> Result<[u8; 16], VolumeError> {
        open::identity(&self.inner.spaces)
    }

    /// Checks every row of the store; with `read_data` it also reads and verifies every body. Calls
    /// `progress` after every file and volume, and while the engine reads its tables and values. Damage is
    /// reported and skipped; only an engine without any answer ends the check early.
    /// # Errors
    /// `Failed`.
    pub fn check(
        &self,
        options: &CheckOptions,
        progress: &mut dyn FnMut(&VolumeCheckReport),
    ) -> Result<VolumeCheckReport, VolumeError> {
        check::run(&self.inner.kv, &self.inner.spaces, options, progress)
    }

    /// Writes the exact time of the last operation and closes the engine. Acknowledged operations are durable
    /// already. Later calls on clones fail.
    /// # Errors
    /// `Failed`.
    pub fn close(&self) -> Result<(), VolumeError> {
        self.inner.note_time();
        self.inner.kv.close().map_err(|e| of_engine(&e))
    }
}

impl Drop for LocalCore {
    fn drop(&mut self) {
        self.note_time();
    }
}

impl LocalCore {
    /// Refuses if an earlier write failed.
    fn writable(&self) -> Result<(), VolumeError> {
        self.fence.check()
    }

    /// Commits a batch that makes something visible. After any failure but a clean refusal the outcome is
    /// unknown, and the store accepts no further writes.
    fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        match batch.commit(Durability::Device) {
            Ok(()) => Ok(()),
            Err(error) if refused_cleanly(&error) => Err(CommitError::Refused(of_engine(&error))),
            Err(error) => Err(CommitError::Open { reason: self.fail(&error) }),
        }
    }

    /// Stops all later writes.
    fn fail(&self, error: &copal_kv::Error) -> String {
        tracing::error!(%error, "a write failed; the store must be opened again");
        self.fence.stop(error)
    }

    /// Commits a batch whose loss does no harm. A later durable commit makes it durable too.
    fn commit_deferred(&self, batch: Batch) -> Result<(), VolumeError> {
        batch.commit(Durability::Deferred).map_err(|error| {
            if !refused_cleanly(&error) {
                self.fail(&error);
            }
            of_engine(&error)
        })
    }

    /// Writes second copies of rows that were just committed. Only a rescue needs them, so a failure does not
    /// fail the commit.
    fn commit_second_copies(&self, batch: Batch) {
        if !batch.is_empty()
            && let Err(error) = self.commit_deferred(batch)
        {
            tracing::warn!(%error, "rows that describe the store have no second copy for now");
        }
    }

    fn has_second_copies(&self, vid: VolumeId) -> bool {
        self.copied_volumes.lock().contains(&vid)
    }

    /// Replaces the clock mark with the exact time, at a clean close. Without it, creation times may be up to
    /// a second ahead.
    fn note_time(&self) {
        if self.fence.is_stopped() {
            return;
        }
        let mut batch = self.kv.batch();
        if self.times.note_exact_time(&self.spaces, &mut batch)
            && let Err(error) = batch.commit(Durability::Deferred)
        {
            tracing::debug!(%error, "the exact time of the last operation was not noted");
        }
    }

    /// The row of an existing volume.
    fn volume_row(&self, vid: VolumeId) -> Result<Option<VolumeRow>, VolumeError> {
        let key = keys::volume(vid);
        let row = self.spaces.volumes.get(&key).map_err(|e| of_engine(&e))?;
        let Some(row) = row else { return Ok(None) };
        match VolumeRow::parse(&key, &row) {
            Ok(row) if row.state == VolumeState::Live => Ok(Some(row)),
            Ok(_) => Ok(None),
            Err(error) => Err(crate::error::corrupt(format!("the row of volume {vid}: {error}"))),
        }
    }

    /// `VolumeGone` unless the volume exists now. Reads ask *after* they read: then it existed during the
    /// whole read.
    fn alive(&self, vid: VolumeId) -> Result<(), VolumeError> {
        if self.name_locks.remembers(vid) {
            return Ok(());
        }
        match self.volume_row(vid) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err(VolumeError::VolumeGone),
            // Its files can be read without the row.
            Err(VolumeError::Corrupt { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Failure of a commit.
enum CommitError {
    /// Nothing was written.
    Refused(VolumeError),
    /// It may have been written.
    Open { reason: String },
}

impl CommitError {
    /// Error of a create: the caller can settle the file.
    fn of_create(self, fid: FileId) -> VolumeError {
        match self {
            CommitError::Refused(error) => error,
            CommitError::Open { .. } => VolumeError::Unknown { fid },
        }
    }

    /// Error of any other operation: a repetition after the reopening does no harm.
    fn of_other(self) -> VolumeError {
        match self {
            CommitError::Refused(error) => error,
            CommitError::Open { reason } => VolumeError::Failed { reason },
        }
    }
}

impl VolumeLoader for LocalCore {
    fn row(&self, vid: VolumeId) -> Result<Option<VolumeRow>, VolumeError> {
        self.volume_row(vid)
    }
    fn used_bytes(&self, vid: VolumeId) -> Result<u64, VolumeError> {
        Ok(lists::count_files(self, vid)?.bytes)
    }
}

impl VolumeStore for LocalStore {
    fn now_ms(&self) -> u64 {
        self.inner.times.now_ms()
    }

    fn create_volume(
        &self,
        parent: &str,
        name: &str,
        options: &VolumeOptions,
    ) -> Result<VolumeId, VolumeError> {
        tree::create_volume(&self.inner, parent, name, options)
    }

    fn open_volume(&self, path: &str) -> Result<VolumeId, VolumeError> {
        tree::open_volume(&self.inner, path)
    }

    fn rename_volume(&self, from: &str, to: &str) -> Result<(), VolumeError> {
        tree::rename_volume(&self.inner, from, to)
    }

    fn list_volumes(
        &self,
        parent: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, VolumeId)>, VolumeError> {
        tree::list_volumes(&self.inner, parent, after, limit)
    }

    fn remove_volume(&self, vid: VolumeId, how: RemoveMode) -> Result<(), VolumeError> {
        tree::remove_volume(&self.inner, vid, how)
    }

    fn put(
        &self,
        vid: VolumeId,
        name: &[u8],
        body: Bytes,
        options: &PutOptions,
    ) -> Result<FileInfo, VolumeError> {
        put::put(&self.inner, vid, name, body, options)
    }

    fn writer(
        &self,
        vid: VolumeId,
        name: &[u8],
        options: &PutOptions,
    ) -> Result<Box<dyn FileWriter>, VolumeError> {
        writer::start(&self.inner, vid, name, options)
    }

    fn get(
        &self,
        vid: VolumeId,
        name: &[u8],
        range: Range<u64>,
        options: &ReadOptions,
    ) -> Result<Bytes, VolumeError> {
        read::get(&self.inner, vid, name, range, options)
    }

    fn read_ranges(
        &self,
        vid: VolumeId,
        name: &[u8],
        ranges: &[Range<u64>],
        options: &ReadOptions,
        sink: &mut RangeSink<'_>,
    ) -> Result<(), VolumeError> {
        read::read_ranges(&self.inner, vid, name, ranges, options, sink)
    }

    fn tails(
        &self,
        vid: VolumeId,
        names: &[&[u8]],
        tail_bytes: u64,
        options: &ReadOptions,
        sink: &mut FileTailSink<'_>,
    ) -> Result<(), VolumeError> {
        tails::tails(&self.inner, vid, names, tail_bytes, options, sink)
    }

    fn stat(&self, vid: VolumeId, name: &[u8], options: &ReadOptions) -> Result<FileInfo, VolumeError> {
        read::stat(&self.inner, vid, name, options)
    }

    fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        _options: &ReadOptions,
    ) -> Result<Vec<(Bytes, FileInfo)>, VolumeError> {
        lists::list_files(&self.inner, vid, prefix, after, limit)
    }

    fn delete(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<(), VolumeError> {
        delete::delete(&self.inner, vid, name, fid)
    }

    fn settle(&self, vid: VolumeId, fid: FileId, _want: SettleChoice) -> Result<SettleOutcome, VolumeError> {
        lists::settle(&self.inner, vid, fid)
    }

    fn put_batch(
        &self,
        vid: VolumeId,
        files: Vec<(Bytes, Bytes, PutOptions)>,
    ) -> Result<Vec<Result<FileInfo, VolumeError>>, VolumeError> {
        batches::put_batch(&self.inner, vid, files)
    }

    fn get_batch(
        &self,
        vid: VolumeId,
        names: &[Bytes],
        options: &ReadOptions,
    ) -> Result<Vec<Result<Bytes, VolumeError>>, VolumeError> {
        batches::get_batch(&self.inner, vid, names, options)
    }

    fn delete_batch(
        &self,
        vid: VolumeId,
        files: &[(Bytes, FileId)],
    ) -> Result<Vec<Result<(), VolumeError>>, VolumeError> {
        delete::delete_batch(&self.inner, vid, files)
    }

    fn volume_stats(&self, vid: VolumeId) -> Result<VolumeStats, VolumeError> {
        let stats = lists::count_files(&self.inner, vid)?;
        self.inner.alive(vid)?;
        Ok(stats)
    }

    fn reclaim(&self, vid: VolumeId) -> Result<(), VolumeError> {
        tree::reclaim(&self.inner, vid)
    }
}
