//! Models of disks by name, for suites that run on several.
//!
//! Not here: the models (`copal_device::emulated`).

use anyhow::{Context, Result};
use copal_device::{
    Device,
    emulated::{
        BlockTrace, DiskContents, DiskModel, Hdd, HddModel, HddProfile, PacedHdd, PacedSsd, ReplaySummary,
        Ssd, SsdModel, SsdProfile, WallClock,
    },
};
use std::sync::Arc;

/// Disk over which the head moves while a trace is replayed.
const TRACED_DISK_BYTES: u64 = 1 << 40;

/// A model of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelDisk {
    /// A disk of 7,200 turns a minute without caches.
    Hdd,
    /// The paper's flash drive, with power-loss protection.
    Ssd,
    /// The same drive without it: a flush takes a millisecond.
    ConsumerSsd,
    /// The same drive as `Ssd` with units of 512 bytes: no write is a partial one.
    SsdOfSectors,
}

impl ModelDisk {
    /// Name for rows.
    pub fn name(self) -> &'static str {
        match self {
            ModelDisk::Hdd => "HDD model",
            ModelDisk::Ssd => "SSD model",
            ModelDisk::ConsumerSsd => "consumer SSD model",
            ModelDisk::SsdOfSectors => "SSD model with units of 512 B",
        }
    }

    fn flash(self) -> SsdProfile {
        let drive = SsdProfile::default();
        match self {
            ModelDisk::Hdd | ModelDisk::Ssd => drive,
            ModelDisk::ConsumerSsd => SsdProfile::consumer(),
            // The medium takes the same bytes a second.
            ModelDisk::SsdOfSectors => SsdProfile {
                unit_bytes: 512,
                drain_rate: drive.drain_rate * 8.0,
                buffer_units: drive.buffer_units * 8,
                ..drive
            },
        }
    }

    fn hard_disk() -> HddProfile {
        HddProfile { logical_block: 512, ..HddProfile::default() }
    }

    /// The model alone, without bytes.
    pub fn model(self, size: u64) -> Box<dyn DiskModel> {
        match self {
            ModelDisk::Hdd => Box::new(HddModel::new(size, ModelDisk::hard_disk())),
            _ => Box::new(SsdModel::new(size, self.flash())),
        }
    }

    /// A device with contents in memory and the times of the model.
    pub fn device(self, size: u64) -> Arc<dyn Device> {
        match self {
            ModelDisk::Hdd => Hdd::new(size, ModelDisk::hard_disk()),
            _ => Ssd::new(size, self.flash()),
        }
    }

    /// A device with these contents that takes the times of the model on the wall clock.
    /// # Errors
    /// The contents cannot be examined, or the system has no thread.
    pub fn paced(self, contents: Box<dyn DiskContents>) -> Result<Arc<dyn Device>> {
        let clock = Arc::new(WallClock::new());
        Ok(match self {
            ModelDisk::Hdd => PacedHdd::new(contents, ModelDisk::hard_disk(), clock)?,
            _ => PacedSsd::new(contents, self.flash(), clock)?,
        })
    }

    /// The drive with 25 us of a client before each command, which the paper's own host seems to take.
    pub fn device_of_slow_host(self, size: u64) -> Arc<dyn Device> {
        match self {
            ModelDisk::Hdd => self.device(size),
            _ => {
                let client_time = std::time::Duration::from_micros(25);
                Ssd::new(size, SsdProfile { client_time, ..self.flash() })
            }
        }
    }

    /// Replays the lines of a `BlockTracer`.
    /// # Errors
    /// The lines have no command.
    pub fn replay(self, lines: &str) -> Result<ReplaySummary> {
        let trace = BlockTrace::read(lines.as_bytes())?;
        let (device, _) = trace.devices().next().context("a trace without commands")?;
        Ok(ReplaySummary::replay(trace.commands(device), &mut *self.model(TRACED_DISK_BYTES)))
    }
}
