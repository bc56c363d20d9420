//! Tests on a loop device, which needs root. Without root they are skipped, unless `COPAL_TEST_REQUIRE_LOOP`
//! is set.

use crate::scratch;
use copal_device::conformance::{Traits, run};
use copal_device::{Device, DeviceOpenError, FileOptions, open_file};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};

/// Loop devices are few: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

struct Loop {
    path: PathBuf,
    _turn: MutexGuard<'static, ()>,
}

impl Loop {
    /// A loop device on a new file; `None` without permission.
    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    fn attach(directory: &Path, size: u64) -> Option<Loop> {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let file = directory.join("disk");
        let image = std::fs::File::create(&file).ok()?;
        image.set_len(size).ok()?;
        let made =
            Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&file).output().ok()?;
        if !made.status.success() {
            let required = std::env::var_os("COPAL_TEST_REQUIRE_LOOP").is_some();
            assert!(!required, "no loop device available: {made:?}");
            eprintln!("skipped: no loop device available (root and losetup make one)");
            return None;
        }
        let path = PathBuf::from(String::from_utf8(made.stdout).ok()?.trim());
        Some(Loop { path, _turn: turn })
    }

    /// A second loop device over bytes `from..` of the same file; the caller detaches it.
    fn second(directory: &Path, from: u64) -> SecondLoop {
        let offset = format!("--offset={from}");
        let words = ["--find", "--show", "--direct-io=on", &offset];
        let made = Command::new("losetup").args(words).arg(directory.join("disk")).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        SecondLoop(String::from_utf8(made.stdout).unwrap().trim().into())
    }

    /// Makes every byte zero again, by writing a new hole.
    fn wipe(&self, directory: &Path, size: u64) {
        let file = std::fs::File::options().write(true).open(directory.join("disk")).unwrap();
        file.set_len(0).unwrap();
        file.set_len(size).unwrap();
        let flushed = Command::new("blockdev").arg("--flushbufs").arg(&self.path).status().unwrap();
        assert!(flushed.success());
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.path).status();
        assert!(detached.is_ok_and(|status| status.success()));
    }
}

struct SecondLoop(PathBuf);

impl Drop for SecondLoop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
    }
}

/// A mounted file system; unmounted when it is dropped.
struct Mount<'a>(&'a Path);

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

#[test]
fn a_block_device_conforms_on_both_engines() {
    let directory = scratch();
    let size = 8 << 20;
    let Some(disk) = Loop::attach(directory.path(), size) else {
        return;
    };
    for force_pread in [false, true] {
        let make = |_| -> Arc<dyn Device> {
            disk.wipe(directory.path(), size);
            open_file(&disk.path, &FileOptions { force_pread, ..FileOptions::default() }).unwrap()
        };
        run(&make, Traits { grows: false, counts_exactly: true });
    }
}

#[test]
fn a_block_device_has_one_owner() {
    let directory = scratch();
    let Some(disk) = Loop::attach(directory.path(), 8 << 20) else {
        return;
    };
    let owner = open_file(&disk.path, &FileOptions::default()).unwrap();
    let geometry = owner.geometry();
    assert_eq!((geometry.size, geometry.logical_block), (8 << 20, 512));
    for read_only in [false, true] {
        let second = open_file(&disk.path, &FileOptions { read_only, ..FileOptions::default() });
        assert!(matches!(second.err(), Some(DeviceOpenError::Locked { .. })));
    }
    drop(owner);
    assert!(open_file(&disk.path, &FileOptions { read_only: true, ..FileOptions::default() }).is_ok());
}

fn open_error(path: &Path) -> Option<DeviceOpenError> {
    open_file(path, &FileOptions::default()).err()
}

/// Symptom: `init --force` on a loop device overwrote an open store, which another loop device over the same file
/// showed. Cause: each loop device has a lock of its own. Fix: loop devices over the same bytes, and their file, count
/// as neighbours.
#[test]
fn loop_devices_over_one_file_have_one_owner() {
    let directory = scratch();
    let Some(disk) = Loop::attach(directory.path(), 8 << 20) else {
        return;
    };
    let second = Loop::second(directory.path(), 0);
    let behind = Loop::second(directory.path(), 4 << 20);
    let file = directory.path().join("disk");
    let is_locked = |path: &Path| matches!(open_error(path), Some(DeviceOpenError::Locked { .. }));
    let owner = open_file(&disk.path, &FileOptions::default()).unwrap();
    assert!(is_locked(&second.0) && is_locked(&behind.0) && is_locked(&file));
    drop(owner);
    let owner = open_file(&file, &FileOptions { unsafe_volatile: true, ..FileOptions::default() }).unwrap();
    assert!(is_locked(&disk.path) && is_locked(&second.0));
    drop(owner);
    let owner = open_file(&behind.0, &FileOptions::default()).unwrap();
    assert!(is_locked(&disk.path));
    drop(owner);
    assert!(open_error(&disk.path).is_none() && open_error(&second.0).is_none());
    // They show the same bytes after their file has lost its name, too.
    std::fs::remove_file(&file).unwrap();
    let owner = open_file(&disk.path, &FileOptions::default()).unwrap();
    assert!(is_locked(&second.0) && is_locked(&behind.0));
    drop(owner);
}

/// The kernel refuses to claim a partition of a claimed disk: our own claim must not count as another one.
/// Symptom: a loop device over the disk could be written while its partition was in use. Cause: two devices on one disk
/// counted as two. Fix: their ranges on it are compared.
#[test]
fn a_disk_with_a_partition_and_the_partition_are_opened() {
    let directory = scratch();
    let Some(disk) = Loop::attach(directory.path(), 8 << 20) else {
        return;
    };
    let part = PathBuf::from(format!("{}p1", disk.path.display()));
    let made = Command::new("addpart").arg(&disk.path).args(["1", "2048", "8192"]).status();
    assert!(made.is_ok_and(|status| status.success()));
    let errors = [open_error(&disk.path), open_error(&part), open_error(&disk.path)];
    let made = Command::new("losetup").args(["--find", "--show"]).arg(&disk.path).output().unwrap();
    let upper = SecondLoop(String::from_utf8(made.stdout).unwrap().trim().into());
    let unused = [open_error(&disk.path), open_error(&part), open_error(&upper.0)];
    let owner = open_file(&part, &FileOptions::default());
    let beside = [open_error(&disk.path), open_error(&upper.0)];
    drop(owner);
    let owner = open_file(&upper.0, &FileOptions::default());
    let below = [open_error(&disk.path), open_error(&part)];
    drop((owner, upper));
    let removed = Command::new("delpart").arg(&disk.path).arg("1").status();
    assert!(removed.is_ok_and(|status| status.success()));
    assert!(errors.iter().chain(&unused).all(Option::is_none), "{errors:?} {unused:?}");
    for error in beside.iter().chain(&below) {
        assert!(matches!(error, Some(DeviceOpenError::Locked { .. })), "{beside:?} {below:?}");
    }
}

/// Symptom: a partition beside a mounted one was called mounted while a device manager held the disk's lock.
/// Cause: the reason was looked up on the disk, on which the other partition lies. Fix: a lock is called a lock.
#[test]
fn a_locked_disk_is_not_called_mounted_for_its_other_partition() {
    let directory = scratch();
    let Some(disk) = Loop::attach(directory.path(), 32 << 20) else {
        return;
    };
    for (number, first) in [("1", "2048"), ("2", "34816")] {
        let made = Command::new("addpart").arg(&disk.path).args([number, first, "24576"]).status();
        assert!(made.is_ok_and(|status| status.success()));
    }
    let part = |number: u32| PathBuf::from(format!("{}p{number}", disk.path.display()));
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(part(1)).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let point = directory.path().join("mounted");
    std::fs::create_dir(&point).unwrap();
    let mounted = Command::new("mount").arg(part(1)).arg(&point).output().unwrap();
    assert!(mounted.status.success(), "{mounted:?}");
    let mount = Mount(&point);
    let free = open_error(&part(2));
    let manager = std::fs::File::open(&disk.path).unwrap();
    manager.lock_shared().unwrap();
    let locked = open_error(&part(2));
    manager.unlock().unwrap();
    drop((mount, manager));
    for number in ["1", "2"] {
        assert!(Command::new("delpart").arg(&disk.path).arg(number).status().unwrap().success());
    }
    assert!(free.is_none(), "{free:?}");
    assert!(matches!(locked, Some(DeviceOpenError::Locked { .. })), "{locked:?}");
}

/// Symptom: the same for a file system that was mounted from the other loop device; and a mounted device was called in
/// use by another process, for which one should wait. Fix: the kernel's claim on neighbours is looked at, and named.
#[test]
fn a_mounted_file_system_is_named_on_every_device_with_its_bytes() {
    let directory = scratch();
    let Some(disk) = Loop::attach(directory.path(), 32 << 20) else {
        return;
    };
    let second = Loop::second(directory.path(), 0);
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&second.0).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let point = directory.path().join("mounted here");
    std::fs::create_dir(&point).unwrap();
    for options in ["rw", "ro"] {
        let mounted =
            Command::new("mount").args(["-o", options]).arg(&second.0).arg(&point).output().unwrap();
        assert!(mounted.status.success(), "{mounted:?}");
        let mount = Mount(&point);
        let file = directory.path().join("disk");
        for path in [&second.0, &disk.path, &file] {
            let error = open_error(path).expect("it is in use");
            assert!(matches!(error, DeviceOpenError::Claimed { .. }) && !error.is_retryable(), "{error}");
            let sentence = error.to_string();
            let at = format!("is mounted at {}; unmount it first", point.display());
            assert!(sentence.starts_with(path.to_str().unwrap()) && sentence.ends_with(&at), "{sentence}");
        }
        drop(mount);
        assert!(open_error(&disk.path).is_none());
    }
}
