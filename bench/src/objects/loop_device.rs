//! Loop devices, bare or with a journaled ext4, and the commands that reached them.
//!
//! The backing file is written in full first, so that the file system below it changes no metadata during the
//! suite. Needs root. The drop unmounts and detaches.
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

/// A loop device over a file that is written in full.
pub(super) struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Makes a file of `size` zeros at `image` and attaches it.
    /// # Errors
    /// The user is not root, or the kernel has no loop devices.
    pub(super) fn attach(image: &Path, size: u64) -> Result<LoopDevice> {
        if !rustix::process::geteuid().is_root() {
            bail!("a loop device needs root; run the suite as root");
        }
        let mut file = File::create_new(image)?;
        let zeros = vec![0; 1 << 20];
        for _ in 0..size >> 20 {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
        let attached =
            metered::run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(image))?
                .success("losetup")?;
        Ok(LoopDevice { path: PathBuf::from(attached.stdout.trim()) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Commands that reached the device so far.
    pub(super) fn counters(&self) -> Result<BlockCounters> {
        let name = self.path.file_name().context("a device has a name")?;
        let statistics = Path::new("/sys/block").join(name).join("stat");
        let text = fs::read_to_string(statistics).context("reading the device's counters")?;
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
        let _ = metered::run(Command::new("losetup").arg("-d").arg(&self.path));
    }
}

/// A journaled ext4 on a loop device.
pub(super) struct Ext4Mount {
    device: LoopDevice,
    directory: PathBuf,
}

impl Ext4Mount {
    /// Makes a file system of `size` bytes below `scratch` and mounts it there.
    /// # Errors
    /// As [`LoopDevice::attach`]; `mke2fs` or `mount` fails.
    pub(super) fn make(scratch: &Path, size: u64) -> Result<Ext4Mount> {
        let device = LoopDevice::attach(&scratch.join("ext4.raw"), size)?;
        let mut mke2fs = Command::new("mke2fs");
        mke2fs.args(["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0"]);
        metered::run(mke2fs.arg(device.path()))?.success("mke2fs")?;
        let made = Ext4Mount { device, directory: scratch.join("mount") };
        fs::create_dir_all(&made.directory)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4"]).arg(made.device.path()).arg(&made.directory);
        metered::run(&mut mount)?.success("mount")?;
        Ok(made)
    }

    pub(super) fn device(&self) -> &LoopDevice {
        &self.device
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Commands that reached the loop device so far.
    pub(super) fn counters(&self) -> Result<BlockCounters> {
        self.device.counters()
    }
}

impl Drop for Ext4Mount {
    fn drop(&mut self) {
        let _ = metered::run(Command::new("umount").arg(&self.directory));
    }
}
