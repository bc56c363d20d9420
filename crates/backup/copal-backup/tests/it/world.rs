//! Disks, targets and repositories for tests: seeded, small, without files.

use copal_backup::*;
use copal_data::{LocalOptions, LocalStore};
use copal_device::MemoryDevice;
use copal_disk::source::{
    ChangeKind, ChangedExtent, ChangedExtents, Extent, ExtentKind, Source, SourceError,
};
use copal_disk::target::{Target, TargetError};
use copal_object::{MkfsOptions, OpenOptions};
pub(crate) use copal_testkit::Random;
use copal_volume::{Clock, ReadOptions, VolumeStore};
use std::sync::{Arc, Mutex};

pub(crate) const BLOCK: usize = 4096;
const MIB: u64 = 1 << 20;

/// A disk in memory that records the writes since the last backup.
#[derive(Clone)]
pub(crate) struct Disk {
    pub(crate) bytes: Vec<u8>,
    pub(crate) changed: Vec<ChangedExtent>,
    /// Whether it reports its holes, or reports everything as data.
    pub(crate) reports_holes: bool,
}

impl Disk {
    pub(crate) fn new(size: usize) -> Disk {
        Disk { bytes: vec![0; size], changed: Vec::new(), reports_holes: true }
    }
    pub(crate) fn write(&mut self, at: usize, data: &[u8]) {
        let end = (at + data.len()).min(self.bytes.len());
        if at < end {
            self.bytes[at..end].copy_from_slice(&data[..end - at]);
            self.note(at, end - at, ChangeKind::Dirty);
        }
    }
    pub(crate) fn discard(&mut self, at: usize, length: usize) {
        let end = (at + length).min(self.bytes.len());
        if at < end {
            self.bytes[at..end].fill(0);
            self.note(at, end - at, ChangeKind::Zero);
        }
    }
    fn note(&mut self, at: usize, length: usize, kind: ChangeKind) {
        // A later write replaces a discarded range, an earlier one must not: keep the list exact.
        if kind == ChangeKind::Zero {
            let (start, end) = (at as u64, (at + length) as u64);
            let mut kept = Vec::new();
            for old in self.changed.drain(..) {
                let old_end = old.offset + old.length;
                for (from, to) in [(old.offset, old_end.min(start)), (old.offset.max(end), old_end)] {
                    if from < to {
                        kept.push(ChangedExtent { offset: from, length: to - from, kind: old.kind });
                    }
                }
            }
            self.changed = kept;
        }
        self.changed.push(ChangedExtent { offset: at as u64, length: length as u64, kind });
    }
    pub(crate) fn changes(&self) -> ChangedExtents {
        ChangedExtents {
            size_bytes: self.bytes.len() as u64,
            extents: self.changed.clone(),
            ..ChangedExtents::default()
        }
    }
    pub(crate) fn source(&self) -> Box<MemorySource> {
        Box::new(MemorySource { disk: self.clone(), stream: false, reads: Arc::default() })
    }
}

/// Reads a [`Disk`].
pub(crate) struct MemorySource {
    pub(crate) disk: Disk,
    pub(crate) stream: bool,
    pub(crate) reads: Arc<Mutex<u64>>,
}

impl Source for MemorySource {
    fn size_bytes(&self) -> Option<u64> {
        (!self.stream).then_some(self.disk.bytes.len() as u64)
    }
    fn extent_at(&self, offset: u64) -> std::result::Result<Extent, SourceError> {
        let bytes = &self.disk.bytes;
        if !self.disk.reports_holes {
            return Ok(Extent { offset, length: bytes.len() as u64 - offset, kind: ExtentKind::Data });
        }
        let zero_at = |block: usize| {
            bytes[block * BLOCK..((block + 1) * BLOCK).min(bytes.len())].iter().all(|&b| b == 0)
        };
        let first = offset as usize / BLOCK;
        let zero = zero_at(first);
        let mut last = first + 1;
        while last * BLOCK < bytes.len() && zero_at(last) == zero {
            last += 1;
        }
        let start = (first * BLOCK) as u64;
        let end = (last * BLOCK).min(bytes.len()) as u64;
        let kind = if zero { ExtentKind::Zero } else { ExtentKind::Data };
        Ok(Extent { offset: start, length: end - start, kind })
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<usize, SourceError> {
        let rest = &self.disk.bytes[(offset as usize).min(self.disk.bytes.len())..];
        let length = rest.len().min(buf.len());
        buf[..length].copy_from_slice(&rest[..length]);
        *self.reads.lock().unwrap() += length as u64;
        Ok(length)
    }
}

/// Collects a restored disk, and asserts that every byte is covered exactly once.
#[derive(Default)]
pub(crate) struct MemoryTarget {
    state: Mutex<Vec<(u8, bool)>>,
    pub(crate) written: Mutex<u64>,
    pub(crate) ordered: bool,
    next: Mutex<u64>,
}

impl MemoryTarget {
    pub(crate) fn ordered() -> MemoryTarget {
        MemoryTarget { ordered: true, ..MemoryTarget::default() }
    }
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let state = self.state.lock().unwrap();
        assert!(state.iter().all(|(_, covered)| *covered), "every byte is covered");
        state.iter().map(|(byte, _)| *byte).collect()
    }
    fn cover(&self, offset: u64, data: &[u8]) {
        let mut next = self.next.lock().unwrap();
        assert!(!self.ordered || *next == offset, "an ordered target is written in order");
        *next = offset + data.len() as u64;
        let mut state = self.state.lock().unwrap();
        for (cell, &byte) in state[offset as usize..][..data.len()].iter_mut().zip(data) {
            assert!(!cell.1, "no byte is covered twice");
            *cell = (byte, true);
        }
    }
}

impl Target for MemoryTarget {
    fn is_ordered(&self) -> bool {
        self.ordered
    }
    fn begin(&self, size_bytes: u64) -> std::result::Result<(), TargetError> {
        *self.state.lock().unwrap() = vec![(0xAA, false); size_bytes as usize];
        Ok(())
    }
    fn write_at(&self, offset: u64, data: &[u8]) -> std::result::Result<(), TargetError> {
        *self.written.lock().unwrap() += data.len() as u64;
        self.cover(offset, data);
        Ok(())
    }
    fn hole(&self, offset: u64, length: u64) -> std::result::Result<(), TargetError> {
        self.cover(offset, &vec![0; length as usize]);
        Ok(())
    }
    fn finish(&self) -> std::result::Result<(), TargetError> {
        Ok(())
    }
}

/// An engine on a device in memory, which grows as it must.
pub(crate) fn engine_in_memory() -> copal_kv::Store {
    let device = MemoryDevice::new(96 * MIB);
    copal_object::Store::mkfs(&device, &MkfsOptions::default()).unwrap();
    let (objects, _) = copal_object::Store::open(device, &OpenOptions::default()).unwrap();
    let options = copal_kv::Options { memory_bytes: 8 * MIB, ..copal_kv::Options::default() };
    copal_kv::Store::open(objects, options).unwrap()
}

/// A store of volumes as a program has it: in the engine, the engine on objects, objects on a device in memory.
pub(crate) fn embedded_store() -> LocalStore {
    LocalStore::open(engine_in_memory()).unwrap()
}

/// The same, with the clock of the test.
pub(crate) fn embedded_store_at(clock: Arc<dyn Clock>) -> LocalStore {
    let options = LocalOptions { clock: Some(clock), incarnation: Some(1) };
    LocalStore::open_with(engine_in_memory(), options).unwrap()
}

/// Options without a password, since the password hash is slow on purpose.
pub(crate) fn insecure() -> InitOptions {
    InitOptions::new(Unlock::Insecure)
}

/// Both layouts; most tests hold for both.
pub(crate) const LAYOUTS: [Layout; 2] = [Layout::Solo, FLEET];

pub(crate) const FLEET: Layout = Layout::Fleet { popular_millionths: Layout::DEFAULT_POPULAR_MILLIONTHS };

pub(crate) fn init<S: VolumeStore + Clone + 'static>(store: &S) -> Repository {
    init_as(store, Layout::Solo)
}

pub(crate) fn init_as<S: VolumeStore + Clone + 'static>(store: &S, layout: Layout) -> Repository {
    let options = InitOptions { layout, ..insecure() };
    Repository::init(Arc::new(store.clone()), IndexHome::Memory, &options).unwrap()
}

pub(crate) fn open<S: VolumeStore + Clone + 'static>(store: &S) -> Repository {
    Repository::open(Arc::new(store.clone()), IndexHome::Memory, &Unlock::Insecure).unwrap()
}

/// Backs up one disk named sda.
pub(crate) fn back_up(repository: &Repository, vm: &str, disk: &Disk, changed: bool) -> BackupSummary {
    try_back_up(repository, vm, disk, changed).unwrap()
}

pub(crate) fn try_back_up(
    repository: &Repository,
    vm: &str,
    disk: &Disk,
    changed: bool,
) -> Result<BackupSummary> {
    let request = request_since(repository, vm, disk, changed);
    repository.backup(request, &Silent, &CancelFlag::new())
}

/// A request whose changes are those since the VM's newest snapshot.
pub(crate) fn request_since(repository: &Repository, vm: &str, disk: &Disk, changed: bool) -> BackupRequest {
    let mut request = request(vm, disk, changed);
    if let Some(changed) = &mut request.disks[0].changed {
        changed.base = newest(repository, vm);
    }
    request
}

/// The id of a VM's newest snapshot: the base of a list of changes since the last backup.
pub(crate) fn newest(repository: &Repository, vm: &str) -> Option<String> {
    let mut snapshots = repository.snapshots(None).unwrap().into_iter();
    let newest = snapshots.rfind(|snapshot| snapshot.vm.name == vm);
    newest.map(|snapshot| snapshot.id.to_string())
}

pub(crate) fn request(vm: &str, disk: &Disk, changed: bool) -> BackupRequest {
    let source =
        DiskSource { changed: changed.then(|| disk.changes()), ..DiskSource::new("sda", disk.source()) };
    let mut request = BackupRequest::new(vm, vec![source]);
    request.memory_bytes = 24 << 20;
    request
}

pub(crate) fn restore(repository: &Repository, snapshot: SnapshotId) -> Vec<u8> {
    try_restore(repository, snapshot).unwrap()
}

pub(crate) fn try_restore(repository: &Repository, snapshot: SnapshotId) -> Result<Vec<u8>> {
    let target = MemoryTarget::default();
    let request = RestoreRequest { fetches: 3, ..RestoreRequest::new(snapshot) };
    repository.restore(&request, &target, &Silent, &CancelFlag::new())?;
    Ok(target.bytes())
}

pub(crate) fn check(repository: &Repository) -> CheckReport {
    repository.check(ReadData::All, &Silent, &CancelFlag::new()).unwrap()
}

/// A prune that leaves nothing unused, at any cost.
pub(crate) fn thorough() -> PruneOptions {
    PruneOptions { method: FreeMethod::Exact, max_unused_percent: 0, ..PruneOptions::default() }
}

pub(crate) fn prune(repository: &Repository) -> PruneSummary {
    repository.prune(&thorough(), &Silent, &CancelFlag::new()).unwrap()
}

/// Every file of the store: volume, name, bytes.
pub(crate) fn files(store: &impl VolumeStore) -> Vec<(String, Vec<u8>, Vec<u8>)> {
    let mut files = Vec::new();
    for (volume, vid) in store.list_volumes("", None, 1000).unwrap() {
        for (name, info) in store.list(vid, b"", None, 100_000, &ReadOptions::default()).unwrap() {
            let body = store.get(vid, &name, 0..info.size, &Default::default()).unwrap();
            files.push((volume.clone(), name.to_vec(), body.to_vec()));
        }
    }
    files
}

/// Another store with the same volumes and files.
pub(crate) fn copy(store: &impl VolumeStore) -> LocalStore {
    let copy = embedded_store();
    copy_into(store, &copy, |_, _, _| true);
    copy
}

/// Copies volumes and files; `change` may alter a body (of a volume, of this name) or leave it out.
pub(crate) fn copy_into(
    from: &impl VolumeStore,
    to: &impl VolumeStore,
    mut change: impl FnMut(&str, &[u8], &mut Vec<u8>) -> bool,
) {
    for (volume, _) in from.list_volumes("", None, 1000).unwrap() {
        to.create_volume("", &volume, &Default::default()).unwrap();
    }
    for (volume, name, mut body) in files(from) {
        if change(&volume, &name, &mut body) {
            let vid = to.open_volume(&volume).unwrap();
            to.put(vid, &name, body.into(), &Default::default()).unwrap();
        }
    }
}
