//! What goes wrong is said in one sentence, with its code, and loses nothing.

use crate::world::*;
use copal_backup::source::{Extent, ExtentKind, Source, SourceError};
use copal_backup::*;
use copal_volume::MemoryStore;
use std::sync::Arc;
use zeroize::Zeroizing;

fn password(text: &str) -> Unlock {
    Unlock::Password(Zeroizing::new(text.into()))
}

#[test]
fn a_wrong_password_and_a_missing_repository_are_told_apart() {
    let store = Arc::new(MemoryStore::new());
    let open = |unlock: Unlock| Repository::open(store.clone(), IndexHome::Memory, &unlock).map(|_| ());
    assert_eq!(open(Unlock::Insecure).unwrap_err().exit_code(), 10);
    assert_eq!(Repository::probe(&*store).unwrap(), None);
    let options = InitOptions {
        argon2_memory_kib: 64,
        ..InitOptions::new(password("right"))
    };
    Repository::init(store.clone(), IndexHome::Memory, &options).unwrap();
    assert_eq!(Repository::probe(&*store).unwrap(), Some(true));
    open(password("right")).unwrap();
    let wrong = open(password("wrong")).unwrap_err();
    assert_eq!((wrong.exit_code(), wrong.code()), (12, "wrong_password"));
    assert_eq!(open(Unlock::Insecure).unwrap_err().code(), "password_needed");
    let again = Repository::init(store.clone(), IndexHome::Memory, &options)
        .map(|_| ())
        .unwrap_err();
    assert_eq!(again.code(), "repository_exists");
}

#[test]
fn a_full_store_fails_cleanly_and_the_next_backup_uses_what_was_stored() {
    let store = MemoryStore::new();
    let repository = init(&store);
    let mut dice = Dice::new(1);
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
    assert!(
        summary.counts.new_bytes < 30 << 20,
        "the packs that were finished are used"
    );
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
        Ok(Extent {
            offset,
            length: 1 << 30,
            kind: ExtentKind::Data,
        })
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<usize, SourceError> {
        if offset >= self.at {
            match &self.cancel {
                Some(flag) => flag.cancel(),
                None => {
                    return Err(SourceError::Unusable {
                        reason: "the cable was cut".into(),
                    });
                }
            }
        }
        self.inner.read_at(offset, buf)
    }
}

#[test]
fn an_interrupted_backup_publishes_nothing_and_keeps_its_packs() {
    let store = MemoryStore::new();
    let repository = init(&store);
    let mut disk = Disk::new(30 << 20);
    Dice::new(2).fill(&mut disk.bytes);
    let run = |cancel: Option<CancelFlag>| {
        let flag = cancel.clone().unwrap_or_default();
        let source = Tripwire {
            inner: disk.source(),
            at: 24 << 20,
            cancel,
        };
        let disks = vec![DiskSource {
            name: "sda".into(),
            source: Box::new(source),
            changed: None,
        }];
        repository
            .backup(BackupRequest::new("web", disks), &Silent, &flag)
            .unwrap_err()
    };
    let cancelled = run(Some(CancelFlag::new()));
    assert_eq!(cancelled.exit_code(), 130);
    assert!(
        matches!(cancelled, Error::Cancelled { kept_bytes } if kept_bytes >= 20 << 20),
        "{cancelled}"
    );
    let broken = run(None);
    assert_eq!(broken.exit_code(), 3);
    assert!(broken.to_string().contains("the cable was cut"), "{broken}");
    assert!(repository.snapshots(None).unwrap().is_empty());
    assert!(check(&repository).is_clean());
    let summary = back_up(&repository, "web", &disk, false);
    assert!(
        summary.counts.new_bytes <= 6 << 20,
        "{}",
        summary.counts.new_bytes
    );
    assert_eq!(restore(&repository, summary.snapshot), disk.bytes);
}

#[test]
fn requests_that_make_no_sense_are_refused_before_anything_is_stored() {
    let store = MemoryStore::new();
    let repository = init(&store);
    let before = files(&store).len();
    let disk = Disk::new(1 << 20);
    let refuse = |vm: &str, names: &[&str]| {
        let disks = names
            .iter()
            .map(|name| DiskSource {
                name: (*name).into(),
                source: disk.source(),
                changed: None,
            })
            .collect();
        let error = repository
            .backup(BackupRequest::new(vm, disks), &Silent, &CancelFlag::new())
            .unwrap_err();
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
