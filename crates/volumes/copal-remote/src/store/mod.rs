//! Volumes of files in an object store.
//!
//! Invariants
//! - A name is taken by an exclusive create, and by nothing else (VOL-2).
//! - A create whose answer is lost is sent again with the same body; the file id in the object tells whose it is.
//! - A remembered head is used only with the tag under which it was read.

pub(crate) mod cache;
mod changes;
mod held_list;
mod listing;
mod objects;
mod parallel;
mod read;
mod requests;
mod volumes;
mod writer;

use crate::{
    client::connect,
    error::RemoteError,
    keys::MAX_NAME_BYTES,
    probe::{self, ProbeReport},
    retry::{RetryRules, StopSignal},
    service::{ObjectService, ServiceError},
    url::RemoteUrl,
};
use bytes::Bytes;
pub use cache::ObjectCache;
use changes::PendingCreate;
use copal_volume::{
    Consistency, FileId, FileIds, FileInfo, FilePage, FileTailSink, FileWriter, MAX_BATCH_BYTES, PutOptions,
    RangeSink, ReadOptions, RemoveMode, SettleChoice, SettleOutcome, StoreLimits, VolumeError, VolumeId,
    VolumeOptions, VolumeStats, VolumeStore, check_metadata,
};
use objects::ObjectReader;
use parking_lot::Mutex;
use requests::RequestRules;
use std::{
    collections::HashMap,
    ops::Range,
    path::PathBuf,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};
use volumes::VolumeRecords;

/// Most ends of files that are in memory at the same time.
const MOST_TAILS: usize = 16;

/// Options of opening a store.
#[derive(Clone)]
pub struct RemoteOptions {
    /// Time after which a request without an answer is given up; zero: one try.
    pub retry_for: Duration,
    /// Whether the command was stopped: requests and pauses then end at once.
    pub stop: Arc<dyn Fn() -> bool + Send + Sync>,
    /// File of credentials, instead of the environment and the files of the provider's tools.
    pub credentials: Option<PathBuf>,
}

impl Default for RemoteOptions {
    fn default() -> RemoteOptions {
        RemoteOptions { retry_for: Duration::from_secs(15 * 60), stop: Arc::new(|| false), credentials: None }
    }
}

/// Volumes below one prefix of a bucket. Cheap to clone; clones share their memory of objects.
#[derive(Clone)]
pub struct RemoteStore {
    shared: Arc<RemoteState>,
}

struct RemoteState {
    requests: RequestRules,
    ids: Mutex<FileIds>,
    volumes: VolumeRecords,
    objects: ObjectReader,
    /// Creates without a known outcome.
    pending: Mutex<HashMap<FileId, PendingCreate>>,
    /// Ids of files whose create was settled, where another try than the first has made them.
    settled: Mutex<HashMap<FileId, FileId>>,
}

impl RemoteStore {
    /// A store at the address; sends no request.
    /// # Errors
    /// `Usage`: the address cannot be used. `Credentials`: there are none, or their file cannot be used.
    pub fn new(url: &RemoteUrl, options: &RemoteOptions) -> Result<RemoteStore, RemoteError> {
        let client = connect(url, options.credentials.as_deref(), options.stop.clone())?;
        RemoteStore::on(client, url.connections as usize, options.retry_for, options.stop.clone())
    }

    pub(crate) fn on(
        service: Arc<dyn ObjectService>,
        connections: usize,
        retry_for: Duration,
        stop: StopSignal,
    ) -> Result<RemoteStore, RemoteError> {
        let incarnation = copal_volume::random_incarnation().map_err(|error| {
            RemoteError::new(crate::RemoteFailure::Usage, format!("the system gives no random bits: {error}"))
        })?;
        let requests = RequestRules {
            service,
            rules: RetryRules { retry_for, stop },
            connections: connections.max(1),
            disk: Arc::default(),
            held: Arc::default(),
            bundle: Arc::default(),
            flight: Arc::default(),
        };
        Ok(RemoteStore {
            shared: Arc::new(RemoteState {
                ids: Mutex::new(FileIds::new(incarnation, 0)),
                volumes: VolumeRecords::new(requests.clone()),
                objects: ObjectReader::new(requests.clone()),
                pending: Mutex::default(),
                settled: Mutex::default(),
                requests,
            }),
        })
    }

    /// Keeps heads and short objects in this directory, and answers from it. The first call counts.
    pub fn use_cache(&self, cache: ObjectCache) {
        let _ = self.shared.requests.disk.set(cache);
    }

    /// Whether the credentials may delete: asks to delete an object that does not exist.
    /// # Errors
    /// No credentials, no bucket, no network.
    pub fn may_delete(&self) -> Result<bool, RemoteError> {
        let RequestRules { service, rules, .. } = &self.shared.requests;
        let key = format!("{}{}", crate::keys::PROBES, self.shared.draw_file());
        match rules.repeat(|| service.delete(&key, None)) {
            Ok(()) | Err(ServiceError::NotFound) => Ok(true),
            Err(ServiceError::Final(error)) if error.failure == crate::RemoteFailure::Denied => Ok(false),
            Err(error) => Err(error.give_up()),
        }
    }

    /// Checks whether the object store has the properties that a repository needs, and removes its traces. Blocks for
    /// about twenty requests.
    /// # Errors
    /// No credentials, no bucket, no network.
    pub fn probe(url: &RemoteUrl, options: &RemoteOptions) -> Result<ProbeReport, RemoteError> {
        let client = connect(url, options.credentials.as_deref(), options.stop.clone())?;
        let rules = RetryRules { retry_for: options.retry_for, stop: options.stop.clone() };
        probe::run(&*client, &rules)
    }
}

impl RemoteState {
    fn now_ms(&self) -> u64 {
        self.requests.service.now_ms()
    }

    fn draw_file(&self) -> FileId {
        self.ids.lock().draw_file(self.now_ms())
    }
}

/// The error of a request that no further try would help.
fn of_service(error: &ServiceError) -> VolumeError {
    match error {
        ServiceError::NotFound => VolumeError::NotFound,
        other => other.give_up().into(),
    }
}

fn corrupt(key: &str, why: impl std::fmt::Display) -> VolumeError {
    VolumeError::Corrupt { what: format!("the object {key}: {why}") }
}

fn refuse_large_batch(bytes: usize) -> Result<(), VolumeError> {
    if bytes > MAX_BATCH_BYTES {
        let (bytes, limit) = (bytes as u64, MAX_BATCH_BYTES as u64);
        return Err(VolumeError::TooLarge { what: "the batch", bytes, limit });
    }
    Ok(())
}

impl VolumeStore for RemoteStore {
    fn now_ms(&self) -> u64 {
        self.shared.now_ms()
    }

    /// Requests of a process that died may still be on their way.
    fn is_replicated(&self) -> bool {
        true
    }

    fn limits(&self) -> StoreLimits {
        StoreLimits {
            file_name_bytes: MAX_NAME_BYTES,
            whole_file_bytes: Some(writer::WHOLE_BYTES),
            leases: false,
            renames: false,
            quotas: false,
            removes_empty: false,
        }
    }

    fn create_volume(
        &self,
        parent: &str,
        name: &str,
        options: &VolumeOptions,
    ) -> Result<VolumeId, VolumeError> {
        self.shared.volumes.create_volume(parent, name, options)
    }

    fn open_volume(&self, path: &str) -> Result<VolumeId, VolumeError> {
        self.shared.volumes.open_volume(path)
    }

    fn rename_volume(&self, _from: &str, _to: &str) -> Result<(), VolumeError> {
        Err(VolumeError::Denied { reason: "an object store renames no volumes".to_owned() })
    }

    fn list_volumes(
        &self,
        parent: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, VolumeId)>, VolumeError> {
        self.shared.volumes.list_volumes(parent, after, limit)
    }

    fn remove_volume(&self, vid: VolumeId, how: RemoveMode) -> Result<(), VolumeError> {
        self.shared.volumes.remove_volume(vid, how)
    }

    fn put(
        &self,
        vid: VolumeId,
        name: &[u8],
        body: Bytes,
        options: &PutOptions,
    ) -> Result<FileInfo, VolumeError> {
        check_metadata(&options.metadata)?;
        let key = self.shared.key_of(vid, name)?;
        self.shared.put(key, body, options)
    }

    fn writer(
        &self,
        vid: VolumeId,
        name: &[u8],
        options: &PutOptions,
    ) -> Result<Box<dyn FileWriter>, VolumeError> {
        check_metadata(&options.metadata)?;
        let key = self.shared.key_of(vid, name)?;
        Ok(Box::new(writer::RemoteWriter::new(self.shared.clone(), vid, key, options)))
    }

    fn get(
        &self,
        vid: VolumeId,
        name: &[u8],
        range: Range<u64>,
        options: &ReadOptions,
    ) -> Result<Bytes, VolumeError> {
        let key = self.shared.key_of(vid, name)?;
        self.shared.objects.get(&key, range, options)
    }

    fn read_ranges(
        &self,
        vid: VolumeId,
        name: &[u8],
        ranges: &[Range<u64>],
        options: &ReadOptions,
        sink: &mut RangeSink<'_>,
    ) -> Result<(), VolumeError> {
        let key = self.shared.key_of(vid, name)?;
        self.shared.objects.read_ranges(&key, ranges, options, sink)
    }

    fn tails(
        &self,
        vid: VolumeId,
        names: &[&[u8]],
        tail_bytes: u64,
        options: &ReadOptions,
        sink: &mut FileTailSink<'_>,
    ) -> Result<(), VolumeError> {
        let together = self.shared.requests.connections.min(MOST_TAILS);
        for (part, names) in names.chunks(together).enumerate() {
            let tails = parallel::map(names, together, |name| {
                let info = self.stat(vid, name, options)?;
                let start = info.size.saturating_sub(tail_bytes);
                // The name may lead to another file by now.
                let of_this = ReadOptions { if_file: Some(info.fid), ..*options };
                let bytes = self.get(vid, name, start..info.size, &of_this)?;
                Ok((info, bytes))
            });
            for (at, tail) in tails.into_iter().enumerate() {
                if sink(part * together + at, tail).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn stat(&self, vid: VolumeId, name: &[u8], options: &ReadOptions) -> Result<FileInfo, VolumeError> {
        let key = self.shared.key_of(vid, name)?;
        // A remembered head may be that of a file which another host has deleted.
        let consistency = match options.consistency {
            Consistency::AnyCopy => Consistency::AnyCopy,
            Consistency::Available | Consistency::Strict => Consistency::Strict,
        };
        let object = self.shared.objects.look_up(&key, &ReadOptions { consistency, ..*options }, 0)?;
        if consistency == Consistency::Strict {
            // The body of a short file is as new as this answer.
            object.is_fresh.store(true, Relaxed);
        }
        Ok(object.info.clone())
    }

    fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        options: &ReadOptions,
    ) -> Result<Vec<(Bytes, FileInfo)>, VolumeError> {
        Ok(self.list_page(vid, prefix, after, limit, options)?.files)
    }

    fn list_page(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        _options: &ReadOptions,
    ) -> Result<FilePage, VolumeError> {
        self.shared.volumes.check_volume(vid)?;
        self.shared.list(vid, prefix, after, limit)
    }

    fn hold_list(&self, vid: VolumeId, most: usize) -> Result<(), VolumeError> {
        self.shared.hold_list(vid, most)
    }

    fn release_lists(&self) {
        self.shared.requests.held.release();
    }

    fn delete(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<(), VolumeError> {
        let key = self.shared.key_of(vid, name)?;
        self.shared.delete(&key, fid)
    }

    fn settle(&self, vid: VolumeId, fid: FileId, _want: SettleChoice) -> Result<SettleOutcome, VolumeError> {
        self.shared.volumes.check_volume(vid)?;
        self.shared.settle(vid, fid)
    }

    fn put_batch(
        &self,
        vid: VolumeId,
        files: Vec<(Bytes, Bytes, PutOptions)>,
    ) -> Result<Vec<Result<FileInfo, VolumeError>>, VolumeError> {
        let bytes =
            files.iter().map(|(name, body, options)| name.len() + body.len() + options.metadata.len()).sum();
        refuse_large_batch(bytes)?;
        self.shared.volumes.check_volume(vid)?;
        let mut names: Vec<&Bytes> = files.iter().map(|(name, ..)| name).collect();
        names.sort_unstable();
        // The first of two equal names wins, so those are created one after the other.
        let is_distinct = names.windows(2).all(|pair| pair[0] != pair[1]);
        let threads = if is_distinct { self.shared.requests.connections } else { 1 };
        Ok(parallel::map(&files, threads, |(name, body, options)| self.put(vid, name, body.clone(), options)))
    }

    fn get_batch(
        &self,
        vid: VolumeId,
        names: &[Bytes],
        options: &ReadOptions,
    ) -> Result<Vec<Result<Bytes, VolumeError>>, VolumeError> {
        self.shared.volumes.check_volume(vid)?;
        let fronts = parallel::map(names, self.shared.requests.connections, |name| {
            let key = self.shared.key_of(vid, name)?;
            self.shared.objects.look_up(&key, options, u64::MAX).map(|object| (key, object))
        });
        let mut held = 0;
        let read = |(key, object): (String, Arc<objects::KnownObject>), held: &mut usize| {
            refuse_large_batch(held.saturating_add(object.info.size as usize))?;
            *held += object.info.size as usize;
            self.shared.objects.body_of(&key, &object, 0..object.info.size)
        };
        Ok(fronts.into_iter().map(|front| read(front?, &mut held)).collect())
    }

    fn delete_batch(
        &self,
        vid: VolumeId,
        files: &[(Bytes, FileId)],
    ) -> Result<Vec<Result<(), VolumeError>>, VolumeError> {
        refuse_large_batch(files.iter().map(|(name, _)| name.len()).sum())?;
        self.shared.volumes.check_volume(vid)?;
        Ok(parallel::map(files, self.shared.requests.connections, |(name, fid)| self.delete(vid, name, *fid)))
    }

    fn volume_stats(&self, vid: VolumeId) -> Result<VolumeStats, VolumeError> {
        self.shared.volumes.check_volume(vid)?;
        let mut stats = VolumeStats::default();
        let mut after: Option<Bytes> = None;
        loop {
            let page = self.shared.list(vid, b"", after.as_deref(), listing::PAGE)?;
            stats.files += page.files.len() as u64;
            stats.bytes += page.files.iter().map(|(_, info)| info.size).sum::<u64>();
            match page.files.into_iter().last() {
                Some((name, _)) if !page.is_last => after = Some(name),
                _ => return Ok(stats),
            }
        }
    }

    fn sweep(&self) -> Result<u64, VolumeError> {
        self.shared.volumes.sweep()
    }

    fn bundle(&self, vids: &[VolumeId]) -> Result<(), VolumeError> {
        cache::bundle::write(&self.shared.requests, vids)
    }

    fn reclaim(&self, vid: VolumeId) -> Result<(), VolumeError> {
        self.shared.volumes.check_volume(vid)
    }
}

#[cfg(test)]
pub(crate) mod tests;
