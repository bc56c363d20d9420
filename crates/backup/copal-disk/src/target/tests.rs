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
    assert!(bytes[..data.start].iter().chain(&bytes[data.end..]).all(|b| *b == 0));
}

#[test]
fn a_new_file_is_sparse_and_named_when_it_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.raw");
    let target = open::open(path.to_str().unwrap(), false).unwrap();
    target.begin(8 * MIB).unwrap();
    assert!(!path.exists());
    // A second restore to the same name is refused; the first goes on.
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
    assert!(path.metadata().unwrap().blocks() * 512 < MIB, "holes are not holes");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Symptom: a restore with --force that was interrupted left the old file half overwritten.
/// Cause: an existing file was written in place.
/// Fix: the new file is written beside it and takes its name, mode and owner when it is complete. Through a
/// symbolic link, it replaces the file that the link leads to.
#[test]
fn an_existing_file_stays_as_it_was_until_the_new_one_is_complete() {
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

/// Symptom: now and then a restore was refused because its own file "is in use". Cause: a child process held
/// copies of all open files with their locks, from `fork` until `exec`. Fix: the lock is retried for a while.
#[test]
fn a_lock_that_is_held_for_a_moment_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.raw");
    std::fs::write(&path, b"a disk").unwrap();
    let held = File::open(&path).unwrap();
    held.lock_shared().unwrap();
    let (asked, asks) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = asks.recv_timeout(std::time::Duration::from_millis(30));
            drop(held);
        });
        open::open(path.to_str().unwrap(), true).unwrap();
        drop(asked);
    });
}

/// Symptom: a restore with --force onto the store file of the repository itself destroyed the repository.
/// Cause: an existing file was opened without its lock, which every open store holds.
/// Fix: the lock is taken as for a new file, and held to the end.
#[test]
fn a_locked_file_is_refused() {
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

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o777
}

/// Symptom: every local user could read a restored disk, with the passwords and keys in it.
/// Cause: the file was created with the mode that the umask leaves, mostly 0644.
/// Fix: a new file has mode 0600 from its first byte on, also if it reuses the file of a killed restore. A
/// replaced file keeps its mode, and has it as soon as it has its name.
#[test]
fn a_restored_disk_is_its_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.raw");
    let partial = dir.path().join("out.raw.copal-partial");
    std::fs::write(&partial, b"left by a restore of before").unwrap();
    std::fs::set_permissions(&partial, std::fs::Permissions::from_mode(0o644)).unwrap();
    let target = open::open(path.to_str().unwrap(), false).unwrap();
    assert_eq!(mode(&partial), 0o600);
    restore(&*target);
    drop(target);
    assert_eq!(mode(&path), 0o600);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o664)).unwrap();
    let target = open::open(path.to_str().unwrap(), true).unwrap();
    assert_eq!(mode(&partial), 0o600, "an incomplete target is not readable by others");
    restore(&*target);
    assert_eq!(mode(&path), 0o664);
}

/// Symptom: in a directory where others may write, a restore as root overwrote the target of a link that
/// another user had placed as `NAME.copal-partial`.
/// Cause: the file was opened through symbolic links and hard links, and its type was not checked.
/// Fix: it is opened without following links, and must be a regular file of this user with one name.
#[test]
fn a_planted_link_is_refused_and_its_target_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.raw");
    let partial = dir.path().join("out.raw.copal-partial");
    let victim = dir.path().join("victim");
    std::fs::write(&victim, b"precious").unwrap();
    let refused = |what: &str| {
        let said = reason(open::open(path.to_str().unwrap(), false));
        assert!(said.contains(what) && said.contains("remove it"), "{said}");
        assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
        assert!(partial.symlink_metadata().is_ok(), "it is the user's to remove");
        std::fs::remove_file(&partial).unwrap();
    };
    std::os::unix::fs::symlink(&victim, &partial).unwrap();
    refused("a symbolic link");
    std::os::unix::fs::symlink(dir.path().join("nothing"), &partial).unwrap();
    refused("a symbolic link");
    std::fs::hard_link(&victim, &partial).unwrap();
    refused("several names");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &partial,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    refused("not a regular file");
    if rustix::process::geteuid().is_root() {
        std::fs::write(&partial, b"of somebody").unwrap();
        std::os::unix::fs::chown(&partial, Some(65_534), None).unwrap();
        refused("another user");
    }
    assert!(!dir.path().join("nothing").exists());
    restore(&*open::open(path.to_str().unwrap(), false).unwrap());
    check(&path);
}

/// Symptom: of two restores to one name, the later could empty the file that the earlier had just finished.
/// Cause: it opened the partial file without a lock. It got the lock after the other had renamed the file, so
/// the lock was on the final file.
/// Fix: after locking, the name is checked again, and must lead to the locked file.
#[test]
fn a_lock_counts_only_on_the_file_that_has_the_name() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("out.raw");
    let first = open::open(path.to_str().unwrap(), false).unwrap();
    let mut first = Some(first);
    // The first restore finishes between the opening and the lock of the second.
    let second = file::FileTarget::start(path.clone(), None, &mut || {
        if let Some(first) = first.take() {
            restore(&*first);
        }
    })
    .unwrap();
    check(&path);
    drop(second);
    check(&path);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
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
    // A regular file can be punched, so the fallback is called directly and its content compared.
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
