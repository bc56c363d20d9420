//! `object-foreign`: a program that knows nothing of models, on models of disks at their own speed.
//!
//! `dd` runs on a loop device over nbdfuse over our own NBD server, with the paced model behind it. Rates are those of
//! the wall clock. Kernel, FUSE and server take most of a millisecond for a command. That hides in a turn of the hard
//! disk, and not in the times of a flash drive. Counts are those of the model.

use super::fresh;
use crate::disk_server::{DeviceDisk, FuseFile};
use anyhow::{Context, Result};
use clap::Args;
use copal_bench_harness::{
    loop_device::LoopDevice,
    model_disk::ModelDisk,
    mounted_disk::{FileSystem, MountedDisk},
    report::Report,
};
use copal_device::{Device, DeviceCounters, Image};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Instant,
};
use xtask::metered;

const DISK_BYTES: u64 = 16 << 30;
/// Connections of nbdfuse: commands that wait together reach the disk together.
const CONNECTIONS: u32 = 4;

#[derive(Args)]
pub(crate) struct Options {
    /// Directory of sockets and mounts [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Durable writes of each kind
    #[arg(long, default_value_t = 600)]
    writes: u64,
    /// Bytes of each sequential run
    #[arg(long, value_name = "MIB", default_value_t = 256)]
    sequential_mib: u64,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench").join("object-foreign");
    fresh(&scratch)?;
    let mut report = Report::new(root, &scratch);
    match LoopDevice::obstacle().or_else(FuseFile::obstacle) {
        Some(reason) => report.note(format!("All rows skipped: {reason}.")),
        None => {
            for model in [ModelDisk::Hdd, ModelDisk::ConsumerSsd] {
                measure(model, &scratch.join(model.name()), options, &mut report)
                    .with_context(|| format!("on the {}", model.name()))?;
            }
            report.note("One turn of the hard disk allows 120 durable writes a second.");
        }
    }
    fs::remove_dir_all(&scratch)?;
    report.finish(root, "object-foreign")
}

/// A loop device over a model.
struct ForeignDisk {
    device: Arc<dyn Device>,
    disk: LoopDevice,
}

/// Runs dd; returns its seconds and the commands that the model had.
fn copy(device: &dyn Device, words: &[String]) -> Result<(f64, DeviceCounters)> {
    let (before, begin) = (device.counters(), Instant::now());
    metered::run(Command::new("dd").args(words))?.success("dd")?;
    Ok((begin.elapsed().as_secs_f64(), device.counters() - before))
}

fn measure(model: ModelDisk, home: &Path, options: &Options, report: &mut Report) -> Result<()> {
    fs::create_dir_all(home)?;
    let device = model.paced(Box::new(Image::zeroed(DISK_BYTES)))?;
    // Dropped from the last to the first.
    let file = FuseFile::serve(DeviceDisk::new(Arc::clone(&device)), home, CONNECTIONS)?;
    let foreign = ForeignDisk { device, disk: LoopDevice::over(file.path())? };
    let (name, path) = (model.name(), foreign.disk.path().display().to_string());
    let to_disk = |words: &[&str]| -> Vec<String> {
        let own = ["if=/dev/zero".to_owned(), format!("of={path}")];
        own.into_iter().chain(words.iter().map(|word| (*word).to_owned())).collect()
    };
    let count = format!("count={}", options.writes);
    let (seconds, commands) = copy(&*foreign.device, &to_disk(&["bs=4k", &count, "oflag=direct,dsync"]))?;
    let rate = options.writes as f64 / seconds;
    match model {
        ModelDisk::Hdd => report.within(format!("{name}: durable writes of 4 KiB"), rate, "/s", 119.0, 12.0),
        _ => report.fact(format!("{name}: durable writes of 4 KiB"), rate, "/s"),
    }
    let of_each = |count: u64| count as f64 / options.writes as f64;
    report.detail(format!("{name}: writes of the model for each"), of_each(commands.writes), "");
    report.detail(format!("{name}: flushes of the model for each"), of_each(commands.flushes), "");
    let blocks = format!("count={}", options.sequential_mib);
    let mut rate = |what: &str, words: Vec<String>| -> Result<()> {
        let (seconds, _) = copy(&*foreign.device, &words)?;
        let bytes = (options.sequential_mib << 20) as f64;
        report.fact(format!("{name}: sequential {what}"), bytes / seconds / 1e6, "MB/s");
        Ok(())
    };
    rate("writes of 1 MiB, one at a time", to_disk(&["bs=1M", &blocks, "oflag=direct"]))?;
    rate("writes through the page cache", to_disk(&["bs=1M", &blocks, "conv=fsync"]))?;
    let read = |flag: &str| -> Vec<String> {
        let words = [format!("if={path}"), "of=/dev/null".to_owned(), "bs=1M".to_owned(), blocks.clone()];
        words.into_iter().chain([flag.to_owned()]).collect()
    };
    rate("reads of 1 MiB, one at a time", read("iflag=direct"))?;
    // Pages that are in the cache leave it.
    rate("reads through the page cache", read("iflag=nocache"))?;
    appends_through_ext4(name, home, foreign, options, report)
}

/// Durable appends to a file: each has a journal commit below it.
fn appends_through_ext4(
    name: &str,
    home: &Path,
    foreign: ForeignDisk,
    options: &Options,
    report: &mut Report,
) -> Result<()> {
    let row = format!("{name}: durable appends of 4 KiB through ext4");
    if let Some(reason) = FileSystem::Ext4.obstacle() {
        report.note(format!("{row}: skipped, {reason}."));
        return Ok(());
    }
    let ForeignDisk { device, disk } = foreign;
    FileSystem::Ext4.make_on(disk.path())?;
    let mount = MountedDisk::mount(disk, &home.join("ext4"), FileSystem::Ext4)?;
    let writes = (options.writes / 4).max(1);
    let words = ["if=/dev/zero", "bs=4k", "oflag=dsync,append", "conv=notrunc"]
        .map(str::to_owned)
        .into_iter()
        .chain([format!("of={}", mount.directory().join("log").display()), format!("count={writes}")]);
    let (seconds, commands) = copy(&*device, &words.collect::<Vec<_>>())?;
    report.fact(row, writes as f64 / seconds, "/s");
    report.detail(
        format!("{name}: writes of the model for each append"),
        commands.writes as f64 / writes as f64,
        "",
    );
    Ok(())
}
