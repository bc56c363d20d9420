//! Durable appends and updates on one journaled ext4 on a loop device, and appends to streams in it; beside them appends on
//! an ext4 without a journal, and direct writes without a file system's metadata.
//!
//! They take turns in short slices, in rotating order, so that other load on the machine affects all of them. The median
//! of each is compared with the median of append + fdatasync of 512 B, the paper's append.

use super::{super::Study, Options};
use crate::objects::stores::{BenchStore, StreamStore};
use anyhow::{Context, Result};
use copal_bench_harness::{
    chart::BarChart,
    loop_device::BlockCounters,
    mounted_disk::{FileSystem, MountedDisk},
    report::Report,
};
use copal_device::AlignedBuf;
use copal_object::BackendKind;
use std::{
    fs::{self, File},
    io::Write,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    time::{Duration, Instant},
};

const EXT4_BYTES: u64 = 2 << 30;
const STORE_BYTES: u64 = 512 << 20;
/// The file that is updated in place.
const UPDATED_BYTES: u64 = 64 << 20;

/// A way to make a few bytes durable.
struct Variant<'a> {
    name: &'static str,
    operation: Box<dyn FnMut() -> Result<()> + 'a>,
    disk: &'a MountedDisk,
    times: Vec<Duration>,
    commands: BlockCounters,
}

pub(super) fn measure(study: &mut Study, arguments: &Options, chart: &mut BarChart) -> Result<()> {
    let home = study.scratch.join("variants");
    let plain = home.join("no-journal");
    fs::create_dir_all(&plain)?;
    let device = MountedDisk::make(&home, EXT4_BYTES, FileSystem::Ext4)?;
    let no_journal = MountedDisk::make(&plain, EXT4_BYTES, FileSystem::Ext4NoJournal)?;
    let directory = device.directory();
    let in_file = |name: &str, backend| {
        BenchStore::in_file(&directory.join(name), STORE_BYTES, backend).and_then(StreamStore::new)
    };
    let (cow, log) = (in_file("cow", BackendKind::Cow)?, in_file("log", BackendKind::Log)?);
    let control = StreamStore::new(BenchStore::in_directory(&directory.join("files"))?)?;
    let mut variants = vec![
        variant("ext4 append 512 B + fdatasync", &device, append(directory, 512)?),
        variant("ext4 append 4096 B + fdatasync", &device, append(directory, 4096)?),
        variant("ext4 update 512 B + fdatasync", &device, update(directory, 512)?),
        variant("ext4 update 4096 B + fdatasync", &device, update(directory, 4096)?),
        variant("cow stream append 512 B", &device, cow.append(512)),
        variant("cow stream append 4000 B", &device, cow.append(4000)),
        variant("hostfs stream append 512 B", &device, control.append(512)),
        variant("log stream append 512 B", &device, log.append(512)),
        variant(
            "ext4 without a journal, append 512 B + fdatasync",
            &no_journal,
            append(no_journal.directory(), 512)?,
        ),
        variant("direct write of 4096 B (RWF_DSYNC)", &device, write_through(directory)?),
    ];
    let order = variants.len();
    for turn in 0..arguments.turns {
        for step in 0..order {
            let variant = &mut variants[(turn + step) % order];
            let before = variant.disk.counters()?;
            for _ in 0..arguments.slice {
                let started = Instant::now();
                (variant.operation)().context(variant.name)?;
                variant.times.push(started.elapsed());
            }
            let cost = variant.disk.counters()? - before;
            variant.commands += cost;
        }
    }
    judge(&mut study.report, &variants);
    for variant in &variants {
        let median = quantile(&variant.times, 0.5).as_secs_f64();
        chart.bar(format!("loop: {}", variant.name), 1.0 / median.max(1e-9));
    }
    drop(variants);
    drop((cow, log, control));
    drop((device, no_journal));
    fs::remove_dir_all(&home)?;
    Ok(())
}

/// Times and commands of each variant, and the ratios of their medians.
fn judge(report: &mut Report, variants: &[Variant<'_>]) {
    let micros = |variant: &Variant<'_>, share: f64| quantile(&variant.times, share).as_secs_f64() * 1e6;
    for variant in variants {
        let operations = variant.times.len() as f64;
        report.fact(format!("loop: {}: p50", variant.name), micros(variant, 0.5), "us");
        report.detail(format!("loop: {}: p90", variant.name), micros(variant, 0.9), "us");
        report.detail(format!("loop: {}: p99", variant.name), micros(variant, 0.99), "us");
        report.fact(
            format!("loop: {}: writes and bare flushes", variant.name),
            variant.commands.writes as f64 / operations,
            "",
        );
        report.fact(
            format!("loop: {}: flushes", variant.name),
            variant.commands.flushes as f64 / operations,
            "",
        );
        report.fact(
            format!("loop: {}: bytes", variant.name),
            variant.commands.write_bytes as f64 / operations,
            "B",
        );
    }
    let append = micros(&variants[0], 0.5);
    let ratio = append / micros(&variants[4], 0.5);
    report.at_least("ext4 append 512 B / cow stream append 512 B, medians", ratio, "x", 2.5);
    let ratio = micros(&variants[8], 0.5) / micros(&variants[4], 0.5);
    report.at_least(
        "ext4 without a journal, append 512 B / cow stream append 512 B, medians",
        ratio,
        "x",
        1.5,
    );
    let ratio = micros(&variants[9], 0.5) / micros(&variants[4], 0.5);
    report.at_least("direct write of 4096 B (RWF_DSYNC) / cow stream append 512 B, medians", ratio, "x", 0.9);
    let paper = append / micros(&variants[2], 0.5);
    report.fact("ext4 append 512 B / ext4 update 512 B, medians (the paper: more than 4)", paper, "x");
    let files = append / micros(&variants[6], 0.5);
    report.fact("ext4 append 512 B / hostfs stream append 512 B, medians (the control)", files, "x");
}

fn variant<'a>(
    name: &'static str,
    disk: &'a MountedDisk,
    operation: impl FnMut() -> Result<()> + 'a,
) -> Variant<'a> {
    let (times, commands) = (Vec::new(), BlockCounters::default());
    Variant { name, operation: Box::new(operation), disk, times, commands }
}

/// Overwrites pages of a fully written file past the page cache, each durable by itself.
fn write_through(directory: &Path) -> Result<impl FnMut() -> Result<()> + use<>> {
    let path = directory.join("direct");
    fs::write(&path, vec![0; UPDATED_BYTES as usize])?;
    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = File::options().write(true).custom_flags(flags).open(&path)?;
    file.sync_all()?;
    let payload = AlignedBuf::zeroed(4096);
    let mut place = 0;
    Ok(move || {
        place = (place + 4096) % UPDATED_BYTES;
        let parts = [std::io::IoSlice::new(&payload)];
        rustix::io::pwritev2(&file, &parts, place, rustix::io::ReadWriteFlags::DSYNC)?;
        Ok(())
    })
}

pub(super) fn append(directory: &Path, bytes: usize) -> Result<impl FnMut() -> Result<()> + use<>> {
    let mut file = File::create_new(directory.join(format!("append{bytes}")))?;
    let payload = vec![0x5a; bytes];
    Ok(move || {
        file.write_all(&payload)?;
        Ok(rustix::fs::fdatasync(&file)?)
    })
}

/// Overwrites places of a fully written file, in a scattered order.
pub(super) fn update(directory: &Path, bytes: usize) -> Result<impl FnMut() -> Result<()> + use<>> {
    let mut file = File::create_new(directory.join(format!("update{bytes}")))?;
    let zeros = vec![0; 1 << 20];
    for _ in 0..UPDATED_BYTES >> 20 {
        file.write_all(&zeros)?;
    }
    file.sync_all()?;
    let payload = vec![0x5a; bytes];
    let mut place = 0;
    Ok(move || {
        place = (place + 4096 * 1021) % UPDATED_BYTES;
        file.write_all_at(&payload, place)?;
        Ok(rustix::fs::fdatasync(&file)?)
    })
}

fn quantile(times: &[Duration], share: f64) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let index = (sorted.len() as f64 * share) as usize;
    sorted.get(index.min(sorted.len().saturating_sub(1))).copied().unwrap_or_default()
}
