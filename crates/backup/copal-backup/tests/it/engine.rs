//! The backup layer on the real stack: volumes in the engine, the engine on objects, objects on a device in
//! memory. The device records every write, so that a power cut can be tried at each of them.

use crate::world::*;
use copal_backup::*;
use copal_data::LocalStore;
use copal_device::crash::{self, StateLimits};
use copal_device::fault::{CompletionOrder, FaultDevice, FaultOptions};
use copal_device::{Device, Image};
use copal_object::{MkfsOptions, OpenOptions};
use copal_volume::{ReadOptions, VolumeStore};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// A repository and the engine below it.
struct Stack {
    kv: copal_kv::Store,
    volumes: Arc<LocalStore>,
}

impl Stack {
    fn open(device: &Arc<dyn Device>) -> Stack {
        Stack::open_for(device, false)
    }
    fn open_for(device: &Arc<dyn Device>, read_only: bool) -> Stack {
        let options = OpenOptions { read_only, ..OpenOptions::default() };
        let (objects, _) = copal_object::Store::open(Arc::clone(device), &options).unwrap();
        let options = copal_kv::Options { memory_bytes: 8 * MIB, read_only, ..copal_kv::Options::default() };
        let kv = copal_kv::Store::open(objects, options).unwrap();
        let volumes = Arc::new(LocalStore::open(kv.clone()).unwrap());
        Stack { kv, volumes }
    }
    fn index(&self) -> IndexHome {
        IndexHome::Kv(self.kv.clone())
    }
    fn init(&self) -> Repository {
        Repository::init(self.volumes.clone(), self.index(), &insecure()).unwrap()
    }
    fn repository(&self) -> Repository {
        Repository::open(self.volumes.clone(), self.index(), &Unlock::Insecure).unwrap()
    }
    fn close(self, repository: Repository) {
        drop(repository);
        drop(self.volumes);
        self.kv.close().unwrap();
        self.kv.objects().close().unwrap();
    }
}

fn formatted(size: u64, record: bool) -> Arc<FaultDevice> {
    let options = |record| FaultOptions {
        seed: 1,
        order: CompletionOrder::Immediate,
        record,
        ..FaultOptions::default()
    };
    let device = FaultDevice::with_options(Image::zeroed(size), options(false));
    let dynamic: Arc<dyn Device> = device.clone();
    copal_object::Store::mkfs(&dynamic, &MkfsOptions::default()).unwrap();
    drop(dynamic);
    FaultDevice::with_options(device.image(), options(record))
}

fn noisy(seed: u64, size: usize) -> Disk {
    let mut disk = Disk::new(size);
    Random::new(seed).fill(&mut disk.bytes);
    disk
}

#[test]
fn a_repository_in_the_engine_can_be_reopened() {
    let device: Arc<dyn Device> = formatted(160 * MIB, false);
    let stack = Stack::open(&device);
    let repository = stack.init();
    let mut disk = noisy(1, 12 << 20);
    let first = back_up(&repository, "web", &disk, false);
    stack.close(repository);

    let before = disk.bytes.clone();
    disk.write(3 << 20, &[7; 100_000]);
    let stack = Stack::open(&device);
    let repository = stack.repository();
    let second = back_up(&repository, "web", &disk, true);
    assert_eq!(second.disks[0].mode, DiskMode::Incremental);
    let other = back_up(&repository, "copy", &disk, false);
    assert_eq!(other.counts.new_bytes, 0, "the index was kept");
    assert!(check(&repository).is_clean());
    repository.forget(&[first.snapshot]).unwrap();
    let pruned = prune(&repository);
    assert!(pruned.after_bytes < pruned.before_bytes);
    stack.close(repository);

    let stack = Stack::open(&device);
    let repository = stack.repository();
    assert_eq!(restore(&repository, second.snapshot), disk.bytes);
    assert_eq!(restore(&repository, other.snapshot), disk.bytes);
    assert!(try_restore(&repository, first.snapshot).is_err());
    // The index is a cache: after it is cleared, it is rebuilt from the packs, and everything is known again.
    let rebuilt = repository.repair_index(&Silent, &CancelFlag::new()).unwrap();
    assert!(rebuilt.packs > 0 && rebuilt.damaged_packs == 0, "{rebuilt:?}");
    assert_eq!(restore(&repository, second.snapshot), disk.bytes);
    assert_eq!(back_up(&repository, "third", &disk, false).counts.new_bytes, 0);
    disk.bytes = before;
    assert!(back_up(&repository, "fourth", &disk, false).counts.new_bytes > 0, "pruned chunks are not found");
    assert!(check(&repository).is_clean());
    stack.close(repository);
}

#[test]
fn a_damaged_index_stops_no_restore_and_is_rebuilt() {
    let device: Arc<dyn Device> = formatted(96 * MIB, false);
    let stack = Stack::open(&device);
    let repository = stack.init();
    let mut disk = noisy(2, 3 << 20);
    let summary = back_up(&repository, "web", &disk, false);
    drop(repository);
    for name in ["backup-packs", "backup-chunks"] {
        let keyspace = stack.kv.open_keyspace(name).unwrap().unwrap();
        let keys: Vec<_> = keyspace
            .iter((std::ops::Bound::Unbounded, std::ops::Bound::Unbounded))
            .map(|row| row.unwrap().0)
            .collect();
        for key in keys {
            keyspace.put(&key, b"no row", copal_kv::Durability::Device).unwrap();
        }
    }
    let repository = stack.repository();
    assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
    let report = check(&repository);
    assert!(report.damages.iter().any(|damage| damage.what.contains("index")), "{:?}", report.damages);
    disk.write(0, &[9; 100]);
    let error = try_back_up(&repository, "web", &disk, true).unwrap_err();
    assert_eq!(error.exit_code(), 20);
    assert!(error.to_string().contains("copal repair index"), "{error}");
    let error = repository.prune(&thorough(), &Silent, &CancelFlag::new()).unwrap_err();
    assert_eq!(error.exit_code(), 20);
    repository.repair_index(&Silent, &CancelFlag::new()).unwrap();
    assert!(check(&repository).is_clean());
    let second = back_up(&repository, "web", &disk, false);
    assert!(second.counts.new_bytes < 100_000, "the rest was found again");
    assert_eq!(restore(&repository, second.snapshot), disk.bytes);
    stack.close(repository);
}

/// Notes of damage outlive the process, and a read-only handle passes them on.
#[test]
fn damaged_chunks_are_stored_anew_by_a_later_process() {
    let device: Arc<dyn Device> = formatted(96 * MIB, false);
    let stack = Stack::open(&device);
    let repository = stack.init();
    let disk = noisy(4, 3 << 20);
    let first = back_up(&repository, "web", &disk, false);
    let (volume, _) = stack
        .volumes
        .list_volumes("", None, 100)
        .unwrap()
        .into_iter()
        .find(|(name, _)| name.starts_with("pds-"))
        .unwrap();
    let vid = stack.volumes.open_volume(&volume).unwrap();
    let (name, info) = stack.volumes.list(vid, b"", None, 1, &ReadOptions::default()).unwrap().remove(0);
    let mut body = stack.volumes.get(vid, &name, 0..info.size, &Default::default()).unwrap().to_vec();
    let middle = body.len() / 2;
    body[middle] ^= 1;
    stack.volumes.delete(vid, &name, info.fid).unwrap();
    stack.volumes.put(vid, &name, body.into(), &Default::default()).unwrap();
    stack.close(repository);

    let stack = Stack::open_for(&device, true);
    let repository = stack.repository();
    assert!(!check(&repository).is_clean());
    let lost = repository.lost_frames();
    assert_eq!(lost.len(), 1);
    drop(repository);
    drop(stack);

    let stack = Stack::open(&device);
    let repository = stack.repository();
    repository.note_lost(&lost).unwrap();
    stack.close(repository);

    let stack = Stack::open(&device);
    let repository = stack.repository();
    let again = back_up(&repository, "web", &disk, false);
    assert_eq!(again.counts.new_chunks, 1);
    // Footers hold no notes of damage: an index rebuilt from them must not lead back to a damaged frame.
    repository.repair_index(&Silent, &CancelFlag::new()).unwrap();
    assert!(restore(&repository, first.snapshot) == disk.bytes);
    let third = back_up(&repository, "mail", &disk, false);
    assert_eq!(third.counts.new_chunks, 0);
    assert!(restore(&repository, third.snapshot) == disk.bytes);
    repository.forget(&[first.snapshot, again.snapshot]).unwrap();
    prune(&repository);
    assert!(restore(&repository, third.snapshot) == disk.bytes);
    stack.close(repository);
}

#[test]
fn a_power_cut_at_any_moment_loses_no_snapshot_and_leaks_nothing() {
    let device = formatted(96 * MIB, true);
    let dynamic: Arc<dyn Device> = device.clone();
    let stack = Stack::open(&dynamic);
    let repository = stack.init();
    let begun = device.step();
    // Acknowledged snapshots with their time and bytes, and whether they were forgotten since.
    let mut published: Vec<(usize, SnapshotId, Vec<u8>)> = Vec::new();
    let mut doomed: Option<(usize, SnapshotId)> = None;
    let mut disk = noisy(3, 2 << 20);
    for round in 0..4 {
        let at = disk.bytes.len() / 5 * round;
        disk.write(at, &noisy(10 + round as u64, 150_000).bytes);
        let summary = back_up(&repository, "web", &disk, true);
        disk.changed.clear();
        published.push((device.step(), summary.snapshot, disk.bytes.clone()));
        if round == 2 {
            let first = published[0].1;
            doomed = Some((device.step(), first));
            repository.forget(&[first]).unwrap();
            prune(&repository);
        }
    }
    let ended = device.step();
    stack.close(repository);
    let doomed = doomed.unwrap();

    let history = device.history();
    let steps: Vec<_> = (0..40).map(|part| begun + (ended - begun) * part / 39).collect();
    let limits = StateLimits::default();
    for step in steps {
        for state in crash::states(&history, step, &limits).take(2) {
            let device = state.device();
            let stack = Stack::open(&device);
            let repository = stack.repository();
            let found: Vec<_> = repository.snapshots(None).unwrap().iter().map(|one| one.id).collect();
            for (acknowledged, id, bytes) in &published {
                let forgotten = *id == doomed.1 && step >= doomed.0;
                assert!(forgotten || *acknowledged > step || found.contains(id), "step {step} lost {id}");
                if found.contains(id) {
                    assert_eq!(restore(&repository, *id), *bytes, "step {step}");
                }
            }
            let report = check(&repository);
            assert!(report.is_clean(), "step {step}: {:?}", report.damages);
            prune(&repository);
            let again = PruneOptions { dry_run: true, ..thorough() };
            let left = repository.prune(&again, &Silent, &CancelFlag::new()).unwrap();
            assert_eq!((left.dead_frames, left.removed_packs), (0, 0), "step {step}");
            repository.forget(&found).unwrap();
            prune(&repository);
            assert_eq!(repository.stats().unwrap().packs, 0, "step {step}");
            stack.close(repository);
        }
    }
}
