//! A directory that imitates the kernel's list of devices; the numbers exist on no machine. Tests with real
//! devices are in `copal`.

use super::{DeviceListing, StorageId};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

/// `of`: the disk of a partition.
pub(super) fn device(root: &Path, number: &str, name: &str, of: Option<&str>, slaves: &[&str]) {
    let devices = root.join("devices");
    let directory = match of {
        Some(disk) => devices.join(disk).join(name),
        None => devices.join(name),
    };
    fs::create_dir_all(directory.join("slaves")).unwrap();
    fs::write(directory.join("dev"), format!("{number}\n")).unwrap();
    fs::write(directory.join("uevent"), format!("MAJOR=8\nDEVNAME={name}\n")).unwrap();
    if of.is_some() {
        fs::write(directory.join("partition"), "1\n").unwrap();
    }
    for slave in slaves {
        let file = directory.join("slaves").join(slave.replace(':', "-"));
        symlink(root.join("numbers").join(slave), file).unwrap();
    }
    fs::create_dir_all(root.join("numbers")).unwrap();
    symlink(directory, root.join("numbers").join(number)).unwrap();
}

/// Loop device `minor`, with the kernel's words for the part of `file` that it shows.
pub(super) fn loop_over(root: &Path, minor: u32, file: &Path, offset: u64, limit: u64) {
    device(root, &format!("2007:{minor}"), &format!("loop{minor}"), None, &[]);
    let attributes = root.join(format!("devices/loop{minor}/loop"));
    fs::create_dir(&attributes).unwrap();
    fs::write(attributes.join("backing_file"), format!("{}\n", file.display())).unwrap();
    fs::write(attributes.join("offset"), format!("{offset}\n")).unwrap();
    fs::write(attributes.join("sizelimit"), format!("{limit}\n")).unwrap();
}

pub(super) fn id(number: &str) -> StorageId {
    super::device_named(number).unwrap()
}

#[test]
fn stacked_devices_share_bytes_and_neighbours_do_not() {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path();
    device(root, "2008:0", "sda", None, &[]);
    device(root, "2008:1", "sda1", Some("sda"), &[]);
    device(root, "2008:2", "sda2", Some("sda"), &[]);
    device(root, "2008:16", "sdb", None, &[]);
    // Two volumes on one partition, one of them on another disk too.
    device(root, "2254:0", "dm-0", None, &["2008:2"]);
    device(root, "2254:1", "dm-1", None, &["2008:2", "2008:16"]);
    // An image in a file of this very file system.
    let image = root.join("image");
    fs::write(&image, "").unwrap();
    loop_over(root, 0, &image, 0, 0);
    device(root, "2259:0", "loop0p1", Some("loop0"), &[]);

    let listing = DeviceListing { root: root.join("numbers") };
    let share = |one: &str, other: &str| {
        let both = listing.share_bytes(id(one), id(other));
        assert_eq!(both, listing.share_bytes(id(other), id(one)));
        both
    };
    for (one, other) in [
        ("2008:0", "2008:0"),
        ("2008:0", "2008:1"),
        ("2008:2", "2254:0"),
        ("2008:0", "2254:1"),
        ("2008:16", "2254:1"),
        ("2007:0", "2259:0"),
    ] {
        assert!(share(one, other), "{one} and {other}");
    }
    for (one, other) in [
        ("2008:1", "2008:2"),
        ("2008:0", "2008:16"),
        ("2008:1", "2254:0"),
        ("2254:0", "2254:1"),
        ("2008:16", "2254:0"),
        ("2007:0", "2008:0"),
        // Not listed.
        ("2008:0", "2009:9"),
    ] {
        assert!(!share(one, other), "{one} and {other}");
    }
    let image = StorageId::of(&image).unwrap();
    let StorageId::File { device: home, .. } = image else { panic!("a file") };
    let beside = StorageId::of(&root.join("devices/sda/dev")).unwrap();
    for (lower, shared) in [(image, true), (StorageId::Device(home), true), (beside, false)] {
        assert_eq!(listing.share_bytes(id("2259:0"), lower), shared, "{lower:?}");
    }
    assert_eq!(listing.devices().len(), 8);
    assert_eq!(listing.node(id("2008:1")).unwrap(), Path::new("/dev/sda1"));
    assert_eq!(listing.node(id("2009:9")), None);
}

#[test]
fn the_same_file_by_two_names_is_one() {
    let scratch = tempfile::tempdir().unwrap();
    let (file, link, other) = ["file", "link", "other"].map(|name| scratch.path().join(name)).into();
    fs::write(&file, "").unwrap();
    fs::write(&other, "").unwrap();
    fs::hard_link(&file, &link).unwrap();
    assert!(super::share_bytes(&file, &link));
    assert!(!super::share_bytes(&file, &other));
    assert!(!super::share_bytes(&file, &scratch.path().join("none")));
    assert_eq!(super::overlap_in_use(&file), None);
}

/// Symptom: `copal init` on a partition was refused right after the partition had been made.
/// Cause: device managers hold a shared lock on the disk for the moment in which they examine it.
/// Fix: the opening waits for such a lock to go away.
#[test]
fn a_shared_lock_is_waited_for_and_an_exclusive_one_is_not() {
    use rustix::fs::FlockOperation;
    let scratch = tempfile::tempdir().unwrap();
    let node = scratch.path().join("node");
    fs::write(&node, "").unwrap();
    assert_eq!(super::lock_on(&node), super::DeviceLock::Free);
    assert_eq!(super::lock_on(&scratch.path().join("none")), super::DeviceLock::Free);
    let holder = fs::File::open(&node).unwrap();
    rustix::fs::flock(&holder, FlockOperation::LockExclusive).unwrap();
    assert_eq!(super::lock_on(&node), super::DeviceLock::Exclusive);
    assert!(super::is_locked(&node));
    rustix::fs::flock(&holder, FlockOperation::LockShared).unwrap();
    assert_eq!(super::lock_on(&node), super::DeviceLock::Shared);
    // The probe retries the lock. If the lock is released before the first try, the answer is the same.
    let look = std::thread::spawn({
        let node = node.clone();
        move || super::is_locked(&node)
    });
    drop(holder);
    assert!(!look.join().unwrap());
}
