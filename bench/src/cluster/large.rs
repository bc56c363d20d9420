//! One data server with millions of files: memory per file, and time to restart after a kill.
//!
//! Both are measured at two numbers of files. Memory per file is the difference; the time for 100 million
//! files is extrapolated along the line through both.

use super::{
    load,
    running::{Process, Running, Setup},
};
use anyhow::{Context, Result};
use clap::Args;
use copal_bench_harness::report::{Report, median};
use copal_testkit::Random;
use copal_volume::{ReadOptions, VolumeId, VolumeOptions, VolumeStore};
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use xtask::copal;

/// V4 of the design: files, and seconds.
const WANTED_FILES: f64 = 100e6;
const RESTART_LIMIT: f64 = 10.0;
/// V3: resident bytes a file.
const MEMORY_LIMIT: f64 = 1.0;
/// Random reads after which the caches are full.
const READS: u64 = 20_000;
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Args)]
pub(crate) struct Options {
    /// Number of files at first
    #[arg(long, default_value_t = 200_000)]
    first: u64,
    /// Number of files in the end
    #[arg(long, default_value_t = 1_000_000, env = "COPAL_BENCH_FILES")]
    files: u64,
    /// Bytes of a file
    #[arg(long, default_value_t = 16)]
    bytes: usize,
    /// Memory of the data server, in the form of `--memory`
    #[arg(long, default_value = "256M")]
    memory: String,
    /// Kills at each number of files; figures are medians
    #[arg(long, default_value_t = 3)]
    kills: usize,
    /// Directory of the cluster [default: .cache/bench/large]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

/// Figures of a server with a number of files.
struct Measured {
    files: f64,
    /// Resident memory of its own, right after a start and after random reads.
    idle_bytes: f64,
    used_bytes: f64,
    /// Seconds from its start until it reports that it is ready, and until a client has read a file.
    ready: f64,
    read: f64,
}

pub(crate) fn memory(root: &Path, options: &Options) -> Result<()> {
    let (mut report, few, many) = measure(root, options)?;
    let more = many.files - few.files;
    for at in [&few, &many] {
        let files = at.files / 1e6;
        report.fact(format!("{files} M files: resident after a start"), at.idle_bytes / 1e6, "MB");
        report.fact(format!("{files} M files: resident after reads"), at.used_bytes / 1e6, "MB");
    }
    report.fact("a file: resident after a start", (many.idle_bytes - few.idle_bytes) / more, "B");
    let each = (many.used_bytes - few.used_bytes) / more;
    report.at_most("a file: resident after reads", each, "B", MEMORY_LIMIT);
    report.finish(root, "volume-memory")
}

pub(crate) fn restart(root: &Path, options: &Options) -> Result<()> {
    let (mut report, few, many) = measure(root, options)?;
    for at in [&few, &many] {
        let files = at.files / 1e6;
        report.fact(format!("{files} M files: until it is ready"), at.ready, "s");
        report.at_most(format!("{files} M files: until a file is read"), at.read, "s", RESTART_LIMIT);
    }
    let each = (many.read - few.read) / (many.files - few.files);
    let then = many.read + each.max(0.0) * (WANTED_FILES - many.files);
    report.at_most("100 M files, along the line through both", then, "s", RESTART_LIMIT);
    report.finish(root, "volume-restart")
}

/// A cluster of one data server, filled twice.
fn measure(root: &Path, options: &Options) -> Result<(Report, Measured, Measured)> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench/large");
    fs::create_dir_all(&scratch)?;
    let directory = tempfile::tempdir_in(&scratch)?;
    let binary = copal::build_release(root)?;
    let mut report = Report::new(root, &scratch);
    let setup = Setup {
        replicas: 1,
        groups: 8,
        data: vec!["--memory".to_owned(), options.memory.clone()],
        ..Setup::of(1)
    };
    let mut cluster = Running::start(&binary, &directory.path().join("cluster"), &setup)?;
    let volumes = (0..8).map(|number| {
        let made = cluster.store().create_volume("", &format!("box{number}"), &VolumeOptions::default());
        made.context("making a volume")
    });
    let volumes: Vec<VolumeId> = volumes.collect::<Result<_>>()?;
    let few = fill(&mut report, &mut cluster, &volumes, 0, options.first, options)?;
    let many = fill(&mut report, &mut cluster, &volumes, options.first, options.files, options)?;
    Ok((report, few, many))
}

/// Puts files up to a number, waits until merges and journals are done, and measures.
fn fill(
    report: &mut Report,
    cluster: &mut Running,
    volumes: &[VolumeId],
    from: u64,
    to: u64,
    options: &Options,
) -> Result<Measured> {
    let each = |files: u64| files / volumes.len() as u64;
    let mut speeds = Vec::new();
    for vid in volumes {
        speeds.push(load::put(cluster.store(), *vid, each(from)..each(to), options.bytes)?);
    }
    let files = each(to) * volumes.len() as u64;
    let millions = files as f64 / 1e6;
    report.fact(format!("{millions} M files: put in batches"), median(speeds).unwrap_or_default(), "/s");
    rest(cluster.server(0)?)?;
    let (mut ready, mut read, mut idle) = (Vec::new(), Vec::new(), Vec::new());
    let mut random = Random::new(to);
    for _ in 0..options.kills.max(1) {
        cluster.kill(0)?;
        // Drops the page cache of its files, where permitted: a rebooted machine has none.
        let _ = fs::write("/proc/sys/vm/drop_caches", "1");
        let began = Instant::now();
        cluster.start_again(0)?;
        ready.push(began.elapsed().as_secs_f64());
        get(cluster, volumes, random.below(each(to)), options.bytes)?;
        read.push(began.elapsed().as_secs_f64());
        idle.push(resident_bytes(cluster.server(0)?)?);
    }
    for number in 0..READS {
        let vid = number as usize % volumes.len();
        get(cluster, &volumes[vid..=vid], random.below(each(to)), options.bytes)?;
    }
    let middle = |values: Vec<f64>| median(values).unwrap_or_default();
    Ok(Measured {
        files: files as f64,
        idle_bytes: middle(idle),
        used_bytes: resident_bytes(cluster.server(0)?)?,
        ready: middle(ready),
        read: middle(read),
    })
}

/// Reads a file of the first volume.
fn get(cluster: &Running, volumes: &[VolumeId], number: u64, bytes: usize) -> Result<()> {
    let (vid, name) = (volumes[0], load::name(number));
    let body = cluster.store().get(vid, &name, 0..u64::MAX, &ReadOptions::default())?;
    anyhow::ensure!(body.len() == bytes, "a file of {bytes} bytes has {}", body.len());
    Ok(())
}

/// Waits until the journals are cut and no merge is due.
fn rest(server: &Process) -> Result<()> {
    let end = Instant::now() + PATIENCE;
    loop {
        let metrics = server.metrics()?;
        let of = |name: &str| metrics.get(name).copied().with_context(|| format!("no {name}"));
        let open = of("copal_journal_operations")? + of("copal_kv_debt_bytes")?;
        if open == 0.0 {
            return Ok(());
        }
        if Instant::now() > end {
            eprintln!("after {} s: {open} operations in journals and bytes to merge", PATIENCE.as_secs());
            return Ok(());
        }
        thread::sleep(Duration::from_secs(1));
    }
}

/// Resident private memory of the process, without pages of mapped files.
fn resident_bytes(process: &Process) -> Result<f64> {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid()))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("RssAnon")?;
    Ok(kib.parse::<f64>()? * 1024.0)
}
