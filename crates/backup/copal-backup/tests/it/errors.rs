//! Failures are reported in one sentence with their exit code, and lose nothing.

use crate::world::*;
use copal_backup::*;
use copal_disk::source::{Extent, ExtentKind, Source, SourceError};
use copal_volume::MemoryStore;
use std::sync::Arc;
use zeroize::Zeroizing;

fn password(text: &str) -> Unlock {
    Unlock::Password(Zeroizing::new(text.into()))
}

#[test]
fn a_wrong_password_and_a_missing_repository_have_different_errors() {
    let store = Arc::new(embedded_store());
    let open = |unlock: Unlock| Repository::open(store.clone(), IndexHome::Memory, &unlock).map(|_| ());
    assert_eq!(open(Unlock::Insecure).unwrap_err().exit_code(), 10);
    assert!(Repository::find(store.clone()).unwrap().is_none());
    let options = InitOptions { argon2_memory_kib: 64, ..InitOptions::new(password("right")) };
    Repository::init(store.clone(), IndexHome::Memory, &options).unwrap();
    assert!(Repository::find(store.clone()).unwrap().unwrap().needs_password().unwrap());
    open(password("right")).unwrap();
    let wrong = open(password("wrong")).unwrap_err();
    assert_eq!((wrong.exit_code(), wrong.code()), (12, "wrong_password"));
    assert_eq!(open(Unlock::Insecure).unwrap_err().code(), "password_needed");
    let again = Repository::init(store.clone(), IndexHome::Memory, &options).map(|_| ()).unwrap_err();
    assert_eq!(again.code(), "repository_exists");
}

#[test]
fn a_full_store_fails_cleanly_and_the_next_backup_uses_the_stored_data() {
    let store = MemoryStore::new();
    let repository = init(&store);
    let mut dice = Random::new(1);
    let mut small = Disk::new(3 << 20);
    dice.fill(&mut small.bytes);
    let kept = back_up(&repository, "web", &small, false);
    let mut disk = Disk::new(40 << 20);
    dice.fill(&mut disk.bytes);
    store.set_capacity(30 << 20);
    let error = try_back_up(&repository, "big", &disk, false).unwrap_err();
    assert_eq!(error.code(), "no_space");
    assert_eq!(restore(&repository, kept.snapshot), small.bytes);
    assert!(check(&repository).is_clean());
    store.set_capacity(1 << 30);
    let summary = back_up(&repository, "big", &disk, false);
    assert!(summary.counts.new_bytes < 30 << 20, "the packs that were finished are used");
    assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
}

/// Cancels when byte `at` is read, or fails there.
struct Tripwire {
    inner: Box<MemorySource>,
    at: u64,
    cancel: Option<CancelFlag>,
}

impl Source for Tripwire {
    fn size_bytes(&self) -> Option<u64> {
        self.inner.size_bytes()
    }
    fn extent_at(&self, offset: u64) -> std::result::Result<Extent, SourceError> {
        Ok(Extent { offset, length: 1 << 30, kind: ExtentKind::Data })
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<usize, SourceError> {
        // The end is read before anything else.
        if offset >= self.at && buf.len() > 512 {
            match &self.cancel {
                Some(flag) => flag.cancel(),
                None => {
                    return Err(SourceError::Unusable { reason: "the cable was cut".into() });
                }
            }
        }
        self.inner.read_at(offset, buf)
    }
}

#[test]
fn an_interrupted_backup_publishes_nothing_and_keeps_its_packs() {
    let store = embedded_store();
    let repository = init(&store);
    let mut disk = Disk::new(30 << 20);
    Random::new(2).fill(&mut disk.bytes);
    let run = |cancel: Option<CancelFlag>| {
        let flag = cancel.clone().unwrap_or_default();
        let source = Tripwire { inner: disk.source(), at: 24 << 20, cancel };
        let disks = vec![DiskSource::new("sda", Box::new(source))];
        repository.backup(BackupRequest::new("web", disks), &Silent, &flag).unwrap_err()
    };
    let cancelled = run(Some(CancelFlag::new()));
    assert_eq!(cancelled.exit_code(), 130);
    assert!(
        matches!(cancelled, Error::Cancelled { kept_bytes: Some(kept) } if kept >= 20 << 20),
        "{cancelled}"
    );
    let broken = run(None);
    assert_eq!(broken.exit_code(), 3);
    assert!(broken.to_string().contains("the cable was cut"), "{broken}");
    assert!(repository.snapshots(None).unwrap().is_empty());
    assert!(check(&repository).is_clean());
    let summary = back_up(&repository, "web", &disk, false);
    assert!(summary.counts.new_bytes <= 6 << 20, "{}", summary.counts.new_bytes);
    assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
}

/// Symptom: an interrupted restore, check or prune reported 0 bytes kept for the next backup. Cause: all
/// operations shared one sentence, with a number that only a backup has. Fix: other operations have no such
/// number, and their sentence does not mention one.
#[test]
fn an_interrupted_restore_does_not_mention_the_next_backup() {
    let repository = init(&embedded_store());
    let mut disk = Disk::new(3 << 20);
    Random::new(10).fill(&mut disk.bytes);
    let gone = back_up(&repository, "web", &disk, false).snapshot;
    disk.write(0, &[1; 9000]);
    let snapshot = back_up(&repository, "web", &disk, true).snapshot;
    repository.forget(&[gone]).unwrap();
    let cancel = CancelFlag::new();
    cancel.cancel();
    let target = MemoryTarget::default();
    let request = RestoreRequest::new(snapshot);
    let restored = repository.restore(&request, &target, &Silent, &cancel).map(drop);
    let checked = repository.check(ReadData::All, &Silent, &cancel).map(drop);
    let verified = repository.verify(snapshot, &Silent, &cancel).map(drop);
    let pruned = repository.prune(&thorough(), &Silent, &cancel).map(drop);
    for outcome in [restored, checked, verified, pruned] {
        let error = outcome.unwrap_err();
        assert_eq!(error.exit_code(), 130, "{error}");
        let sentence = error.to_string();
        assert!(!sentence.contains("next backup") && !sentence.contains("bytes"), "{sentence}");
        assert!(sentence.contains("again"), "{sentence}");
    }
}

#[test]
fn invalid_requests_are_refused_before_anything_is_stored() {
    let store = embedded_store();
    let repository = init(&store);
    let before = files(&store).len();
    let disk = Disk::new(1 << 20);
    let refuse = |vm: &str, names: &[&str]| {
        let disks = names.iter().map(|name| DiskSource::new(*name, disk.source())).collect();
        let error =
            repository.backup(BackupRequest::new(vm, disks), &Silent, &CancelFlag::new()).unwrap_err();
        assert_eq!(error.code(), "invalid", "{error}");
    };
    refuse("", &["sda"]);
    refuse("two\nlines", &["sda"]);
    refuse("web", &[]);
    refuse("web", &["sda", "sda"]);
    refuse("web", &["a\0b"]);
    assert_eq!(files(&store).len(), before);
    assert_eq!(repository.resolve("abcd", None).unwrap_err().code(), "not_found");
    assert_eq!(repository.snapshots(Some("web")).unwrap_err().code(), "not_found");
}

/// Blocks inside a read until it is released, so that a backup stays in the middle.
struct PausedRead {
    inner: Box<MemorySource>,
    reached: std::sync::Barrier,
    go: std::sync::Barrier,
    once: std::sync::atomic::AtomicBool,
}

struct PausedSource(Arc<PausedRead>);

impl Source for PausedSource {
    fn size_bytes(&self) -> Option<u64> {
        self.0.inner.size_bytes()
    }
    fn extent_at(&self, offset: u64) -> std::result::Result<Extent, SourceError> {
        self.0.inner.extent_at(offset)
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<usize, SourceError> {
        if !self.0.once.swap(true, std::sync::atomic::Ordering::SeqCst) {
            self.0.reached.wait();
            self.0.go.wait();
        }
        self.0.inner.read_at(offset, buf)
    }
}

#[test]
fn one_vm_has_one_writer_and_a_prune_does_not_wait() {
    let repository = init(&embedded_store());
    let mut disk = Disk::new(5 << 20);
    Random::new(8).fill(&mut disk.bytes);
    let earlier = back_up(&repository, "web", &disk, false);
    disk.write(0, &[3; 9000]);
    let held = Arc::new(PausedRead {
        inner: disk.source(),
        reached: std::sync::Barrier::new(2),
        go: std::sync::Barrier::new(2),
        once: Default::default(),
    });
    std::thread::scope(|scope| {
        let source = Box::new(PausedSource(Arc::clone(&held)));
        let disks = vec![DiskSource::new("sda", source)];
        let backup =
            scope.spawn(|| repository.backup(BackupRequest::new("web", disks), &Silent, &CancelFlag::new()));
        held.reached.wait();
        let second = try_back_up(&repository, "web", &disk, false).unwrap_err();
        assert_eq!((second.exit_code(), second.code()), (11, "busy"));
        let prune = repository.prune(&thorough(), &Silent, &CancelFlag::new()).unwrap_err();
        assert_eq!(prune.code(), "busy");
        assert_eq!(repository.repair_index(&Silent, &CancelFlag::new()).unwrap_err().code(), "busy");
        // Other VMs are backed up meanwhile, and a snapshot may be forgotten while a backup builds on it.
        let other = back_up(&repository, "db", &disk, false);
        assert_eq!(restore(&repository, other.snapshot), disk.bytes);
        repository.forget(&[earlier.snapshot]).unwrap();
        held.go.wait();
        let summary = backup.join().unwrap().unwrap();
        assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
        prune_and_look(&repository, summary.snapshot, &disk.bytes);
    });
}

/// The store below refuses to be opened by two processes. If that ever fails, the fence still holds.
#[test]
fn a_fenced_backup_cannot_publish() {
    let store = embedded_store();
    let repository = init(&store);
    let mut disk = Disk::new(3 << 20);
    Random::new(9).fill(&mut disk.bytes);
    let held = Arc::new(PausedRead {
        inner: disk.source(),
        reached: std::sync::Barrier::new(2),
        go: std::sync::Barrier::new(2),
        once: Default::default(),
    });
    std::thread::scope(|scope| {
        let source = Box::new(PausedSource(Arc::clone(&held)));
        let disks = vec![DiskSource::new("sda", source)];
        let backup =
            scope.spawn(|| repository.backup(BackupRequest::new("web", disks), &Silent, &CancelFlag::new()));
        held.reached.wait();
        let other = open(&store).behave_as_another_process();
        assert_eq!(prune(&other).swept_sessions, 1);
        held.go.wait();
        let error = backup.join().unwrap().unwrap_err();
        assert_eq!((error.exit_code(), error.code()), (11, "fenced"));
        assert!(other.snapshots(None).unwrap().is_empty());
        prune(&other);
        assert_eq!(other.stats().unwrap().packs, 0, "nothing of it stays");
    });
}

fn prune_and_look(repository: &Repository, snapshot: SnapshotId, bytes: &[u8]) {
    prune(repository);
    assert_eq!(restore(repository, snapshot), bytes);
    assert!(check(repository).is_clean());
}
