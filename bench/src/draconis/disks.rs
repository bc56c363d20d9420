//! `StudyDisk`: a disk of the study, real or emulated, that is empty and prepared.

use anyhow::{Context, Result};
pub(super) use copal_bench_harness::disk_kind::DiskKind;
use copal_bench_harness::{
    loop_device::{BlockCounters, LoopDevice},
    zram_device::ZramDevice,
};
use copal_device::{AlignedBuf, Device, FileOptions, Io, IoClass, IoKind, open_file};
use std::{path::Path, sync::Arc};

/// Bytes of a disk of the machine.
const REAL_BYTES: u64 = 512 << 20;
/// Bytes of an emulated disk, over which its head moves. Its contents take memory.
const EMULATED_BYTES: u64 = 256 << 20;
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
                (device.as_ref().to_owned(), DiskOwner::Zram(device))
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
            DiskOwner::Zram(device) => BlockCounters::of(device.as_ref()),
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
