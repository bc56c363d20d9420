//! `EnginePlace`: the directory of an engine's files, on a traced loop device if this machine has one.

use anyhow::Result;
use copal_bench_harness::{
    block_tracer::BlockTracer,
    mounted_disk::{FileSystem, MountedDisk},
    report::Report,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Lines of a block trace.
pub(super) struct TraceText(pub(super) String);

/// Tracer and disk: dropped in this order.
struct TracedDisk {
    tracer: BlockTracer,
    _disk: MountedDisk,
}

pub(super) struct EnginePlace {
    directory: PathBuf,
    traced: Option<TracedDisk>,
}

impl EnginePlace {
    /// An empty place of `size` bytes. Without loop devices or tracefs it is `scratch` itself, and `report` says so.
    pub(super) fn make(scratch: &Path, size: u64, report: &mut Report) -> Result<EnginePlace> {
        if scratch.exists() {
            fs::remove_dir_all(scratch)?;
        }
        fs::create_dir_all(scratch)?;
        if let Some(reason) = FileSystem::Ext4.obstacle().or_else(BlockTracer::obstacle) {
            report.note(format!("Models: skipped, {reason}."));
            return Ok(EnginePlace { directory: scratch.join("files"), traced: None });
        }
        let disk = MountedDisk::make(scratch, size, FileSystem::Ext4)?;
        let tracer = BlockTracer::of(disk.device().path())?;
        let directory = disk.directory().join("files");
        Ok(EnginePlace { directory, traced: Some(TracedDisk { tracer, _disk: disk }) })
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn start_trace(&self) -> Result<()> {
        self.traced.as_ref().map_or(Ok(()), |traced| traced.tracer.start())
    }

    /// The commands since the start; `None` without a tracer.
    pub(super) fn stop_trace(&self) -> Result<Option<TraceText>> {
        self.traced.as_ref().map(|traced| traced.tracer.stop().map(TraceText)).transpose()
    }
}
