//! Loop devices over a file that is written in full, and the commands that reached them.
//!
//! The backing file is written first, so that the file system below it changes no metadata during the suite. Needs root.
//! The kernel also counts a separate flush as a write without bytes.
//!
//! Not here: file systems on them (`mounted_disk`), traces of their commands (`block_tracer`).

use anyhow::{Context, Result, bail};
use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::metered;

/// Commands of a block device, as the kernel counts them.
#[derive(Clone, Copy, Debug, Default)]
pub struct BlockCounters {
    /// Read commands.
    pub reads: u64,
    /// Write commands, and flushes without a write.
    pub writes: u64,
    /// Bytes of the writes.
    pub write_bytes: u64,
    /// Flushes, alone or before a write.
    pub flushes: u64,
}

impl std::ops::Sub for BlockCounters {
    type Output = BlockCounters;
    fn sub(self, earlier: BlockCounters) -> BlockCounters {
        BlockCounters {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            write_bytes: self.write_bytes - earlier.write_bytes,
            flushes: self.flushes - earlier.flushes,
        }
    }
}

impl std::ops::AddAssign for BlockCounters {
    fn add_assign(&mut self, other: BlockCounters) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.write_bytes += other.write_bytes;
        self.flushes += other.flushes;
    }
}

impl BlockCounters {
    /// Counters of the block device at `path` since it was attached.
    /// # Errors
    /// It is no block device, or the kernel is older than 5.5.
    pub fn of(path: &Path) -> Result<BlockCounters> {
        let name = path.file_name().context("a device has a name")?;
        let statistics = Path::new("/sys/block").join(name).join("stat");
        let text = fs::read_to_string(statistics).context("reading the device's counters")?;
        let fields: Vec<u64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let field = |index: usize| {
            fields.get(index).copied().context("a counter is missing; kernel 5.5 or newer is needed")
        };
        Ok(BlockCounters {
            reads: field(0)?,
            writes: field(4)?,
            write_bytes: field(6)? * 512,
            flushes: field(15)?,
        })
    }
}

/// A loop device over a file that is written in full.
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Reason why this machine has no loop devices for the suite; `None` if it has.
    pub fn obstacle() -> Option<String> {
        if !rustix::process::geteuid().is_root() {
            return Some("a loop device needs root".to_owned());
        }
        (!Path::new("/dev/loop-control").exists()).then(|| "the kernel has no loop devices".to_owned())
    }

    /// Makes a file of `size` zeros at `image` and attaches it.
    /// # Errors
    /// The user is not root, or the kernel has no loop devices.
    pub fn attach(image: &Path, size: u64) -> Result<LoopDevice> {
        if let Some(reason) = LoopDevice::obstacle() {
            bail!("{reason}");
        }
        let mut file = File::create_new(image)?;
        let zeros = vec![0; 1 << 20];
        for _ in 0..size >> 20 {
            file.write_all(&zeros)?;
        }
        file.sync_all()?;
        LoopDevice::over(image)
    }

    /// Attaches an existing file. Its writes go past the page cache if its file system can do that.
    /// # Errors
    /// As [`LoopDevice::attach`].
    pub fn over(file: &Path) -> Result<LoopDevice> {
        let attached =
            metered::run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(file))?
                .success("losetup")?;
        Ok(LoopDevice { path: PathBuf::from(attached.stdout.trim()) })
    }

    /// The device's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Commands that reached the device so far.
    /// # Errors
    /// As [`BlockCounters::of`].
    pub fn counters(&self) -> Result<BlockCounters> {
        BlockCounters::of(&self.path)
    }
}

impl AsRef<Path> for LoopDevice {
    fn as_ref(&self) -> &Path {
        self.path()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // After an error, the first error is the one to report.
        let _ = metered::run(Command::new("losetup").arg("-d").arg(&self.path));
    }
}
