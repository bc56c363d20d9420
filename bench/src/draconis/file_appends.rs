//! `FileAppends`: appends of a page to a file of a journaled ext4, timed, counted and traced on a loop device.

use anyhow::Result;
use copal_bench_harness::{
    block_tracer::BlockTracer,
    loop_device::BlockCounters,
    mounted_disk::{FileSystem, MountedDisk},
};
use std::{
    fs::{self, File},
    io::Write,
    path::Path,
    time::Instant,
};

const DISK_BYTES: u64 = 512 << 20;
/// Appends of each interval.
const COUNT: u64 = 2000;

/// Appends with one interval between their syncs.
pub(super) struct RecordedAppends {
    pub(super) flush_every: u64,
    pub(super) count: u64,
    pub(super) seconds: f64,
    pub(super) cost: BlockCounters,
    /// Trace of the loop device.
    pub(super) lines: String,
}

pub(super) struct FileAppends {
    pub(super) recorded: Vec<RecordedAppends>,
}

impl FileAppends {
    /// Appends with `fdatasync` after each of `intervals`. The inner error is the reason why this machine records none.
    pub(super) fn record(
        scratch: &Path,
        intervals: &[u64],
        bytes: usize,
    ) -> Result<Result<FileAppends, String>> {
        if let Some(reason) = FileSystem::Ext4.obstacle().or_else(BlockTracer::obstacle) {
            return Ok(Err(reason));
        }
        let home = scratch.join("appends");
        fs::create_dir_all(&home)?;
        let disk = MountedDisk::make(&home, DISK_BYTES, FileSystem::Ext4)?;
        let tracer = BlockTracer::of(disk.device().path())?;
        let payload = vec![0x5a; bytes];
        let mut recorded = Vec::new();
        for &flush_every in intervals {
            let mut file = File::create_new(disk.directory().join(format!("file{flush_every}")))?;
            file.write_all(&payload)?;
            file.sync_all()?;
            tracer.start()?;
            let (before, begin) = (disk.counters()?, Instant::now());
            for number in 1..=COUNT {
                file.write_all(&payload)?;
                if number % flush_every == 0 {
                    rustix::fs::fdatasync(&file)?;
                }
            }
            let (seconds, cost) = (begin.elapsed().as_secs_f64(), disk.counters()? - before);
            let lines = tracer.stop()?;
            recorded.push(RecordedAppends { flush_every, count: COUNT, seconds, cost, lines });
        }
        drop(tracer);
        drop(disk);
        fs::remove_dir_all(&home)?;
        Ok(Ok(FileAppends { recorded }))
    }
}
