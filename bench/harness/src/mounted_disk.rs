//! A file system on a loop device, mounted for one suite. The drop unmounts and detaches.

use crate::loop_device::{BlockCounters, LoopDevice};
use anyhow::Result;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::metered;

/// File system of a [`MountedDisk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// ext4 with a journal and blocks of 4 KiB.
    Ext4,
    /// ext4 with a journal and blocks of 1 KiB: metadata are shorter than a page of flash.
    Ext4SmallBlocks,
    /// ext4 without a journal: a crash may leave it inconsistent.
    Ext4NoJournal,
    /// XFS.
    Xfs,
}

impl FileSystem {
    /// Name for rows.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::Ext4SmallBlocks => "ext4 with blocks of 1 KiB",
            FileSystem::Ext4NoJournal => "ext4 without a journal",
            FileSystem::Xfs => "XFS",
        }
    }

    /// Reason why this machine cannot make and mount it; `None` if it can.
    pub fn obstacle(self) -> Option<String> {
        let (program, kind) = self.program();
        let has_program = ["/usr/sbin", "/sbin", "/usr/bin"]
            .into_iter()
            .any(|directory| Path::new(directory).join(program).exists());
        let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        LoopDevice::obstacle()
            .or_else(|| (!has_program).then(|| format!("{program} is not installed")))
            .or_else(|| {
                let has_kind = known.split_whitespace().any(|word| word == kind);
                (!has_kind).then(|| format!("the kernel has no {kind}"))
            })
    }

    fn program(self) -> (&'static str, &'static str) {
        match self {
            FileSystem::Ext4 | FileSystem::Ext4SmallBlocks | FileSystem::Ext4NoJournal => ("mke2fs", "ext4"),
            FileSystem::Xfs => ("mkfs.xfs", "xfs"),
        }
    }

    /// Makes the file system on a device.
    /// # Errors
    /// Its program fails.
    pub fn make_on(self, device: &Path) -> Result<()> {
        let (program, _) = self.program();
        let mut make = Command::new(program);
        match self {
            FileSystem::Ext4 => make.args(["-b", "4096"]),
            FileSystem::Ext4SmallBlocks => make.args(["-b", "1024"]),
            FileSystem::Ext4NoJournal => make.args(["-b", "4096", "-O", "^has_journal"]),
            FileSystem::Xfs => make.args(["-q", "-f"]),
        };
        if self != FileSystem::Xfs {
            make.args(["-q", "-F", "-t", "ext4", "-E", "lazy_itable_init=0,lazy_journal_init=0"]);
        }
        metered::run(make.arg(device))?.success(program).map(drop)
    }
}

/// A mounted file system on a device of its own.
pub struct MountedDisk<D = LoopDevice> {
    device: D,
    directory: PathBuf,
}

impl MountedDisk {
    /// Makes a file system of `size` bytes below `scratch` and mounts it there.
    /// # Errors
    /// As [`LoopDevice::attach`]; the program of the file system or `mount` fails.
    pub fn make(scratch: &Path, size: u64, system: FileSystem) -> Result<MountedDisk> {
        let device = LoopDevice::attach(&scratch.join("disk.raw"), size)?;
        system.make_on(device.path())?;
        MountedDisk::mount(device, &scratch.join("mount"), system)
    }

    /// Commands that reached the loop device so far.
    /// # Errors
    /// As [`BlockCounters::of`].
    pub fn counters(&self) -> Result<BlockCounters> {
        self.device.counters()
    }
}

impl<D: AsRef<Path>> MountedDisk<D> {
    /// Mounts a device that has this file system at `directory`, which may be missing.
    /// # Errors
    /// `mount` fails.
    pub fn mount(device: D, directory: &Path, system: FileSystem) -> Result<MountedDisk<D>> {
        fs::create_dir_all(directory)?;
        let mut mount = Command::new("mount");
        mount.args(["-t", system.program().1]).arg(device.as_ref()).arg(directory);
        metered::run(&mut mount)?.success("mount")?;
        Ok(MountedDisk { device, directory: directory.to_owned() })
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Root of the mounted file system.
    pub fn directory(&self) -> &Path {
        &self.directory
    }
}

impl<D> Drop for MountedDisk<D> {
    fn drop(&mut self) {
        let _ = metered::run(Command::new("umount").arg(&self.directory));
    }
}
