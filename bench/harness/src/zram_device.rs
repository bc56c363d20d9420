//! Compressed disks in memory.

use anyhow::{Context, Result};
use std::{
    fs,
    path::{Path, PathBuf},
};

const ZRAM: &str = "/sys/class/zram-control";

/// A zram device of its own; removed when it is dropped.
pub struct ZramDevice {
    path: PathBuf,
    number: String,
}

impl ZramDevice {
    /// Reason why this machine lacks them; `None` if it has them.
    pub fn obstacle() -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("zram needs root".to_owned());
        }
        (!Path::new(ZRAM).exists()).then(|| "the kernel has no zram".to_owned())
    }

    /// Adds an empty one of `size` bytes.
    /// # Errors
    /// The system refuses.
    pub fn add(size: u64) -> Result<ZramDevice> {
        let number = fs::read_to_string(Path::new(ZRAM).join("hot_add")).context("adding a zram device")?;
        let number = number.trim().to_owned();
        let device = ZramDevice { path: PathBuf::from(format!("/dev/zram{number}")), number };
        let setting = PathBuf::from(format!("/sys/block/zram{}/disksize", device.number));
        fs::write(setting, size.to_string()).context("setting the size of a zram device")?;
        Ok(device)
    }
}

impl AsRef<Path> for ZramDevice {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl Drop for ZramDevice {
    fn drop(&mut self) {
        // After an error, the first error is the one to report.
        let _ = fs::write(format!("/sys/block/zram{}/reset", self.number), "1");
        let _ = fs::write(Path::new(ZRAM).join("hot_remove"), &self.number);
    }
}
