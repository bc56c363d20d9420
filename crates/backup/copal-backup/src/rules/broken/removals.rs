//! A prune dies in a cluster while a delete has reached one server that is down; the delete takes effect when
//! the server is back.

use super::{Flaw, with};
use crate::world::*;
use crate::{IndexHome, InitOptions, Layout, Repository, Unlock};
use bytes::Bytes;
use copal_volume::{
    FileId, FileInfo, FileWriter, MemoryStore, PutOptions, ReadOptions, RemoveMode, SettleChoice,
    SettleOutcome, StoreLimits, VolumeError, VolumeId, VolumeOptions, VolumeStats, VolumeStore,
};
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// A store whose deletes, from some moment on, are reported as failed and take effect later.
#[derive(Clone)]
pub(super) struct LateStore {
    inner: MemoryStore,
    late: Arc<Mutex<PendingDeletes>>,
}

#[derive(Default)]
struct PendingDeletes {
    is_dying: bool,
    deletes: Vec<(VolumeId, Vec<u8>, FileId)>,
}

impl LateStore {
    pub(super) fn new() -> LateStore {
        LateStore { inner: MemoryStore::new(), late: Arc::default() }
    }

    pub(super) fn die(&self) {
        self.late.lock().unwrap().is_dying = true;
    }

    pub(super) fn go_on(&self) {
        self.late.lock().unwrap().is_dying = false;
    }

    /// The server is back: the pending deletes take effect.
    pub(super) fn apply_pending(&self) -> usize {
        let deletes = std::mem::take(&mut self.late.lock().unwrap().deletes);
        for (vid, name, fid) in &deletes {
            self.inner.delete(*vid, name, *fid).unwrap();
        }
        deletes.len()
    }

    pub(super) fn open(&self) -> Repository {
        Repository::open(Arc::new(self.clone()), IndexHome::Memory, &Unlock::Insecure).unwrap()
    }
}

type Done<T> = Result<T, VolumeError>;

impl VolumeStore for LateStore {
    fn now_ms(&self) -> u64 {
        self.inner.now_ms()
    }
    fn limits(&self) -> StoreLimits {
        self.inner.limits()
    }
    fn is_replicated(&self) -> bool {
        true
    }
    fn create_volume(&self, parent: &str, name: &str, options: &VolumeOptions) -> Done<VolumeId> {
        self.inner.create_volume(parent, name, options)
    }
    fn open_volume(&self, path: &str) -> Done<VolumeId> {
        self.inner.open_volume(path)
    }
    fn rename_volume(&self, from: &str, to: &str) -> Done<()> {
        self.inner.rename_volume(from, to)
    }
    fn list_volumes(&self, parent: &str, after: Option<&str>, limit: usize) -> Done<Vec<(String, VolumeId)>> {
        self.inner.list_volumes(parent, after, limit)
    }
    fn remove_volume(&self, vid: VolumeId, how: RemoveMode) -> Done<()> {
        self.inner.remove_volume(vid, how)
    }
    fn put(&self, vid: VolumeId, name: &[u8], body: Bytes, options: &PutOptions) -> Done<FileInfo> {
        self.inner.put(vid, name, body, options)
    }
    fn writer(&self, vid: VolumeId, name: &[u8], options: &PutOptions) -> Done<Box<dyn FileWriter>> {
        self.inner.writer(vid, name, options)
    }
    fn get(&self, vid: VolumeId, name: &[u8], range: Range<u64>, options: &ReadOptions) -> Done<Bytes> {
        self.inner.get(vid, name, range, options)
    }
    fn stat(&self, vid: VolumeId, name: &[u8], options: &ReadOptions) -> Done<FileInfo> {
        self.inner.stat(vid, name, options)
    }
    fn list(
        &self,
        vid: VolumeId,
        prefix: &[u8],
        after: Option<&[u8]>,
        limit: usize,
        options: &ReadOptions,
    ) -> Done<Vec<(Bytes, FileInfo)>> {
        self.inner.list(vid, prefix, after, limit, options)
    }
    fn delete(&self, vid: VolumeId, name: &[u8], fid: FileId) -> Done<()> {
        let mut late = self.late.lock().unwrap();
        if !late.is_dying {
            return self.inner.delete(vid, name, fid);
        }
        late.deletes.push((vid, name.to_vec(), fid));
        Err(VolumeError::Unavailable { reason: "the process died".to_owned() })
    }
    fn settle(&self, vid: VolumeId, fid: FileId, want: SettleChoice) -> Done<SettleOutcome> {
        self.inner.settle(vid, fid, want)
    }
    fn put_batch(&self, vid: VolumeId, files: Vec<(Bytes, Bytes, PutOptions)>) -> Done<Vec<Done<FileInfo>>> {
        self.inner.put_batch(vid, files)
    }
    fn get_batch(&self, vid: VolumeId, names: &[Bytes], options: &ReadOptions) -> Done<Vec<Done<Bytes>>> {
        self.inner.get_batch(vid, names, options)
    }
    fn delete_batch(&self, vid: VolumeId, files: &[(Bytes, FileId)]) -> Done<Vec<Done<()>>> {
        Ok(files.iter().map(|(name, fid)| self.delete(vid, name, *fid)).collect())
    }
    fn volume_stats(&self, vid: VolumeId) -> Done<VolumeStats> {
        self.inner.volume_stats(vid)
    }
    fn reclaim(&self, vid: VolumeId) -> Done<()> {
        self.inner.reclaim(vid)
    }
}

fn text_disk(seed: u64) -> Disk {
    let mut disk = Disk::new(2 << 20);
    Random::new(seed).text(&mut disk.bytes);
    disk
}

/// Whether a backup after a dead prune is complete once the prune's deletes take effect.
fn survives(flaw: &'static [Flaw], layout: Layout) -> bool {
    let store = LateStore::new();
    let disk = text_disk(1);
    {
        let options = InitOptions { layout, ..insecure() };
        let repository = Repository::init(Arc::new(store.clone()), IndexHome::Memory, &options).unwrap();
        let gone = back_up(&repository, "web", &disk, false);
        back_up(&repository, "db", &text_disk(2), false);
        repository.forget(&[gone.snapshot]).unwrap();
        store.die();
        let pruned = with(flaw, || repository.prune(&thorough(), &crate::Silent, &crate::CancelFlag::new()));
        assert!(pruned.is_err());
        store.go_on();
    }
    // The same disk again: its chunks are in the pack that is about to be removed.
    let repository = store.open();
    let kept = back_up(&repository, "web", &disk, false);
    drop(repository);
    assert!(store.apply_pending() > 0, "no delete was pending");
    let repository = store.open();
    let is_whole = try_restore(&repository, kept.snapshot).is_ok_and(|bytes| bytes == disk.bytes);
    // The list is done, so it was deleted.
    let catalog = store.inner.list_volumes("", None, 100).unwrap();
    let (_, catalog) = catalog.iter().find(|(name, _)| name.starts_with("cat-")).unwrap();
    let lists = store.inner.list(*catalog, b"r.", None, 10, &ReadOptions::default()).unwrap();
    assert!(lists.is_empty(), "{lists:?}");
    is_whole
}

#[test]
fn a_delete_that_takes_effect_late_removes_no_later_chunk() {
    for layout in LAYOUTS {
        assert!(survives(&[], layout), "{layout:?}");
        assert!(!survives(&[Flaw::RemovesUnlisted], layout), "{layout:?}: the flaw is not noticed");
    }
}

/// A list was in flight when its prune died, and appeared after others had written: it belongs to an earlier
/// epoch.
#[test]
fn a_list_of_an_earlier_epoch_removes_nothing() {
    let store = LateStore::new();
    let repository = Repository::init(Arc::new(store.clone()), IndexHome::Memory, &insecure()).unwrap();
    let disk = text_disk(1);
    let gone = back_up(&repository, "web", &disk, false);
    repository.forget(&[gone.snapshot]).unwrap();
    store.die();
    let pruned = repository.prune(&thorough(), &crate::Silent, &crate::CancelFlag::new());
    assert!(pruned.is_err());
    store.go_on();
    store.late.lock().unwrap().deletes.clear();
    drop(repository);
    // The next writer does not see the list yet.
    let volumes = store.inner.list_volumes("", None, 100).unwrap();
    let (_, catalog) = volumes.iter().find(|(name, _)| name.starts_with("cat-")).unwrap();
    let lists = store.inner.list(*catalog, b"r.", None, 10, &ReadOptions::default()).unwrap();
    let [(name, info)] = &lists[..] else {
        panic!("{lists:?}");
    };
    let read = ReadOptions::default();
    let body = store.inner.get(*catalog, name, 0..info.size, &read).unwrap();
    store.inner.delete(*catalog, name, info.fid).unwrap();
    let kept = back_up(&store.open(), "web", &disk, false);
    store.inner.put(*catalog, name, body, &PutOptions::default()).unwrap();
    back_up(&store.open(), "db", &text_disk(2), false);
    assert_eq!(restore(&store.open(), kept.snapshot), disk.bytes);
    assert!(store.inner.list(*catalog, b"r.", None, 10, &ReadOptions::default()).unwrap().is_empty());
}
