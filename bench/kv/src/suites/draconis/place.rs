//! `EnginePlace`: the directory of an engine's files, on a traced block device if this machine has one.

use anyhow::Result;
use copal_bench_harness::{
    block_tracer::BlockTracer,
    disk_kind::DiskKind,
    loop_device::LoopDevice,
    mounted_disk::{FileSystem, MountedDisk},
    report::Report,
    zram_device::ZramDevice,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Lines of a block trace.
pub(super) struct TraceText(pub(super) String);

/// Tracer and disk: dropped in this order.
struct TracedDisk {
    tracer: Option<BlockTracer>,
    _disk: EngineDisk,
}

/// Kept for its drop.
#[expect(dead_code, reason = "the drop gives the disk back")]
enum EngineDisk {
    Loop(MountedDisk<LoopDevice>),
    Zram(MountedDisk<ZramDevice>),
}

pub(super) struct EnginePlace {
    directory: PathBuf,
    traced: Option<TracedDisk>,
}

impl EnginePlace {
    /// An empty place of `size` bytes on a disk of the machine. If that cannot be had, it is `scratch` itself, and `report`
    /// says so.
    pub(super) fn make(
        kind: DiskKind,
        scratch: &Path,
        size: u64,
        report: &mut Report,
    ) -> Result<EnginePlace> {
        if scratch.exists() {
            fs::remove_dir_all(scratch)?;
        }
        fs::create_dir_all(scratch)?;
        let in_files = EnginePlace { directory: scratch.join("files"), traced: None };
        if kind == DiskKind::File {
            report.note("The machine's disk: files of the scratch directory. Models: skipped, they need a block device.");
            return Ok(in_files);
        }
        if let Some(reason) = kind.obstacle().or_else(|| FileSystem::Ext4.obstacle()) {
            report
                .note(format!("{}: skipped, {reason}; files of the scratch directory instead.", kind.name()));
            return Ok(in_files);
        }
        report.note(format!("The machine's disk: ext4 on {}.", kind.name()));
        let (path, directory, disk) = if kind == DiskKind::Zram {
            let device = ZramDevice::add(size)?;
            FileSystem::Ext4.make_on(device.as_ref())?;
            let disk = MountedDisk::mount(device, &scratch.join("mount"), FileSystem::Ext4)?;
            (disk.device().as_ref().to_owned(), disk.directory().join("files"), EngineDisk::Zram(disk))
        } else {
            let disk = MountedDisk::make(scratch, size, FileSystem::Ext4)?;
            (disk.device().path().to_owned(), disk.directory().join("files"), EngineDisk::Loop(disk))
        };
        let no_requests =
            || (kind == DiskKind::Zram).then(|| "zram has no requests that could be traced".to_owned());
        let tracer = match BlockTracer::obstacle().or_else(no_requests) {
            Some(reason) => {
                report.note(format!("Models: skipped, {reason}."));
                None
            }
            None => Some(BlockTracer::of(&path)?),
        };
        Ok(EnginePlace { directory, traced: Some(TracedDisk { tracer, _disk: disk }) })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn start_trace(&self) -> Result<()> {
        self.tracer().map_or(Ok(()), BlockTracer::start)
    }

    /// The commands since the start; `None` without a tracer.
    pub(super) fn stop_trace(&self) -> Result<Option<TraceText>> {
        self.tracer().map(|tracer| tracer.stop().map(TraceText)).transpose()
    }

    fn tracer(&self) -> Option<&BlockTracer> {
        self.traced.as_ref()?.tracer.as_ref()
    }
}
