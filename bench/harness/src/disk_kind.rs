//! Disks of the study of the Draconis paper, by the names of `--on`.

use crate::{loop_device::LoopDevice, model_disk::ModelDisk, zram_device::ZramDevice};
use clap::ValueEnum;

/// Kind of disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DiskKind {
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
    /// All kinds: the models first.
    pub const ALL: [DiskKind; 5] =
        [DiskKind::Ssd, DiskKind::Hdd, DiskKind::File, DiskKind::Loop, DiskKind::Zram];

    /// Name for rows.
    pub fn name(self) -> &'static str {
        match self {
            DiskKind::File => "file",
            DiskKind::Loop => "loop",
            DiskKind::Zram => "zram",
            DiskKind::Ssd => ModelDisk::Ssd.name(),
            DiskKind::Hdd => ModelDisk::Hdd.name(),
        }
    }

    /// The model of this name; `None` for a disk of the machine.
    pub fn model(self) -> Option<ModelDisk> {
        match self {
            DiskKind::Ssd => Some(ModelDisk::Ssd),
            DiskKind::Hdd => Some(ModelDisk::Hdd),
            DiskKind::File | DiskKind::Loop | DiskKind::Zram => None,
        }
    }

    /// Whether its rows are those of a model.
    pub fn is_model(self) -> bool {
        self.model().is_some()
    }

    /// Reason why this machine lacks the disk; `None` if it has it.
    pub fn obstacle(self) -> Option<String> {
        match self {
            DiskKind::File | DiskKind::Ssd | DiskKind::Hdd => None,
            DiskKind::Loop => LoopDevice::obstacle(),
            DiskKind::Zram => ZramDevice::obstacle(),
        }
    }
}
