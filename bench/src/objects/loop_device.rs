//! A journaled ext4 on a loop device, and the commands that reached that device.
//!
//! The backing file is written in full first, so that the file system below it changes no metadata during the
//! suite. Needs root. The drop removes both.
//! The kernel also counts a separate flush as a write without bytes.

use anyhow::{Context, Result, bail};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::metered;

/// Commands of a block device, as the kernel counts them: `writes` includes bare flushes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BlockCounters {
    pub(super) writes: u64,
    pub(super) write_bytes: u64,
    pub(super) flushes: u64,
}

impl std::ops::Sub for BlockCounters {
    type Output = BlockCounters;
    fn sub(self, earlier: BlockCounters) -> BlockCounters {
        BlockCounters {
            writes: self.writes - earlier.writes,
            write_bytes: self.write_bytes - earlier.write_bytes,
            flushes: self.flushes - earlier.flushes,
        }
    }
}

/// The mounted file system.
pub(super) struct LoopDevice {
    device: String,
    mount: PathBuf,
}

impl LoopDevice {
    /// Makes a file system of `size` bytes below `scratch` and mounts it there.
    pub(super) fn ext4(scratch: &Path, size: u64) -> Result<LoopDevice> {
        if !rustix::process::geteuid().is_root() {
            bail!("a loop device needs root; run the suite as root");
        }
        let image = scratch.join("ext4.raw");
        let mut file = File::create_new(&image)?;
        let zeros = vec![0; 1 << 20];
        for _ in 0..size >> 20 {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
        tool("mke2fs", &["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0"], &image)?;
        let device =
            metered::run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(&image))?
                .success("losetup")?
                .stdout
                .trim()
                .to_owned();
        let made = LoopDevice { device, mount: scratch.join("mount") };
        fs::create_dir_all(&made.mount)?;
        metered::run(Command::new("mount").args(["-t", "ext4", &made.device]).arg(&made.mount))?
            .success("mount")?;
        Ok(made)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.mount
    }

    /// Commands that reached the loop device so far.
    pub(super) fn counters(&self) -> Result<BlockCounters> {
        let name = self.device.trim_start_matches("/dev/");
        let text =
            fs::read_to_string(format!("/sys/block/{name}/stat")).context("reading the device's counters")?;
        let fields: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let field = |index: usize| {
            fields.get(index).copied().context("a counter is missing; kernel 5.5 or newer is needed")
        };
        Ok(BlockCounters { writes: field(4)?, write_bytes: field(6)? * 512, flushes: field(15)? })
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // After an error, the first error is the one to report.
        let _ = metered::run(Command::new("umount").arg(&self.mount));
        let _ = metered::run(Command::new("losetup").args(["-d", &self.device]));
    }
}

fn tool(name: &str, arguments: &[&str], path: &Path) -> Result<()> {
    metered::run(Command::new(name).args(arguments).arg(path))?.success(name)?;
    Ok(())
}
