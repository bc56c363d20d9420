//! Targets of the measured programs: Copal beside its peers, and beside its own limits.

use super::{Measured, Program, Prune, Restored};
use anyhow::{Context, Result, bail};
use copal_bench_harness::report::Report;
use xtask::dataset::oracle::{Day, Oracle};

/// Greatest peak memory of a backup, a restore, a forget.
const LIMIT_MEGABYTES: f64 = 100.0;
/// Greatest ratio of bytes read to changed bytes in a backup with changed extents, for every VM and day.
const READ_OF_DIRTY: f64 = 1.3;

pub(super) fn judge(report: &mut Report, all: &[(Program, Measured)], oracle: &Oracle) -> Result<()> {
    let find =
        |name: &str| all.iter().find(|(program, _)| program.name == name).map(|(_, measured)| measured);
    let last_day = oracle.vms.iter().filter_map(|vm| vm.days.last()).map(|day| day.day).max().unwrap_or(0);
    for (program, measured) in all {
        facts_of(report, program.name, measured, last_day);
    }
    let Some(ours) = find("copal") else { bail!("Copal was not measured") };
    report.fact("copal: live bytes of the repository", ours.live() / 1e6, "MB");
    report.fact("distinct 4 KiB blocks of all images", oracle.unique_4k_bytes as f64 / 1e6, "MB");
    for (peer, limit) in [("restic", 0.90), ("rustic", 0.90), ("borg", 0.85)] {
        if let Some(theirs) = find(peer) {
            report.at_most(
                format!("repository, occupied, of {peer}'s"),
                ours.occupied() / theirs.occupied(),
                "x",
                limit,
            );
            report.at_most(
                format!("repository, live, of {peer}'s"),
                ours.live() / theirs.occupied(),
                "x",
                limit,
            );
        }
    }
    if let Some(theirs) = find("restic") {
        beside_restic(report, ours, theirs, last_day);
    }
    if let Some(pruned) = &ours.prune {
        judge_prune(report, pruned, find("restic").and_then(|theirs| theirs.prune.as_ref()))?;
    }
    for name in ["copal", "copal-cbt"] {
        if let Some(measured) = find(name) {
            memory_and_holes(report, name, measured, oracle);
        }
    }
    if let Some(incremental) = find("copal-cbt") {
        next_days(report, incremental, oracle)?;
    }
    Ok(())
}

/// Figures of one program, with or without targets.
fn facts_of(report: &mut Report, name: &str, measured: &Measured, last_day: u32) {
    println!("{name:8} {}", measured.version);
    let row = |what: &str| format!("{name}: {what}");
    report.fact(row("repository"), measured.occupied() / 1e6, "MB");
    report.fact(row("processor time of all backups"), measured.cpu(), "s");
    report.fact(row("wall time of all backups"), measured.wall(), "s");
    report.fact(row("peak memory of a backup"), measured.peak_megabytes(), "MB");
    report.fact(row("wall time to restore the last day"), measured.restore_wall(last_day), "s");
    let wrong = measured.restores.iter().filter(|restore| !restore.equal).count();
    let restored = measured.restores.len();
    report.exactly(row(&format!("disks restored wrongly of {restored}")), wrong as f64, "", 0.0);
    if let Some(prune) = &measured.prune {
        let occupied = prune.occupied_bytes[1] as f64 / 1e6;
        report.fact(row("repository pruned to the last day"), occupied, "MB");
        report.fact(row("given back by that"), prune.freed_megabytes(), "MB");
        report.fact(row("written by that"), prune.written_bytes as f64 / 1e6, "MB");
        report.fact(row("processor time of that"), prune.cpu_seconds, "s");
    }
    for step in &measured.steps {
        report.detail(
            row(&format!("repository after {} day {}", step.vm, step.day)),
            step.occupied_bytes as f64,
            "B",
        );
        report.detail(row(&format!("cpu of {} day {}", step.vm, step.day)), step.cpu_seconds, "s");
        report.detail(row(&format!("peak of {} day {}", step.vm, step.day)), step.peak_bytes as f64, "B");
    }
}

/// Processor time and restores beside those of restic, whose work is closest to Copal's.
fn beside_restic(report: &mut Report, ours: &Measured, theirs: &Measured, last_day: u32) {
    report.at_most("processor time per backup of restic's", ours.cpu() / theirs.cpu(), "x", 0.5);
    let day0 = |measured: &Measured| -> f64 {
        measured.steps.iter().filter(|step| step.day == 0).map(|step| step.cpu_seconds).sum()
    };
    let single = ours.steps.iter().zip(&theirs.steps);
    let worst = single.map(|(our, their)| our.cpu_seconds / their.cpu_seconds);
    report.at_most("the same, worst single backup", worst.fold(0.0, f64::max), "x", 0.5);
    report.fact("the same, first day only", day0(ours) / day0(theirs), "x");
    report.fact("the same, later days only", (ours.cpu() - day0(ours)) / (theirs.cpu() - day0(theirs)), "x");
    let speed = theirs.restore_wall(last_day) / ours.restore_wall(last_day);
    report.at_least("restore speed of restic's", speed, "x", 3.0);
}

/// After pruning to the last day: the file beside its live bytes and beside restic's repository, and the
/// bytes written per freed byte.
fn judge_prune(report: &mut Report, ours: &Prune, restic: Option<&Prune>) -> Result<()> {
    let [Some(live_before), Some(live_after)] = ours.live_bytes else {
        bail!("copal's statistics name no live bytes");
    };
    let occupied = ours.occupied_bytes[1] as f64;
    report.at_most(
        "pruned to the last day: file, of what is in use",
        occupied / live_after.max(1) as f64,
        "x",
        1.10,
    );
    report.at_most(
        "pruned to the last day: bytes written, of those freed inside",
        ours.written_bytes as f64 / live_before.saturating_sub(live_after).max(1) as f64,
        "x",
        2.0,
    );
    if let Some(restic) = restic {
        report.at_most(
            "pruned to the last day: file, of restic's repository",
            occupied / restic.occupied_bytes[1].max(1) as f64,
            "x",
            0.95,
        );
    }
    Ok(())
}

/// Copal's own limits: memory of each command, and restored disks as sparse as their sources.
fn memory_and_holes(report: &mut Report, name: &str, measured: &Measured, oracle: &Oracle) {
    let mut peak = |what: &str, megabytes: f64| {
        report.at_most(format!("{name}: peak memory of {what}"), megabytes, "MB", LIMIT_MEGABYTES);
    };
    peak("a backup", measured.peak_megabytes());
    peak("a restore", measured.restore_peak_megabytes());
    if let Some(prune) = &measured.prune {
        peak("forget and prune", prune.peak_bytes as f64 / 1e6);
    }
    let density = |restore: &Restored| {
        let source = oracle_day(oracle, &restore.vm, restore.day)?.data_bytes;
        Some(restore.allocated_bytes as f64 / source.max(1) as f64)
    };
    let worst = measured.restores.iter().filter_map(density).fold(0.0, f64::max);
    report.at_most(format!("{name}: a restored disk occupies, of its source, worst"), worst, "x", 1.05);
}

/// With changed extents: bytes read by each backup of a later day, over the changed bytes.
fn next_days(report: &mut Report, incremental: &Measured, oracle: &Oracle) -> Result<()> {
    let (mut read, mut dirty, mut seconds, mut worst) = (0, 0, 0.0, 0.0_f64);
    for step in incremental.steps.iter().filter(|step| step.day > 0) {
        let Some(entry) = oracle_day(oracle, &step.vm, step.day) else {
            continue;
        };
        let bytes = step.read_bytes.context("copal's summary names no bytes read")?;
        let ratio = bytes as f64 / entry.dirty_bytes.max(1) as f64;
        report.detail(format!("copal-cbt: {} day {} read of dirty bytes", step.vm, step.day), ratio, "x");
        read += bytes;
        dirty += entry.dirty_bytes;
        worst = worst.max(ratio);
        seconds += step.cpu_seconds;
    }
    report.at_most("copal-cbt: read of dirty bytes, worst backup", worst, "x", READ_OF_DIRTY);
    report.fact("copal-cbt: read of dirty bytes, all later days", read as f64 / dirty.max(1) as f64, "x");
    report.fact("copal-cbt: dirty bytes of all later days", dirty as f64 / 1e6, "MB");
    report.fact("copal-cbt: processor time of all later days", seconds, "s");
    Ok(())
}

fn oracle_day<'a>(oracle: &'a Oracle, vm: &str, day: u32) -> Option<&'a Day> {
    let vm = oracle.vms.iter().find(|one| one.name == vm)?;
    vm.days.get(day as usize)
}
