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
    counts: Arc<Mutex<ReadCounts>>,
    /// Runs after this many more answers to reads of several ranges.
    after_answers: Arc<Mutex<Option<(u64, Interruption)>>>,
    /// A byte of a file that cannot be read.
    bad_byte: Arc<Mutex<Option<BadByte>>>,
    order: Arc<Mutex<Vec<(Did, VolumeId)>>>,
    /// Runs before the next such call on a file whose name begins so.
    before: Arc<Mutex<Option<CallInterruption>>>,
    /// How far the clock of this client is ahead of the store's.
    ahead_ms: u64,
    /// Makes the client of another host of the same store.
    origin: Option<Origin>,
}

/// Changes to the files of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Did {
    Begin,
    Delete,
    Reclaim,
}

/// Calls that can be interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Get,
    Stat,
    List,
    Delete,
}

/// Reads of bodies so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadCounts {
    /// Reads of one range, and the bytes that they returned.
    pub(crate) gets: u64,
    pub(crate) get_bytes: u64,
    /// Reads of several ranges, the ranges, and the bytes of the answers.
    pub(crate) calls: u64,
    pub(crate) ranges: u64,
    pub(crate) range_bytes: u64,
}

impl ReadCounts {
    /// All bytes that were read.
    pub(crate) fn bytes(&self) -> u64 {
        self.get_bytes + self.range_bytes
    }
}

/// The call, the beginning of the name, and the act.
type CallInterruption = (Call, Vec<u8>, Interruption);
/// Name of a file, and an offset.
type BadByte = (Vec<u8>, u64);
type Interruption = Box<dyn FnOnce() + Send>;
type Origin = Arc<dyn Fn() -> Arc<dyn VolumeStore> + Send + Sync>;

impl MortalStore {
    /// A store that lives for `steps` changes.
    pub(crate) fn new(inner: impl VolumeStore + 'static, steps: i64) -> MortalStore {
        MortalStore::on(Arc::new(inner), steps)
    }
    fn on(inner: Arc<dyn VolumeStore>, steps: i64) -> MortalStore {
        let is_replicated = inner.is_replicated();
        MortalStore {
            inner,
            is_replicated,
            steps: Arc::new(AtomicI64::new(steps)),
            reclaimed: Arc::default(),
            removed: Arc::default(),
            reads: Arc::default(),
            questions: Arc::default(),
            before_put: Arc::default(),
            counts: Arc::default(),
            after_answers: Arc::default(),
            bad_byte: Arc::default(),
            order: Arc::default(),
            before: Arc::default(),
            ahead_ms: 0,
            origin: None,
        }
    }
    /// A store of which each host has a client of its own.
    pub(crate) fn shared(origin: impl Fn() -> Arc<dyn VolumeStore> + Send + Sync + 'static) -> MortalStore {
        let first = origin();
        MortalStore { origin: Some(Arc::new(origin)), ..MortalStore::on(first, i64::MAX) }
    }
    /// The client of another host: it lives for `steps` changes.
    pub(crate) fn host_for(&self, steps: i64) -> MortalStore {
        let inner = self.origin.as_ref().map_or_else(|| self.inner.clone(), |origin| origin());
        MortalStore { origin: self.origin.clone(), ..MortalStore::on(inner, steps) }
    }
    /// The client of another host: it lives until it is killed, and reports that the store is on several servers.
    pub(crate) fn another_host(&self) -> MortalStore {
        MortalStore { is_replicated: true, ..self.host_for(i64::MAX) }
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
    /// Runs something just before the next such call on a file whose name begins with `prefix`, or the next list of it.
    pub(crate) fn before(&self, call: Call, prefix: &[u8], what: impl FnOnce() + Send + 'static) {
        *self.before.lock().unwrap() = Some((call, prefix.to_vec(), Box::new(what)));
    }
    fn interrupt(&self, call: Call, name: &[u8]) {
        let is_due = |(wanted, prefix, _): &mut CallInterruption| {
            *wanted == call && if call == Call::List { name == prefix } else { name.starts_with(prefix) }
        };
        let due = self.before.lock().unwrap().take_if(is_due);
        if let Some((.., interruption)) = due {
            interruption();
        }
    }
    /// Runs something after this many answers to reads of several ranges.
    pub(crate) fn after_answers(&self, answers: u64, what: impl FnOnce() + Send + 'static) {
        *self.after_answers.lock().unwrap() = Some((answers, Box::new(what)));
    }
    /// From now on reads of this byte of files of this name fail.
    pub(crate) fn break_byte(&self, name: &[u8], at: u64) {
        *self.bad_byte.lock().unwrap() = Some((name.to_vec(), at));
    }
    /// Reads of bodies since the last call of this.
    pub(crate) fn take_counts(&self) -> ReadCounts {
        std::mem::take(&mut *self.counts.lock().unwrap())
    }
    fn checked(
        &self,
        name: &[u8],
        range: &Range<u64>,
        answer: Result<Bytes, VolumeError>,
    ) -> Result<Bytes, VolumeError> {
        match &*self.bad_byte.lock().unwrap() {
            Some((bad, at)) if bad == name && range.contains(at) => {
                Err(VolumeError::Corrupt { what: format!("byte {at}") })
            }
            _ => answer,
        }
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
    fn limits(&self) -> StoreLimits {
        self.inner.limits()
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
        self.interrupt(Call::Get, name);
        let answer = self.inner.get(vid, name, range.clone(), options);
        let mut counts = self.counts.lock().unwrap();
        counts.gets += 1;
        counts.get_bytes += answer.as_ref().map_or(0, |bytes| bytes.len() as u64);
        self.checked(name, &range, answer)
    }
    fn hold_list(&self, vid: VolumeId, most: usize) -> Result<(), VolumeError> {
        self.alive()?;
        self.inner.hold_list(vid, most)
    }
    fn release_lists(&self) {
        self.inner.release_lists();
    }
    fn read_ranges(
        &self,
        vid: VolumeId,
        name: &[u8],
        ranges: &[Range<u64>],
        options: &ReadOptions,
        sink: &mut RangeSink<'_>,
    ) -> Result<(), VolumeError> {
        self.alive()?;
        self.note_reads(1);
        self.counts.lock().unwrap().calls += 1;
        self.inner.read_ranges(vid, name, ranges, options, &mut |index, answer| {
            {
                let mut counts = self.counts.lock().unwrap();
                counts.ranges += 1;
                counts.range_bytes += answer.as_ref().map_or(0, |bytes| bytes.len() as u64);
            }
            let flow = sink(index, self.checked(name, &ranges[index], answer));
            let mut after = self.after_answers.lock().unwrap();
            if let Some((left, _)) = after.as_mut() {
                *left = left.saturating_sub(1);
            }
            let due = after.take_if(|(left, _)| *left == 0);
            drop(after);
            if let Some((_, interruption)) = due {
                interruption();
            }
            flow
        })
    }
    fn stat(&self, vid: VolumeId, name: &[u8], options: &ReadOptions) -> Result<FileInfo, VolumeError> {
        self.alive()?;
        self.interrupt(Call::Stat, name);
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
        self.interrupt(Call::List, prefix);
        let page = self.inner.list(vid, prefix, after, limit, options)?;
        self.note_reads(page.len());
        Ok(page)
    }
    fn delete(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<(), VolumeError> {
        self.interrupt(Call::Delete, name);
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
    fn sweep(&self) -> Result<u64, VolumeError> {
        self.step()?;
        self.inner.sweep()
    }
    fn reclaim(&self, vid: VolumeId) -> Result<(), VolumeError> {
        self.step()?;
        self.reclaimed.lock().unwrap().push(vid);
        self.order.lock().unwrap().push((Did::Reclaim, vid));
        self.inner.reclaim(vid)
    }
}
