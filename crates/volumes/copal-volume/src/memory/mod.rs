//! Volumes in memory: the simple twin of every real store.
//!
//! One lock around two ordered maps. The conformance suite compares other stores with it, and tests of the
//! layers above use it at the `VolumeStore` interface. It passes the same suite.
//!
//! Not here: durability, checksums on read, background work.

mod state;

use crate::clock::{Clock, SystemClock};
use crate::error::VolumeError;
use crate::ids::{FileId, VolumeId};
use crate::limits::{MAX_BATCH_BYTES, MAX_FILE_BYTES, check_metadata};
use crate::names::{check_file_name, split_parent, split_path};
use crate::store::{
    FileInfo, FileWriter, PutOptions, ReadOptions, RemoveMode, SettleChoice, SettleOutcome, StoreLimits,
    VolumeOptions, VolumeStats, VolumeStore,
};
use bytes::Bytes;
use parking_lot::Mutex;
use state::MemoryState;
use std::ops::Range;
use std::sync::Arc;

/// A store of volumes that ends with the process; cheap to clone, clones share files.
#[derive(Clone)]
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<MemoryState>>,
    is_replicated: bool,
    limits: StoreLimits,
}

impl Default for MemoryStore {
    fn default() -> MemoryStore {
        MemoryStore::new()
    }
}

impl MemoryStore {
    /// An empty store without limit, on the system clock.
    pub fn new() -> MemoryStore {
        MemoryStore::with_clock(Arc::new(SystemClock), 1)
    }

    /// An empty store on the given clock, drawing file ids as the given incarnation.
    pub fn with_clock(clock: Arc<dyn Clock>, incarnation: u64) -> MemoryStore {
        MemoryStore {
            clock,
            state: Arc::new(Mutex::new(MemoryState::new(incarnation))),
            is_replicated: false,
            limits: StoreLimits::default(),
        }
    }

    /// The same store, which claims to lie on several servers: for tests of the consequences.
    #[must_use]
    pub fn into_replicated(self) -> MemoryStore {
        MemoryStore { is_replicated: true, ..self }
    }

    /// The same store, which tells these limits: for tests of their consequences.
    #[must_use]
    pub fn with_limits(self, limits: StoreLimits) -> MemoryStore {
        MemoryStore { limits, ..self }
    }

    /// Sets a capacity: creates beyond `bytes` of live files answer `NoSpace`.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity_bytes = bytes;
    }
}

fn batch_too_large(bytes: usize) -> Result<(), VolumeError> {
    if bytes > MAX_BATCH_BYTES {
        return Err(VolumeError::TooLarge {
            what: "the batch",
            bytes: bytes as u64,
            limit: MAX_BATCH_BYTES as u64,
        });
    }
    Ok(())
}

impl VolumeStore for MemoryStore {
    fn now_ms(&self) -> u64 {
        self.clock.now_ms()
    }

    fn is_replicated(&self) -> bool {
        self.is_replicated
    }

    fn limits(&self) -> StoreLimits {
        self.limits
    }

    fn create_volume(
        &self,
        parent: &str,
        name: &str,
        options: &VolumeOptions,
    ) -> Result<VolumeId, VolumeError> {
        let parent = split_path(parent)?;
        crate::names::check_volume_name(name)?;
        self.state.lock().create_volume(&parent, name, options)
    }

    fn open_volume(&self, path: &str) -> Result<VolumeId, VolumeError> {
        let (parent, name) = split_parent(path)?;
        self.state.lock().resolve_child(&parent, name)
    }

    fn rename_volume(&self, from: &str, to: &str) -> Result<(), VolumeError> {
        let (from_parent, from_name) = split_parent(from)?;
        let (to_parent, to_name) = split_parent(to)?;
        self.state.lock().rename_volume((&from_parent, from_name), (&to_parent, to_name))
    }

    fn list_volumes(
        &self,
        parent: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<(String, VolumeId)>, VolumeError> {
        self.state.lock().list_volumes(&split_path(parent)?, after, limit)
    }

    fn remove_volume(&self, vid: VolumeId, how: RemoveMode) -> Result<(), VolumeError> {
        self.state.lock().remove_volume(vid, how)
    }

    fn put(
        &self,
        vid: VolumeId,
        name: &[u8],
        body: Bytes,
        options: &PutOptions,
    ) -> Result<FileInfo, VolumeError> {
        check_file_name(name)?;
        check_metadata(&options.metadata)?;
        let now_ms = self.clock.now_ms();
        let mut state = self.state.lock();
        let fid = state.ids.draw_file(now_ms);
        state.create(now_ms, vid, name, fid, body, &options.metadata)
    }

    fn writer(
        &self,
        vid: VolumeId,
        name: &[u8],
        options: &PutOptions,
    ) -> Result<Box<dyn FileWriter>, VolumeError> {
        check_file_name(name)?;
        check_metadata(&options.metadata)?;
        let mut state = self.state.lock();
        state.volume(vid)?;
        let fid = state.ids.draw_file(self.clock.now_ms());
        Ok(Box::new(MemoryWriter {
            store: self.clone(),
            vid,
            name: name.to_vec(),
            fid,
            metadata: options.metadata.clone(),
            body: Vec::new(),
            failed: None,
        }))
    }

    fn get(
        &self,
        vid: VolumeId,
        name: &[u8],
        range: Range<u64>,
        options: &ReadOptions,
    ) -> Result<Bytes, VolumeError> {
        check_file_name(name)?;
        let state = self.state.lock();
        let file = state.file(vid, name, options)?;
        let end = range.end.min(file.info.size);
        let start = range.start.min(end);
        Ok(file.body.slice(start as usize..end as usize))
    }

    fn stat(&self, vid: VolumeId, name: &[u8], options: &ReadOptions) -> Result<FileInfo, VolumeError> {
        check_file_name(name)?;
        Ok(self.state.lock().file(vid, name, options)?.info.clone())
    }

    fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        _options: &ReadOptions,
    ) -> Result<Vec<(Bytes, FileInfo)>, VolumeError> {
        self.state.lock().list(vid, prefix, after, limit)
    }

    fn delete(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Result<(), VolumeError> {
        check_file_name(name)?;
        self.state.lock().delete(vid, name, fid)
    }

    fn settle(&self, vid: VolumeId, fid: FileId, _want: SettleChoice) -> Result<SettleOutcome, VolumeError> {
        let state = self.state.lock();
        let volume = state.volume(vid)?;
        Ok(if volume.files.values().any(|file| file.info.fid == fid) {
            SettleOutcome::Committed
        } else {
            SettleOutcome::Aborted
        })
    }

    fn put_batch(
        &self,
        vid: VolumeId,
        files: Vec<(Bytes, Bytes, PutOptions)>,
    ) -> Result<Vec<Result<FileInfo, VolumeError>>, VolumeError> {
        let bytes =
            files.iter().map(|(name, body, options)| name.len() + body.len() + options.metadata.len()).sum();
        batch_too_large(bytes)?;
        self.state.lock().volume(vid)?;
        Ok(files.into_iter().map(|(name, body, options)| self.put(vid, &name, body, &options)).collect())
    }

    fn get_batch(
        &self,
        vid: VolumeId,
        names: &[Bytes],
        options: &ReadOptions,
    ) -> Result<Vec<Result<Bytes, VolumeError>>, VolumeError> {
        self.state.lock().volume(vid)?;
        let mut held = 0;
        Ok(names
            .iter()
            .map(|name| {
                let body = self.get(vid, name, 0..u64::MAX, options)?;
                batch_too_large(held + body.len())?;
                held += body.len();
                Ok(body)
            })
            .collect())
    }

    fn delete_batch(
        &self,
        vid: VolumeId,
        files: &[(Bytes, FileId)],
    ) -> Result<Vec<Result<(), VolumeError>>, VolumeError> {
        batch_too_large(files.iter().map(|(name, _)| name.len()).sum())?;
        self.state.lock().volume(vid)?;
        Ok(files.iter().map(|(name, fid)| self.delete(vid, name, *fid)).collect())
    }

    fn volume_stats(&self, vid: VolumeId) -> Result<VolumeStats, VolumeError> {
        Ok(self.state.lock().volume(vid)?.stats())
    }

    fn reclaim(&self, vid: VolumeId) -> Result<(), VolumeError> {
        self.state.lock().volume(vid)?;
        Ok(())
    }
}

struct MemoryWriter {
    store: MemoryStore,
    vid: VolumeId,
    name: Vec<u8>,
    fid: FileId,
    metadata: Bytes,
    body: Vec<u8>,
    failed: Option<VolumeError>,
}

impl FileWriter for MemoryWriter {
    fn append(&mut self, data: Bytes) -> Result<(), VolumeError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let bytes = self.body.len() as u64 + data.len() as u64;
        let fits = if bytes > MAX_FILE_BYTES {
            Err(VolumeError::TooLarge { what: "the file", bytes, limit: MAX_FILE_BYTES })
        } else {
            self.store.state.lock().room_for(self.vid, bytes)
        };
        if let Err(error) = fits {
            self.failed = Some(error.clone());
            return Err(error);
        }
        self.body.extend_from_slice(&data);
        Ok(())
    }

    fn commit(self: Box<Self>) -> Result<FileInfo, VolumeError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let now_ms = self.store.clock.now_ms();
        let mut state = self.store.state.lock();
        state.create(now_ms, self.vid, &self.name, self.fid, Bytes::from(self.body), &self.metadata)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::conformance;

    #[test]
    fn the_twin_passes_its_own_suite() {
        conformance::run(&|| Box::new(MemoryStore::new()));
    }

    #[test]
    fn a_full_store_refuses_and_keeps_its_files() {
        let store = MemoryStore::new();
        let vid = store.create_volume("", "v", &VolumeOptions::default()).expect("create a volume");
        store.set_capacity(10);
        let put = |name: &[u8], len| {
            let body = Bytes::from(vec![1; len]);
            store.put(vid, name, body, &PutOptions::default())
        };
        let first = put(b"a", 8).expect("fits");
        assert_eq!(put(b"b", 3), Err(VolumeError::NoSpace));
        store.delete(vid, b"a", first.fid).expect("delete");
        put(b"b", 10).expect("fits again");
    }

    #[test]
    fn a_clock_that_goes_back_does_not_take_creation_times_along() {
        let clock = Arc::new(ManualClock::new(5_000));
        let store = MemoryStore::with_clock(clock.clone(), 9);
        let vid = store.create_volume("", "v", &VolumeOptions::default()).expect("create a volume");
        let put = |name: &[u8]| {
            let body = Bytes::from_static(b"x");
            store.put(vid, name, body, &PutOptions::default())
        };
        let before = put(b"a").expect("put");
        clock.set(1_000);
        let after = put(b"b").expect("put");
        assert_eq!(before.created_ms, 5_000);
        assert_eq!(after.created_ms, 5_000);
        assert!(after.fid > before.fid);
    }
}
