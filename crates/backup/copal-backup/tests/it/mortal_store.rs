//! A store of volumes that dies at a chosen step, like a killed process, and counts reads.
//!
//! After its last step every call fails, also reads: a dead process sees nothing.

use bytes::Bytes;
use copal_volume::*;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

#[derive(Clone)]
pub(crate) struct MortalStore {
    inner: Arc<dyn VolumeStore>,
    is_replicated: bool,
    steps: Arc<AtomicI64>,
    reclaimed: Arc<Mutex<Vec<VolumeId>>>,
    removed: Arc<Mutex<Vec<VolumeId>>>,
    reads: Arc<AtomicU64>,
    questions: Arc<AtomicU64>,
    before_put: Arc<Mutex<Option<Interruption>>>,
    order: Arc<Mutex<Vec<(Did, VolumeId)>>>,
    /// How far the clock of this client is ahead of the store's.
    ahead_ms: u64,
}

/// Changes to the files of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Did {
    Begin,
    Delete,
    Reclaim,
}

type Interruption = Box<dyn FnOnce() + Send>;

impl MortalStore {
    /// A store that lives for `steps` changes.
    pub(crate) fn new(inner: impl VolumeStore + 'static, steps: i64) -> MortalStore {
        let is_replicated = inner.is_replicated();
        MortalStore {
            inner: Arc::new(inner),
            is_replicated,
            steps: Arc::new(AtomicI64::new(steps)),
            reclaimed: Arc::default(),
            removed: Arc::default(),
            reads: Arc::default(),
            questions: Arc::default(),
            before_put: Arc::default(),
            order: Arc::default(),
            ahead_ms: 0,
        }
    }
    /// The same store, for a client whose clock is ahead.
    pub(crate) fn ahead(inner: impl VolumeStore + 'static, ahead_ms: u64) -> MortalStore {
        MortalStore { ahead_ms, ..MortalStore::new(inner, i64::MAX) }
    }
    /// A store that lives until it is killed, and reports that it is on several servers.
    pub(crate) fn replicated(inner: impl VolumeStore + 'static) -> MortalStore {
        MortalStore { is_replicated: true, ..MortalStore::new(inner, i64::MAX) }
    }
    /// Kills the store.
    pub(crate) fn kill(&self) {
        self.steps.store(-1, Ordering::Relaxed);
    }
    /// Files and volumes that were read, listed or counted so far.
    pub(crate) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
    /// Number of these requests, with or without a result.
    pub(crate) fn questions(&self) -> u64 {
        self.questions.load(Ordering::Relaxed)
    }
    fn note_reads(&self, count: usize) {
        self.questions.fetch_add(1, Ordering::Relaxed);
        self.reads.fetch_add(count as u64, Ordering::Relaxed);
    }
    /// Runs something just before the next file is put.
    pub(crate) fn before_put(&self, what: impl FnOnce() + Send + 'static) {
        *self.before_put.lock().unwrap() = Some(Box::new(what));
    }
    /// Removed volumes, each with whether its space had been freed before.
    pub(crate) fn removed(&self) -> Vec<(VolumeId, bool)> {
        let reclaimed = self.reclaimed.lock().unwrap();
        let removed = self.removed.lock().unwrap();
        removed.iter().map(|vid| (*vid, reclaimed.contains(vid))).collect()
    }
    /// File creations, deletions and reclaims, in order.
    pub(crate) fn order(&self) -> Vec<(Did, VolumeId)> {
        self.order.lock().unwrap().clone()
    }
    /// Whether it has died.
    pub(crate) fn is_dead(&self) -> bool {
        self.steps.load(Ordering::Relaxed) < 0
    }
    fn alive(&self) -> Result<(), VolumeError> {
        if self.is_dead() { Err(VolumeError::Unavailable { reason: "killed".into() }) } else { Ok(()) }
    }
    fn step(&self) -> Result<(), VolumeError> {
        self.steps.fetch_sub(1, Ordering::Relaxed);
        self.alive()
    }
}

struct MortalWriter {
    inner: Box<dyn FileWriter>,
    store: MortalStore,
}

impl FileWriter for MortalWriter {
    fn append(&mut self, data: Bytes) -> Result<(), VolumeError> {
        self.store.step()?;
        self.inner.append(data)
    }
    fn commit(self: Box<Self>) -> Result<FileInfo, VolumeError> {
        self.store.step()?;
        self.inner.commit()
    }
}

impl VolumeStore for MortalStore {
    fn now_ms(&self) -> u64 {
        self.inner.now_ms() + self.ahead_ms
    }
    fn is_replicated(&self) -> bool {
        self.is_replicated
    }
    fn create_volume(
        &self,
        parent: &str,
        name: &str,
        options: &VolumeOptions,
    ) -> Result<VolumeId, VolumeError> {
        self.step()?;
        self.inner.create_volume(parent, name, options)
    }
    fn open_volume(&self, path: &str) -> Result<VolumeId, VolumeError> {
        self.alive()?;
        self.inner.open_volume(path)
    }
    fn rename_volume(&self, from: &str, to: &str) -> Result<(), VolumeError> {
        self.step()?;
        self.inner.rename_volume(from, to)
    }
    fn list_volumes(
        &self,
        parent: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, VolumeId)>, VolumeError> {
        self.alive()?;
        let page = self.inner.list_volumes(parent, after, limit)?;
        self.note_reads(page.len());
        Ok(page)
    }
    fn remove_volume(&self, vid: VolumeId, how: RemoveMode) -> Result<(), VolumeError> {
        self.step()?;
        self.removed.lock().unwrap().push(vid);
        self.inner.remove_volume(vid, how)
    }
    fn put(
        &self,
        vid: VolumeId,
        name: &[u8],
        body: Bytes,
        options: &PutOptions,
    ) -> Result<FileInfo, VolumeError> {
        let interruption = self.before_put.lock().unwrap().take();
        if let Some(interruption) = interruption {
            interruption();
        }
        self.step()?;
        self.inner.put(vid, name, body, options)
    }
    fn writer(
        &self,
        vid: VolumeId,
        name: &[u8],
        options: &PutOptions,
    ) -> Result<Box<dyn FileWriter>, VolumeError> {
        self.step()?;
        self.order.lock().unwrap().push((Did::Begin, vid));
        Ok(Box::new(MortalWriter { inner: self.inner.writer(vid, name, options)?, store: self.clone() }))
    }
    fn get(
        &self,
        vid: VolumeId,
        name: &[u8],
        range: Range<u64>,
        options: &ReadOptions,
    ) -> Result<Bytes, VolumeError> {
        self.alive()?;
        self.note_reads(1);
        self.inner.get(vid, name, range, options)
    }
    fn stat(&self, vid: VolumeId, name: &[u8], options: &ReadOptions) -> Result<FileInfo, VolumeError> {
        self.alive()?;
        self.note_reads(1);
        self.inner.stat(vid, name, options)
    }
    fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        options: &ReadOptions,
    ) -> Result<Vec<(Bytes, FileInfo)>, VolumeError> {
        self.alive()?;
        let page = self.inner.list(vid, prefix, after, limit, options)?;
        self.note_reads(page.len());
        Ok(page)
    }
    fn delete(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<(), VolumeError> {
        self.step()?;
        self.order.lock().unwrap().push((Did::Delete, vid));
        self.inner.delete(vid, name, fid)
    }
    fn settle(&self, vid: VolumeId, fid: FileId, want: SettleChoice) -> Result<SettleOutcome, VolumeError> {
        self.step()?;
        self.inner.settle(vid, fid, want)
    }
    fn put_batch(
        &self,
        vid: VolumeId,
        files: Vec<(Bytes, Bytes, PutOptions)>,
    ) -> Result<Vec<Result<FileInfo, VolumeError>>, VolumeError> {
        self.step()?;
        self.inner.put_batch(vid, files)
    }
    fn get_batch(
        &self,
        vid: VolumeId,
        names: &[Bytes],
        options: &ReadOptions,
    ) -> Result<Vec<Result<Bytes, VolumeError>>, VolumeError> {
        self.alive()?;
        self.note_reads(names.len());
        self.inner.get_batch(vid, names, options)
    }
    fn delete_batch(
        &self,
        vid: VolumeId,
        files: &[(Bytes, FileId)],
    ) -> Result<Vec<Result<(), VolumeError>>, VolumeError> {
        self.step()?;
        self.inner.delete_batch(vid, files)
    }
    fn volume_stats(&self, vid: VolumeId) -> Result<VolumeStats, VolumeError> {
        self.alive()?;
        let stats = self.inner.volume_stats(vid)?;
        self.note_reads(stats.files as usize);
        Ok(stats)
    }
    fn reclaim(&self, vid: VolumeId) -> Result<(), VolumeError> {
        self.step()?;
        self.reclaimed.lock().unwrap().push(vid);
        self.order.lock().unwrap().push((Did::Reclaim, vid));
        self.inner.reclaim(vid)
    }
}
