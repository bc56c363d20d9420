//! `RecordedRun`: the recorded disk of `copal init` and backups, and when each of them ended.

use super::{recorded_disk::RecordedDisk, repository::DiskRepository};
use crate::disk_server::FuseFile;
use anyhow::Result;
use copal_bench_harness::{loop_device::LoopDevice, mounted_disk::FileSystem};
use copal_device::{DeviceHistory, Image};
use copal_object::BackendKind;
use copal_testkit::Random;
use std::{fs, path::Path};

/// The `log` backend takes 256 MiB or more.
const DISK_BYTES: u64 = 256 << 20;
const IMAGE_BYTES: usize = 4 << 20;
/// Places that change between two backups, and bytes of each.
const CHANGES: u64 = 6;
const CHANGED_BYTES: usize = 40_000;

pub(super) struct RecordedRun {
    pub(super) history: DeviceHistory,
    /// Events before the end of `init` and of each backup.
    ends: Vec<usize>,
    /// The disk of the VM at each backup.
    images: Vec<Vec<u8>>,
}

/// Reason why this machine records nothing; `None` if it does.
pub(super) fn obstacle() -> Option<String> {
    LoopDevice::obstacle().or_else(|| FileSystem::Ext4.obstacle()).or_else(FuseFile::obstacle)
}

impl RecordedRun {
    pub(super) fn record(
        binary: &Path,
        home: &Path,
        backend: BackendKind,
        ignores_flushes: bool,
        backups: u64,
    ) -> Result<RecordedRun> {
        let disk = RecordedDisk::serve(Image::zeroed(DISK_BYTES), home, ignores_flushes)?;
        let repository = DiskRepository::on(binary, disk.file(), home, backend, true)?;
        repository.init()?;
        let mut ends = vec![disk.device.step()];
        let mut random = Random::new(7);
        let mut bytes = random.bytes(IMAGE_BYTES);
        let mut images = Vec::new();
        let path = home.join("disk.raw");
        for _ in 0..backups {
            for _ in 0..CHANGES {
                let at = random.index(IMAGE_BYTES - CHANGED_BYTES);
                random.fill(&mut bytes[at..at + CHANGED_BYTES]);
            }
            fs::write(&path, &bytes)?;
            repository.backup(&path)?;
            ends.push(disk.device.step());
            images.push(bytes.clone());
        }
        let history = disk.device.history();
        drop(repository);
        drop(disk);
        Ok(RecordedRun { history, ends, images })
    }

    /// Events before the first cut: the repository exists.
    pub(super) fn first_step(&self) -> usize {
        self.ends[0]
    }

    /// Number of backups that had ended before this step.
    pub(super) fn acknowledged(&self, step: usize) -> usize {
        self.ends.iter().filter(|end| **end <= step).count() - 1
    }

    /// The disk of the VM at a backup; `number` counts from 1.
    pub(super) fn image(&self, number: usize) -> Option<&[u8]> {
        self.images.get(number.checked_sub(1)?).map(Vec::as_slice)
    }
}
