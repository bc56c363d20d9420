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
