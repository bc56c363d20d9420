//! `object-powercut`: power cuts of a recorded run of the real binary.
//!
//! `copal init` and a row of backups run on a block device. Below it lies our own NBD server (through nbdfuse and a loop
//! device), which records each write and flush with its data. A cut takes a moment of the run and any subset of the
//! writes that no flush covers, torn at sectors of 512 B. The same binary then opens the disk: it must list the snapshots
//! whose backup had ended, restore the newest of them byte for byte, and find no damage. `cow` and `log` lie on the bare
//! device; `hostfs` on an ext4, which is mounted again after each cut.
//!
//! The control answers flushes without making anything durable. It must lose snapshots, or the suite proves nothing.

mod cut_check;
mod recorded_disk;
mod recorded_run;
mod repository;

use super::fresh;
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::Report;
use copal_device::crash::{self, StateLimits};
use copal_object::BackendKind;
use copal_testkit::Random;
use cut_check::CutCheck;
use recorded_run::RecordedRun;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};
use xtask::copal;

#[derive(Args)]
pub(crate) struct Options {
    /// Power cuts of each backend
    #[arg(long, default_value_t = 200)]
    cuts: u64,
    /// Power cuts of the control
    #[arg(long, default_value_t = 20)]
    control_cuts: u64,
    /// Backups of a run
    #[arg(long, default_value_t = 8)]
    backups: u64,
    /// Only these backends, comma-separated (cow, log, hostfs)
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Binary of Copal [default: built here]
    #[arg(long)]
    copal: Option<PathBuf>,
    /// Directory of disks [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench").join("object-powercut");
    fresh(&scratch)?;
    let mut report = Report::new(root, &scratch);
    if let Some(reason) = recorded_run::obstacle() {
        report.note(format!("Skipped: {reason}."));
        return report.finish(root, "object-powercut");
    }
    let binary = options.copal.clone().map_or_else(|| copal::build_release(root), Ok)?;
    for backend in [BackendKind::Cow, BackendKind::Log, BackendKind::Hostfs] {
        if !options.only.is_empty() && !options.only.iter().any(|name| name == backend.name()) {
            continue;
        }
        for ignores_flushes in [false, true] {
            let cuts = if ignores_flushes { options.control_cuts } else { options.cuts };
            cut(&binary, &scratch, backend, ignores_flushes, cuts, options, &mut report)?;
        }
    }
    report.note("The recorded program is the real binary; only its disk is simulated.");
    fs::remove_dir_all(&scratch)?;
    report.finish(root, "object-powercut")
}

/// Records a run and cuts it.
fn cut(
    binary: &Path,
    scratch: &Path,
    backend: BackendKind,
    ignores_flushes: bool,
    cuts: u64,
    options: &Options,
    report: &mut Report,
) -> Result<()> {
    let home = scratch.join("run");
    fresh(&home)?;
    let recorded = RecordedRun::record(binary, &home, backend, ignores_flushes, options.backups)?;
    let check = CutCheck::new(binary, &scratch.join("cut"), backend)?;
    let mut random = Random::new(options.seed);
    let begin = Instant::now();
    let mut losses: Vec<String> = Vec::new();
    let mut open_changes = 0;
    for _ in 0..cuts {
        let first = recorded.first_step();
        let step = first + random.index(recorded.history.len() - first + 1);
        let states = crash::states(&recorded.history, step, &StateLimits::default());
        let Some(state) = states.get(random.below(states.count_all())) else { continue };
        open_changes += u64::from(states.count_all() > 1);
        if let Some(loss) = check.loss(&recorded, step, state.image())? {
            tell(backend, &format!("{step} events, state {}", state.index()), &loss);
            losses.push(loss);
        }
    }
    let row = format!("{}{}", backend.name(), if ignores_flushes { ", control without flushes" } else { "" });
    report.fact(format!("{row}: power cuts"), cuts as f64, "");
    report.fact(format!("{row}: cuts with writes that no flush covers"), open_changes as f64, "");
    report.detail(format!("{row}: recorded events"), recorded.history.len() as f64, "");
    report.detail(format!("{row}: seconds of all cuts"), begin.elapsed().as_secs_f64(), "s");
    let name = format!("{row}: cuts that lost an acknowledged backup");
    match ignores_flushes {
        true => report.at_least(name, losses.len() as f64, "", 1.0),
        false => report.exactly(name, losses.len() as f64, "", 0.0),
    }
    fs::remove_dir_all(&home)?;
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a loss must be found again")]
fn tell(backend: BackendKind, state: &str, loss: &str) {
    println!("{}: after {state}: {loss}", backend.name());
}
