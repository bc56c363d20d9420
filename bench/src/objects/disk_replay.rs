//! `disk-replay`: block traces of programs, replayed on a model of a disk.
//!
//! A trace is the text of tracefs, also packed by zstd. To record one of a device, as root:
//! `cd /sys/kernel/tracing; echo 1 | tee events/block/block_rq_{issue,complete,requeue}/enable; cat trace_pipe`.
//! Completions are not required; without them the queue depth follows from the times of the issues.
//!
//! The seconds are those of the disk: the processor time of the program is not in them. Commands are not merged
//! again, because the kernel has merged them before it issued them.
//!
//! Not here: the models and the order of a replay (`copal_device::emulated`).

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use copal_bench_harness::report::Report;
use copal_device::emulated::{
    BlockTrace, DeviceNumber, DiskModel, HddModel, HddProfile, ReplaySummary, SsdModel, SsdProfile,
    TraceCommand,
};
use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
};

const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const GZIP: [u8; 2] = [0x1f, 0x8b];

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReplayDisk {
    /// A disk of 7,200 turns a minute without caches
    Hdd,
    /// A flash drive with power-loss protection
    Ssd,
}

#[derive(Args)]
pub(crate) struct Options {
    /// Files with the text of tracefs, also packed by zstd
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Model of the disk
    #[arg(long, value_enum, default_value = "hdd")]
    on: ReplayDisk,
    /// Device of the trace, as in 7:0; needed if a trace has several
    #[arg(long, value_name = "MAJOR:MINOR")]
    device: Option<DeviceNumber>,
    /// Size of the disk over which its head moves; larger if the trace has later addresses
    #[arg(long, value_name = "GIB", default_value_t = 1024)]
    disk_gib: u64,
    /// Give the hard disk a memory of the track: a read that continues the last one takes its transfer only
    #[arg(long)]
    read_ahead: bool,
    /// Give the hard disk a volatile write cache, which a flush empties in one sweep
    #[arg(long, value_name = "MIB", default_value_t = 0)]
    write_cache_mib: u64,
    /// Print the results as JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut report = Report::new(root, root);
    for path in &options.traces {
        let trace = read(path).with_context(|| format!("reading {}", path.display()))?;
        let commands = commands(&trace, options.device).with_context(|| path.display().to_string())?;
        let end = commands.iter().map(|traced| traced.command.end()).max().unwrap_or(0);
        let size = options.disk_gib.saturating_mul(1 << 30).max(end).max(1 << 20);
        let mut model: Box<dyn DiskModel> = match options.on {
            ReplayDisk::Hdd => Box::new(HddModel::new(size, disk(options))),
            ReplayDisk::Ssd => Box::new(SsdModel::new(size, SsdProfile::default())),
        };
        let summary = ReplaySummary::replay(commands, &mut *model);
        add_rows(&mut report, &name_of(path), &summary);
    }
    if options.json { report.finish_as_json(root, "disk-replay") } else { report.finish(root, "disk-replay") }
}

/// The hard disk with the switches of the command line.
fn disk(options: &Options) -> HddProfile {
    HddProfile {
        read_ahead: options.read_ahead,
        write_cache_bytes: options.write_cache_mib.saturating_mul(1 << 20),
        ..HddProfile::default()
    }
}

/// Reads a trace, packed or not.
fn read(path: &Path) -> Result<BlockTrace> {
    let mut file = BufReader::new(File::open(path)?);
    let begin = file.fill_buf()?;
    ensure!(!begin.starts_with(&GZIP), "it is packed by gzip; unpack it, or pack it by zstd");
    let trace = if begin.starts_with(&ZSTD) {
        BlockTrace::read(BufReader::new(zstd::Decoder::with_buffer(file)?))
    } else {
        BlockTrace::read(file)
    };
    Ok(trace?)
}

/// Commands of the device, or of the only one.
fn commands(trace: &BlockTrace, device: Option<DeviceNumber>) -> Result<&[TraceCommand]> {
    let found: Vec<(DeviceNumber, usize)> = trace.devices().collect();
    let list = || {
        let names = found.iter().map(|(device, count)| format!("{device} with {count} commands"));
        names.collect::<Vec<_>>().join(", ")
    };
    match (device, &found[..]) {
        (_, []) => bail!("no block_rq_issue in {} other lines", trace.unknown_lines()),
        (None, [(only, _)]) => Ok(trace.commands(*only)),
        (None, _) => bail!("it has several devices, choose one with --device: {}", list()),
        (Some(device), _) if trace.commands(device).is_empty() => {
            bail!("it has no commands of {device}, but of: {}", list())
        }
        (Some(device), _) => Ok(trace.commands(device)),
    }
}

/// The file's name up to its first dot.
fn name_of(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

fn add_rows(report: &mut Report, name: &str, summary: &ReplaySummary) {
    report.fact(format!("{name}: seconds of the disk"), summary.time.as_secs_f64(), "s");
    report.fact(format!("{name}: read commands"), summary.reads as f64, "");
    report.fact(format!("{name}: bytes read"), summary.read_bytes as f64, "B");
    report.fact(format!("{name}: write commands"), summary.writes as f64, "");
    report.fact(format!("{name}: bytes written"), summary.write_bytes as f64, "B");
    report.fact(format!("{name}: flushes"), summary.flushes as f64, "");
    report.detail(format!("{name}: discards"), summary.discards as f64, "");
    report.detail(format!("{name}: moves of the head"), summary.counters.seeks as f64, "");
    report.detail(format!("{name}: positioning"), summary.counters.positioning.as_secs_f64(), "s");
    report.detail(format!("{name}: partly written units"), summary.counters.partial_units as f64, "");
}
