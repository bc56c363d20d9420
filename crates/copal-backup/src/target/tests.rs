//! Targets over real files and pipes.

use super::*;
use std::{
    fs::File,
    io::Read,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt},
    path::Path,
};

const MIB: u64 = 1 << 20;

fn reason(opened: Result<Box<dyn Target>, TargetError>) -> String {
    opened.err().expect("refused").to_string()
}

fn restore(target: &dyn Target) {
    target.begin(8 * MIB).unwrap();
    target.write_at(4 * MIB, &[7; 1000]).unwrap();
    target.hole(0, 4 * MIB).unwrap();
    target.hole(4 * MIB + 1000, 4 * MIB - 1000).unwrap();
    target.finish().unwrap();
}

fn check(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    assert_eq!(bytes.len(), 8 << 20);
    let data = 4 << 20..(4 << 20) + 1000;
    assert!(bytes[data.clone()].iter().all(|b| *b == 7));
    assert!(
        bytes[..data.start]
            .iter()
            .chain(&bytes[data.end..])
            .all(|b| *b == 0)
    );
}

#[test]
fn a_new_file_is_sparse_and_named_when_it_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.raw");
    let target = open::open(path.to_str().unwrap(), false).unwrap();
    target.begin(8 * MIB).unwrap();
    assert!(!path.exists());
    // A second restore to the same name is told to wait; the first goes on.
    assert!(reason(open::open(path.to_str().unwrap(), false)).contains("another restore"));
    restore(&*target);
    check(&path);
    assert!(path.metadata().unwrap().blocks() * 512 < MIB);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_failed_restore_leaves_nothing_and_a_killed_one_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.raw");
    let target = open::open(path.to_str().unwrap(), false).unwrap();
    target.begin(8 * MIB).unwrap();
    drop(target);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    std::fs::write(dir.path().join("out.raw.copal-partial"), vec![9; 9 << 20]).unwrap();
    restore(&*open::open(path.to_str().unwrap(), false).unwrap());
    check(&path);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn an_existing_file_is_refused_or_replaced_with_its_holes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.raw");
    std::fs::write(&path, vec![9; 10 << 20]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    assert!(reason(open::open(path.to_str().unwrap(), false)).contains("--force"));
    assert_eq!(path.metadata().unwrap().len(), 10 << 20);
    restore(&*open::open(path.to_str().unwrap(), true).unwrap());
    check(&path);
    assert!(
        path.metadata().unwrap().blocks() * 512 < MIB,
        "holes are not holes"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Symptom: a restore with --force that was interrupted left the old file half overwritten.
/// Cause: an existing file was written in place.
/// Fix: the new one grows beside it and takes its name, mode and owner when it is whole; through a link, those of the
/// file that the link leads to.
#[test]
fn an_existing_file_stays_as_it_was_until_the_new_one_is_whole() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.raw");
    std::fs::write(&path, vec![9; 10 << 20]).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
    let link = dir.path().join("link.raw");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let interrupted = open::open(link.to_str().unwrap(), true).unwrap();
    interrupted.begin(8 * MIB).unwrap();
    interrupted.write_at(0, &[1; 100_000]).unwrap();
    interrupted.hole(100_000, 1 << 20).unwrap();
    assert!(std::fs::read(&path).unwrap() == vec![9; 10 << 20]);
    drop(interrupted);
    assert!(std::fs::read(&path).unwrap() == vec![9; 10 << 20]);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
    restore(&*open::open(link.to_str().unwrap(), true).unwrap());
    check(&path);
    assert!(link.symlink_metadata().unwrap().is_symlink());
    assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o640);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
}

/// Symptom: a restore with --force onto the store file of the repository itself destroyed the repository.
/// Cause: an existing file was opened without asking for its lock, which every open store holds.
/// Fix: the lock is taken, as for a new file, and held to the end.
#[test]
fn an_existing_file_that_somebody_has_locked_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.raw");
    std::fs::write(&path, b"a store").unwrap();
    let reader = File::open(&path).unwrap();
    reader.lock_shared().unwrap();
    assert!(reason(open::open(path.to_str().unwrap(), true)).contains("in use"));
    assert_eq!(std::fs::read(&path).unwrap(), b"a store");
    drop(reader);
    let target = open::open(path.to_str().unwrap(), true).unwrap();
    assert!(File::open(&path).unwrap().try_lock_shared().is_err());
    drop(target);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_file_that_appears_meanwhile_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.raw");
    let target = open::open(path.to_str().unwrap(), false).unwrap();
    target.begin(10).unwrap();
    std::fs::write(&path, b"mine").unwrap();
    assert!(target.finish().unwrap_err().to_string().contains("exists"));
    drop(target);
    assert_eq!(std::fs::read(&path).unwrap(), b"mine");
}

#[test]
fn a_pipe_gets_everything_in_order() {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let target = stream::StreamTarget::new("pipe", Box::new(writer));
    let collected = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).unwrap();
        bytes
    });
    assert!(target.is_ordered());
    target.begin(200_003).unwrap();
    target.write_at(0, b"abc").unwrap();
    assert!(target.write_at(4, b"x").is_err());
    target.hole(3, 200_000).unwrap();
    target.finish().unwrap();
    drop(target);
    let bytes = collected.join().unwrap();
    assert_eq!((bytes.len(), &bytes[..3]), (200_003, &b"abc"[..]));
    assert!(bytes[3..].iter().all(|b| *b == 0));
}

#[test]
fn places_that_cannot_take_a_disk_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(reason(open::open(dir.path().to_str().unwrap(), true)).contains("directory"));
    let nowhere = dir.path().join("no/such/out.raw");
    assert!(reason(open::open(nowhere.to_str().unwrap(), false)).contains("cannot create"));
}

#[test]
fn zeroes_are_written_where_holes_cannot_be_punched() {
    // A pipe or a socket cannot; here the ordinary path is compared with the fall-back by content.
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&[5; 300_000], 0).unwrap();
    punch::zero_range(&file, 10, 299_000).unwrap();
    let mut bytes = vec![1; 300_000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes[..10].iter().chain(&bytes[299_010..]).all(|b| *b == 5));
    assert!(bytes[10..299_010].iter().all(|b| *b == 0));
    punch::write_zeroes(&file, 0, 300_000).unwrap();
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|b| *b == 0));
}
