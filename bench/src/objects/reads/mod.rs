//! `object-reads`: disk commands of whole operations of a backup program, beside restic and objects as files.
//!
//! One VM of 512 MiB is backed up on seven days. Five operations are traced: the last backup, restores before and
//! after a prune, a check of all data, and the prune. Their commands are replayed on the models of a hard disk and a
//! flash drive. The traces are stored in `bench/traces`, so a run needs neither root nor tracefs. `--record` records them anew.
//!
//! Invariant: seconds are those of a model, never of the machine. Processor times are of the recording.
//!
//! Not here: the models (`copal_device::emulated`).

mod image;
mod program;
mod recording;
mod traces;

use anyhow::{Context, Result};
use clap::Args;
use copal_bench_harness::{block_tracer::BlockTracer, model_disk::ModelDisk, report::Report};
use copal_device::emulated::ReplaySummary;
use image::IMAGE_BYTES;
use program::{COW, COW_BEFORE, COW_FLASH, HOSTFS, Operation, Program, RESTIC};
use recording::Binaries;
use std::path::{Path, PathBuf};
use traces::TraceFolder;
use xtask::copal;

/// Disk over which the head of the model moves.
const DISK_BYTES: u64 = 1 << 40;
/// Bytes to which the targets of read commands refer.
const UNIT_BYTES: f64 = 600e6;

#[derive(Args)]
pub(crate) struct Options {
    /// Record the traces anew first: needs root, tracefs and loop devices
    #[arg(long)]
    record: bool,
    /// Record only these programs, comma-separated (cow, cow-flash, cow-before, hostfs, restic)
    #[arg(long, value_delimiter = ',', requires = "record")]
    only: Vec<String>,
    /// Binary of Copal to record [default: built here]
    #[arg(long, requires = "record")]
    copal: Option<PathBuf>,
    /// Binary of Copal of the commit to compare with
    #[arg(long, requires = "record")]
    before: Option<PathBuf>,
    /// Directory of disks and loop devices [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench").join("object-reads");
    let folder = TraceFolder::new(root);
    if options.record {
        match BlockTracer::obstacle() {
            Some(reason) => println!("recording: skipped, {reason}; the stored traces are replayed"),
            None => recording::record(&binaries(root, options)?, &scratch, &options.only, &folder)?,
        }
    }
    let mut report = Report::new(root, root);
    judge(&mut report, &folder)?;
    report.finish(root, "object-reads")
}

fn binaries(root: &Path, options: &Options) -> Result<Binaries> {
    let copal = options.copal.clone().map_or_else(|| copal::build_release(root), Ok)?;
    let directories = std::env::var_os("PATH").unwrap_or_default();
    let restic = std::env::split_paths(&directories).map(|directory| directory.join("restic"));
    Ok(Binaries {
        copal,
        before: options.before.clone(),
        restic: restic.into_iter().find(|path| path.exists()),
    })
}

/// Commands of one operation on a model.
fn replay(
    folder: &TraceFolder,
    program: Program,
    operation: Operation,
    on_flash: bool,
) -> Result<ReplaySummary> {
    let trace = folder.trace(program.name, operation.name())?;
    let (device, _) = trace.devices().next().context("a trace without commands")?;
    let model = if on_flash { ModelDisk::Ssd } else { ModelDisk::Hdd };
    Ok(ReplaySummary::replay(trace.commands(device), &mut *model.model(DISK_BYTES)))
}

/// Adds the rows of all operations.
fn judge(report: &mut Report, folder: &TraceFolder) -> Result<()> {
    for operation in Operation::ALL {
        let name = operation.name();
        let on_disk = |program| replay(folder, program, operation, false);
        let (cow, hostfs, restic) = (on_disk(COW)?, on_disk(HOSTFS)?, on_disk(RESTIC)?);
        for (program, summary) in
            [(COW, &cow), (HOSTFS, &hostfs), (RESTIC, &restic), (COW_BEFORE, &on_disk(COW_BEFORE)?)]
        {
            report.fact(
                format!("{name}, {}: seconds of the hard disk", program.name),
                summary.time.as_secs_f64(),
                "s",
            );
            report.fact(format!("{name}, {}: read commands", program.name), summary.reads as f64, "");
            report.detail(format!("{name}, {}: bytes read", program.name), summary.read_bytes as f64, "B");
            report.detail(format!("{name}, {}: write commands", program.name), summary.writes as f64, "");
            report.detail(
                format!("{name}, {}: bytes written", program.name),
                summary.write_bytes as f64,
                "B",
            );
            report.detail(format!("{name}, {}: flushes", program.name), summary.flushes as f64, "");
        }
        let seconds = cow.time.as_secs_f64();
        let ratio = seconds / restic.time.as_secs_f64();
        let most = match operation {
            Operation::Incremental | Operation::Restore | Operation::RestorePruned => 1.2,
            Operation::Check => 1.5,
            Operation::Prune => 2.5,
        };
        report.at_most(format!("{name}, hard disk: cow / restic"), ratio, "x", most);
        match operation {
            Operation::Restore | Operation::RestorePruned => {
                let reads = cow.reads as f64 * UNIT_BYTES / IMAGE_BYTES as f64;
                report.at_most(format!("{name}, cow: read commands per 600 MB"), reads, "", 1200.0);
            }
            Operation::Prune => {
                let ratio = seconds / hostfs.time.as_secs_f64();
                report.at_most(format!("{name}, hard disk: cow / hostfs"), ratio, "x", 1.0);
                report.at_most(format!("{name}, cow: read commands"), cow.reads as f64, "", 1000.0);
            }
            Operation::Incremental | Operation::Check => {}
        }
        // Ranges handed over together, against one range at a time.
        let least = match operation {
            Operation::RestorePruned => Some(8.0),
            Operation::Prune => Some(15.0),
            Operation::Incremental | Operation::Restore | Operation::Check => None,
        };
        if let Some(least) = least {
            let ratio = on_disk(COW_BEFORE)?.time.as_secs_f64() / seconds;
            report.at_least(format!("{name}, hard disk: cow before / cow"), ratio, "x", least);
        }
        against_before(report, folder, operation)?;
    }
    Ok(())
}

/// Flash and processor, against the commit before ranges were read together.
fn against_before(report: &mut Report, folder: &TraceFolder, operation: Operation) -> Result<()> {
    let name = operation.name();
    let time = |program| Ok::<_, anyhow::Error>(replay(folder, program, operation, true)?.time.as_secs_f64());
    let ratio = time(COW_FLASH)? / time(COW_BEFORE)?;
    report.at_most(format!("{name}, flash drive: cow / cow before"), ratio, "x", 1.05);
    let runs = folder.runs()?;
    let cpu = |program: Program| {
        let seconds = runs.get(program.name).and_then(|run| run.cpu_seconds(operation));
        seconds.with_context(|| format!("runs.json lacks {name} of {}", program.name))
    };
    let ratio = cpu(COW_FLASH)? / cpu(COW_BEFORE)?;
    report.at_most(format!("{name}, processor time: cow / cow before"), ratio, "x", 1.05);
    Ok(())
}
