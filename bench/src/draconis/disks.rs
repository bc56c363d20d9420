//! `StudyDisk`: a disk of the study, real or emulated, that is empty and prepared.

use anyhow::{Context, Result};
use clap::ValueEnum;
use copal_bench_harness::{
    loop_device::{BlockCounters, LoopDevice},
    model_disk::ModelDisk,
};
use copal_device::{AlignedBuf, Device, FileOptions, Io, IoClass, IoKind, open_file};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Bytes of a disk of the machine.
const REAL_BYTES: u64 = 512 << 20;
/// Bytes of an emulated disk, over which its head moves. Its contents take memory.
const EMULATED_BYTES: u64 = 256 << 20;
const ZRAM: &str = "/sys/class/zram-control";

/// Kind of disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum DiskKind {
    /// A preallocated file of the scratch directory
    File,
    /// A loop device over a written file
    Loop,
    /// A compressed disk in memory
    Zram,
    /// Model of the paper's flash drive
    Ssd,
    /// Model of a disk of 7,200 turns a minute
    Hdd,
}

impl DiskKind {
    pub(super) const ALL: [DiskKind; 5] =
        [DiskKind::Ssd, DiskKind::Hdd, DiskKind::File, DiskKind::Loop, DiskKind::Zram];

    pub(super) fn name(self) -> &'static str {
        match self {
            DiskKind::File => "file",
            DiskKind::Loop => "loop",
            DiskKind::Zram => "zram",
            DiskKind::Ssd => ModelDisk::Ssd.name(),
            DiskKind::Hdd => ModelDisk::Hdd.name(),
        }
    }

    pub(super) fn model(self) -> Option<ModelDisk> {
        match self {
            DiskKind::Ssd => Some(ModelDisk::Ssd),
            DiskKind::Hdd => Some(ModelDisk::Hdd),
            DiskKind::File | DiskKind::Loop | DiskKind::Zram => None,
        }
    }

    pub(super) fn is_model(self) -> bool {
        self.model().is_some()
    }

    /// Reason why this machine lacks the disk; `None` if it has it.
    pub(super) fn obstacle(self) -> Option<String> {
        match self {
            DiskKind::File | DiskKind::Ssd | DiskKind::Hdd => None,
            DiskKind::Loop => LoopDevice::obstacle(),
            DiskKind::Zram if !rustix::process::geteuid().is_root() => Some("zram needs root".to_owned()),
            DiskKind::Zram => (!Path::new(ZRAM).exists()).then(|| "the kernel has no zram".to_owned()),
        }
    }
}

/// Owner of a disk of the machine; its drop gives the disk back.
enum DiskOwner {
    None,
    Loop(LoopDevice),
    Zram(ZramDevice),
}

/// An open disk.
pub(super) struct StudyDisk {
    pub(super) kind: DiskKind,
    pub(super) device: Arc<dyn Device>,
    /// Dropped after the device.
    owner: DiskOwner,
}

impl StudyDisk {
    /// An empty disk of `kind`. A disk of the machine is written in full, so that no first write is among the measured.
    pub(super) fn open(kind: DiskKind, scratch: &Path) -> Result<StudyDisk> {
        if let Some(model) = kind.model() {
            let device = model.device(EMULATED_BYTES);
            return Ok(StudyDisk { kind, device, owner: DiskOwner::None });
        }
        let image = scratch.join(kind.name());
        let mut options = FileOptions::default();
        let (path, owner) = match kind {
            DiskKind::Loop => {
                let device = LoopDevice::attach(&image, REAL_BYTES)?;
                (device.path().to_owned(), DiskOwner::Loop(device))
            }
            DiskKind::Zram => {
                let device = ZramDevice::add(REAL_BYTES)?;
                (device.path.clone(), DiskOwner::Zram(device))
            }
            _ => {
                options.create_size = Some(REAL_BYTES);
                (image, DiskOwner::None)
            }
        };
        let device = open_file(&path, &options).with_context(|| format!("opening {}", path.display()))?;
        let disk = StudyDisk { kind, device, owner };
        disk.fill()?;
        Ok(disk)
    }

    pub(super) fn name(&self) -> &'static str {
        self.kind.name()
    }

    /// Commands that reached the block device; always 0 for a file and a model.
    pub(super) fn block_counters(&self) -> Result<BlockCounters> {
        match &self.owner {
            DiskOwner::None => Ok(BlockCounters::default()),
            DiskOwner::Loop(device) => device.counters(),
            DiskOwner::Zram(device) => BlockCounters::of(&device.path),
        }
    }

    fn fill(&self) -> Result<()> {
        let geometry = self.device.geometry();
        let step = u64::from(geometry.max_io).min(1 << 20);
        for at in (0..geometry.size).step_by(step as usize) {
            let len = step.min(geometry.size - at) as usize;
            // No layer below may take it for a hole.
            let buf = AlignedBuf::padded(&vec![(at >> 20) as u8 | 1; len], 512);
            let io = Io { at, kind: IoKind::Write { buf, fua: false }, class: IoClass::Foreground };
            self.device.submit(vec![io]).wait().into_iter().try_for_each(|done| done.result)?;
        }
        let flush = Io { at: 0, kind: IoKind::Flush, class: IoClass::Foreground };
        self.device.submit(vec![flush]).wait().into_iter().try_for_each(|done| done.result)?;
        Ok(())
    }
}

/// A zram device of its own.
struct ZramDevice {
    path: PathBuf,
    number: String,
}

impl ZramDevice {
    fn add(size: u64) -> Result<ZramDevice> {
        let number = fs::read_to_string(Path::new(ZRAM).join("hot_add")).context("adding a zram device")?;
        let number = number.trim().to_owned();
        let device = ZramDevice { path: PathBuf::from(format!("/dev/zram{number}")), number };
        let setting = PathBuf::from(format!("/sys/block/zram{}/disksize", device.number));
        fs::write(setting, size.to_string()).context("setting the size of a zram device")?;
        Ok(device)
    }
}

impl Drop for ZramDevice {
    fn drop(&mut self) {
        // After an error, the first error is the one to report.
        let _ = fs::write(format!("/sys/block/zram{}/reset", self.number), "1");
        let _ = fs::write(Path::new(ZRAM).join("hot_remove"), &self.number);
    }
}
