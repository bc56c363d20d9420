//! The embedded volume store.
//!
//! Paper:  beanfs §3.3, §3.4.2
//! Invariants
//! - A create looks and writes under a reservation of its name, so at most one of racing creators
//!   wins; no lock is held across the flush, so creates of different names share it.
//! - Bodies above one piece are staged first, under a row in `uploads`, and become visible with
//!   their head. The engine keeps a prefix of commit order over a crash, so a piece without a
//!   head always has its upload row; one process owns the store, so every upload found at open
//!   is dead and is freed.
//! - Removing a volume is one batch (VOL-7: its name goes, its state turns); the purge of its rows
//!   follows and is finished at the next open if a crash cuts it short.
//! - After a write whose outcome is unknown nothing more is written until the store is reopened.

mod batches;
mod body;
mod create;
mod delete;
mod lists;
mod open;
mod read;
mod tree;
mod writer;

pub(crate) use body::{add_piece, delete_pieces, is_alone, piece_sums, read as read_body};
pub(crate) use open::EPOCH;
pub use open::LocalOptions;

use crate::check::{self, CheckOptions, CheckReport};
use crate::error::{Stop, of_engine, refused_cleanly};
use crate::format::{VolumeRow, VolumeState};
use crate::keys;
use crate::name_locks::{Load, NameLocks};
use crate::spaces::Spaces;
use crate::times::Times;
use bytes::Bytes;
use copal_kv::{Batch, Durability, Store};
use copal_volume::{
    FileId, FileInfo, FileWriter, Outcome, PutOptions, ReadOptions, Remove, Settle, VolumeError, VolumeId,
    VolumeOptions, VolumeStats, VolumeStore,
};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// All of [`VolumeStore`] on one `copal-kv` store: no network, no runtime. Cheap to clone.
#[derive(Clone)]
pub struct LocalStore {
    inner: Arc<LocalCore>,
}

struct LocalCore {
    kv: Store,
    spaces: Spaces,
    name_locks: NameLocks,
    times: Times,
    /// Held by whoever changes the tree of volumes.
    tree: Mutex<()>,
    /// Volumes whose small files have second copies.
    spared: Mutex<BTreeSet<VolumeId>>,
    /// Why nothing more is written.
    stopped: Mutex<Option<Stop>>,
}

impl LocalStore {
    /// Opens the volumes in `kv`, making it a volume store when it is new, and frees what uploads
    /// and removals that a crash cut short have left. Blocks on the device.
    /// # Errors
    /// `Corrupt`: the rows that describe the store are damaged. `Denied`: read-only and not a
    /// volume store. `Failed`: the engine failed, or another release wrote the store.
    pub fn open(kv: Store) -> Result<LocalStore, VolumeError> {
        LocalStore::open_with(kv, LocalOptions::default())
    }

    /// The engine below, for its counters.
    pub fn kv(&self) -> &Store {
        &self.inner.kv
    }

    /// 16 random bytes drawn when the store was made.
    /// # Errors
    /// `Corrupt`; `Failed`.
    pub fn uuid(&self) -> Result<[u8; 16], VolumeError> {
        open::identity(&self.inner.spaces)
    }

    /// Walks every row of the store and reports what is damaged; with `read_data` it reads and verifies every
    /// body too. `progress` is called after every file, every volume, and while the engine reads its tables
    /// and values. Damage is reported and walked past; only an engine that answers nothing more ends the walk
    /// early.
    /// # Errors
    /// `Failed`.
    pub fn check(
        &self,
        options: &CheckOptions,
        progress: &mut dyn FnMut(&CheckReport),
    ) -> Result<CheckReport, VolumeError> {
        check::run(&self.inner.kv, &self.inner.spaces, options, progress)
    }

    /// Notes the exact time of the last operation and closes the engine; everything acknowledged
    /// is durable already. Later calls on clones fail.
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
    /// Refuses when an earlier write failed.
    fn writable(&self) -> Result<(), VolumeError> {
        self.stopped.lock().as_ref().map_or(Ok(()), |stop| Err(stop.refusal()))
    }

    /// Commits a batch that makes something visible. Any failure but a clean refusal leaves the
    /// outcome open, and the store takes no further writes.
    fn commit(&self, batch: Batch) -> Result<(), CommitError> {
        match batch.commit(Durability::Device) {
            Ok(()) => Ok(()),
            Err(error) if refused_cleanly(&error) => Err(CommitError::Refused(of_engine(&error))),
            Err(error) => Err(CommitError::Open { reason: self.fail(&error) }),
        }
    }

    /// Takes no more writes from here on.
    fn fail(&self, error: &copal_kv::Error) -> String {
        tracing::error!(%error, "a write failed; the store must be opened again");
        let stop = Stop::by(error);
        let reason = stop.reason.clone();
        self.stopped.lock().get_or_insert(stop);
        reason
    }

    /// Commits a batch whose loss does no harm: a later durable commit makes it durable too.
    fn commit_behind(&self, batch: Batch) -> Result<(), VolumeError> {
        batch.commit(Durability::Deferred).map_err(|error| {
            if !refused_cleanly(&error) {
                self.fail(&error);
            }
            of_engine(&error)
        })
    }

    /// Writes second copies behind what was just committed. Without them nothing is lost but a rescue's last
    /// resort, so a failure is no failure of what was committed.
    fn commit_spares(&self, batch: Batch) {
        if !batch.is_empty()
            && let Err(error) = self.commit_behind(batch)
        {
            tracing::warn!(%error, "rows that describe the store have no second copy for now");
        }
    }

    fn is_spared(&self, vid: VolumeId) -> bool {
        self.spared.lock().contains(&vid)
    }

    /// On a clean close: the exact time instead of a mark ahead of it. Losing it costs at most a
    /// second of creation times that run ahead.
    fn note_time(&self) {
        if self.stopped.lock().is_some() {
            return;
        }
        let mut batch = self.kv.batch();
        if self.times.note_exact_time(&self.spaces, &mut batch)
            && let Err(error) = batch.commit(Durability::Deferred)
        {
            tracing::debug!(%error, "the exact time of the last operation was not noted");
        }
    }

    /// The row of a volume that is there.
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

    /// `VolumeGone` unless the volume is there now. Reads ask *after* they read: then it was
    /// there all the while.
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

/// Why a commit did not succeed.
enum CommitError {
    /// Nothing was written.
    Refused(VolumeError),
    /// It may have been written.
    Open { reason: String },
}

impl CommitError {
    /// For creates: the caller can settle the file.
    fn of_create(self, fid: FileId) -> VolumeError {
        match self {
            CommitError::Refused(error) => error,
            CommitError::Open { .. } => VolumeError::Unknown { fid },
        }
    }

    /// For everything else: repeating it after a reopen does no harm.
    fn of_other(self) -> VolumeError {
        match self {
            CommitError::Refused(error) => error,
            CommitError::Open { reason } => VolumeError::Failed { reason },
        }
    }
}

impl Load for LocalCore {
    fn row(&self, vid: VolumeId) -> Result<Option<VolumeRow>, VolumeError> {
        self.volume_row(vid)
    }
    fn used_bytes(&self, vid: VolumeId) -> Result<u64, VolumeError> {
        Ok(self.count(vid)?.bytes)
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
        self.inner.create_volume(parent, name, options)
    }

    fn open_volume(&self, path: &str) -> Result<VolumeId, VolumeError> {
        self.inner.open_volume(path)
    }

    fn rename_volume(&self, from: &str, to: &str) -> Result<(), VolumeError> {
        self.inner.rename_volume(from, to)
    }

    fn list_volumes(
        &self,
        parent: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, VolumeId)>, VolumeError> {
        self.inner.list_volumes(parent, after, limit)
    }

    fn remove_volume(&self, vid: VolumeId, how: Remove) -> Result<(), VolumeError> {
        self.inner.remove_volume(vid, how)
    }

    fn put(
        &self,
        vid: VolumeId,
        name: &[u8],
        body: Bytes,
        options: &PutOptions,
    ) -> Result<FileInfo, VolumeError> {
        self.inner.put(vid, name, body, options)
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
        self.inner.get(vid, name, range, options)
    }

    fn stat(&self, vid: VolumeId, name: &[u8], options: &ReadOptions) -> Result<FileInfo, VolumeError> {
        self.inner.stat(vid, name, options)
    }

    fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        _options: &ReadOptions,
    ) -> Result<Vec<(Bytes, FileInfo)>, VolumeError> {
        self.inner.list(vid, prefix, after, limit)
    }

    fn delete(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<(), VolumeError> {
        self.inner.delete(vid, name, fid)
    }

    fn settle(&self, vid: VolumeId, fid: FileId, _want: Settle) -> Result<Outcome, VolumeError> {
        self.inner.settle(vid, fid)
    }

    fn put_batch(
        &self,
        vid: VolumeId,
        files: Vec<(Bytes, Bytes, PutOptions)>,
    ) -> Result<Vec<Result<FileInfo, VolumeError>>, VolumeError> {
        self.inner.put_batch(vid, files)
    }

    fn get_batch(
        &self,
        vid: VolumeId,
        names: &[Bytes],
        options: &ReadOptions,
    ) -> Result<Vec<Result<Bytes, VolumeError>>, VolumeError> {
        self.inner.get_batch(vid, names, options)
    }

    fn delete_batch(
        &self,
        vid: VolumeId,
        files: &[(Bytes, FileId)],
    ) -> Result<Vec<Result<(), VolumeError>>, VolumeError> {
        self.inner.delete_batch(vid, files)
    }

    fn volume_stats(&self, vid: VolumeId) -> Result<VolumeStats, VolumeError> {
        let stats = self.inner.count(vid)?;
        self.inner.alive(vid)?;
        Ok(stats)
    }

    fn reclaim(&self, vid: VolumeId) -> Result<(), VolumeError> {
        self.inner.reclaim(vid)
    }
}
