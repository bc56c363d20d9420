//! Block devices for tests: loop devices over files, where this user may make them (root).

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::Command,
};

/// A loop device; detached when it is dropped.
pub(crate) struct LoopDevice {
    pub(crate) path: PathBuf,
    is_divided: bool,
}

impl LoopDevice {
    /// A device over `file`, which is extended to `size` bytes. `None`, with a message, if there are no loop
    /// devices; `COPAL_TEST_REQUIRE_LOOP` makes that a failure.
    pub(crate) fn attach(file: &Path, size: u64) -> Option<LoopDevice> {
        let image = File::options().create(true).truncate(false).write(true).open(file).unwrap();
        image.set_len(size).unwrap();
        LoopDevice::over(&["--find", "--show"], file)
    }

    /// A read-only device over an existing file. `None` as for [`LoopDevice::attach`].
    pub(crate) fn attach_read_only(file: &Path) -> Option<LoopDevice> {
        LoopDevice::over(&["--find", "--show", "--read-only"], file)
    }

    #[expect(clippy::print_stderr, reason = "a skipped test says so")]
    fn over(words: &[&str], file: &Path) -> Option<LoopDevice> {
        let made = Command::new("losetup").args(words).arg(file).output();
        let path = match made {
            Ok(made) if made.status.success() => String::from_utf8(made.stdout).unwrap(),
            refused => {
                assert!(
                    std::env::var_os("COPAL_TEST_REQUIRE_LOOP").is_none(),
                    "no loop device to be had: {refused:?}"
                );
                eprintln!("skipped: no loop device to be had here (root and losetup make one)");
                return None;
            }
        };
        Some(LoopDevice { path: PathBuf::from(path.trim()), is_divided: false })
    }

    /// A device over another one.
    pub(crate) fn attach_over(device: &Path) -> LoopDevice {
        let made = Command::new("losetup").args(["--find", "--show"]).arg(device).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        LoopDevice { path: PathBuf::from(String::from_utf8(made.stdout).unwrap().trim()), is_divided: false }
    }

    /// A partition that begins at the first MiB, known to the kernel alone: the device has no partition
    /// table.
    pub(crate) fn divide(&mut self, size: u64) -> PathBuf {
        let made =
            Command::new("addpart").arg(&self.path).args(["1", "2048", &(size / 512).to_string()]).status();
        assert!(made.unwrap().success());
        self.is_divided = true;
        PathBuf::from(format!("{}p1", self.word()))
    }

    pub(crate) fn word(&self) -> &str {
        self.path.to_str().unwrap()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        if self.is_divided {
            let _ = Command::new("delpart").arg(&self.path).arg("1").status();
        }
        // A device that remains attached only keeps a scratch file alive.
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).status();
    }
}

/// A mounted file system on a device that can be made to block writes. Unmounted when this is dropped.
pub(crate) struct FreezableMount(PathBuf);

impl FreezableMount {
    pub(crate) fn over(device: &LoopDevice, directory: &Path) -> FreezableMount {
        std::fs::create_dir(directory).unwrap();
        let mounted = Command::new("mount").arg(&device.path).arg(directory).status();
        assert!(mounted.unwrap().success());
        FreezableMount(directory.to_owned())
    }

    pub(crate) fn freeze(&self) {
        assert!(self.tell("--freeze"));
    }

    pub(crate) fn thaw(&self) {
        assert!(self.tell("--unfreeze"));
    }

    fn tell(&self, word: &str) -> bool {
        let told = Command::new("fsfreeze").arg(word).arg(&self.0).output();
        told.is_ok_and(|told| told.status.success())
    }
}

impl Drop for FreezableMount {
    fn drop(&mut self) {
        self.tell("--unfreeze");
        // Lazily: a process of a failed test may still use it.
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
