//! Recorded commands of durable appends and updates through file systems, replayed on the models.

use super::super::Study;
use super::variants::{append, update};
use anyhow::Result;
use copal_bench_harness::{
    block_tracer::BlockTracer,
    chart::BarChart,
    model_disk::ModelDisk,
    mounted_disk::{FileSystem, MountedDisk},
};
use std::fs;

const DISK_BYTES: u64 = 512 << 20;
const OPERATIONS: u64 = 500;

/// A durable operation on a file.
type FileOperation = Box<dyn FnMut() -> Result<()>>;

pub(super) fn replay(study: &mut Study, chart: &mut BarChart) -> Result<()> {
    for system in [FileSystem::Ext4, FileSystem::Ext4SmallBlocks, FileSystem::Xfs] {
        if let Some(reason) = system.obstacle().or_else(BlockTracer::obstacle) {
            study.report.note(format!("Traces of {}: skipped, {reason}.", system.name()));
            continue;
        }
        let home = study.scratch.join("traces");
        fs::create_dir_all(&home)?;
        let disk = MountedDisk::make(&home, DISK_BYTES, system)?;
        let tracer = BlockTracer::of(disk.device().path())?;
        let directory = disk.directory();
        let operations: [(&str, FileOperation); 3] = [
            ("append of 512 B", Box::new(append(directory, 512)?)),
            ("append of 4096 B", Box::new(append(directory, 4096)?)),
            ("update of 4096 B", Box::new(update(directory, 4096)?)),
        ];
        for (name, mut operation) in operations {
            tracer.start()?;
            for _ in 0..OPERATIONS {
                operation()?;
            }
            let lines = tracer.stop()?;
            for kind in study.disks.clone() {
                let Some(model) = kind.model() else { continue };
                let replayed = model.replay(&lines)?;
                let rate = OPERATIONS as f64 / replayed.time.as_secs_f64();
                let row = format!("{}: {name}, {}", model.name(), system.name());
                study.report.fact(&row, rate, "/s");
                chart.bar(&row, rate);
                if model == ModelDisk::Ssd {
                    let whole =
                        OPERATIONS as f64 / ModelDisk::SsdOfSectors.replay(&lines)?.time.as_secs_f64();
                    let partial = replayed.counters.partial_units as f64 / OPERATIONS as f64;
                    study.report.fact(format!("{row}: partial pages"), partial, "");
                    study.report.fact(format!("{row}: read-modify-write alone"), whole / rate, "x");
                }
            }
        }
        drop(tracer);
        drop(disk);
        fs::remove_dir_all(&home)?;
    }
    Ok(())
}
