//! `backup-peers`: all images of the data set, in the same order, into Copal and into its peers.
//!
//! Each program backs up every VM on every day, with its defaults, reading a file of the same name each
//! day. After each backup the repository is measured; at the end the last day of every VM is restored
//! (Copal: every day) and compared byte for byte. Copal runs twice: reading whole images like the others,
//! and with changed extents; both end by forgetting and pruning all but the last day.
//! Two sizes are shown: what a repository occupies on its file system, and for Copal what it says is live
//! inside its preallocated file; its targets are judged on the first, which is what a user pays.
//! Not here: how each program is called (`programs`).

mod programs;

use anyhow::{Context, Result, bail};
use clap::Args;
use copal_bench_harness::report::Report;
use programs::Program;
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::{Path, PathBuf},
};
use xtask::{
    copal,
    dataset::oracle::{Day, Oracle, Vm},
    sparse,
    table::{Table, megabytes},
};

/// Peak of a backup, a restore, a forget.
const LIMIT_MEGABYTES: f64 = 100.0;
/// What a backup with changed extents may read of what changed, whichever VM and day.
const READ_OF_DIRTY: f64 = 1.3;

#[derive(Args)]
pub(crate) struct Options {
    /// Directory of the data set [default: .cache/dataset]
    #[arg(long, env = "COPAL_DATASET")]
    dataset: Option<PathBuf>,
    /// Where scripts/install-peers.sh put the peers [default: .cache/peers]
    #[arg(long, env = "COPAL_PEERS")]
    peers: Option<PathBuf>,
    /// Where repositories are made [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Measure only these, comma-separated, and take the others from the last run
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// What one backup cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Step {
    vm: String,
    day: u32,
    cpu_seconds: f64,
    wall_seconds: f64,
    peak_bytes: u64,
    /// What the repository occupies afterwards.
    occupied_bytes: u64,
    /// What it says is live, if it says.
    live_bytes: Option<u64>,
    /// What was read from the source, if the program says.
    read_bytes: Option<u64>,
}

/// What one restore cost.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Restored {
    vm: String,
    day: u32,
    cpu_seconds: f64,
    wall_seconds: f64,
    peak_bytes: u64,
    /// What the restored disk occupies.
    allocated_bytes: u64,
    equal: bool,
}

/// One program's whole run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Measured {
    version: String,
    steps: Vec<Step>,
    restores: Vec<Restored>,
    /// Forgetting and pruning all but the last day, at the end.
    #[serde(default)]
    prune: Option<Prune>,
}

/// What forgetting and pruning all but the last day cost, and what it gave back.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Prune {
    cpu_seconds: f64,
    /// Largest of its commands.
    peak_bytes: u64,
    written_bytes: u64,
    /// What the repository occupied before and occupies afterwards.
    occupied_bytes: [u64; 2],
    /// What it says is live, before and afterwards, if it says.
    live_bytes: [Option<u64>; 2],
}

impl Prune {
    /// What the file system got back; negative when the repository grew.
    fn freed_megabytes(&self) -> f64 {
        let [before, after] = self.occupied_bytes;
        (before as f64 - after as f64) / 1e6
    }
}

impl Measured {
    fn cpu(&self) -> f64 {
        self.steps.iter().map(|step| step.cpu_seconds).sum()
    }
    fn wall(&self) -> f64 {
        self.steps.iter().map(|step| step.wall_seconds).sum()
    }
    fn peak_megabytes(&self) -> f64 {
        self.steps.iter().map(|step| step.peak_bytes).max().unwrap_or(0) as f64 / 1e6
    }
    fn occupied(&self) -> f64 {
        self.steps.last().map_or(0.0, |step| step.occupied_bytes as f64)
    }
    /// Live bytes if the program tells them, else what it occupies.
    fn live(&self) -> f64 {
        self.steps
            .last()
            .map_or(0.0, |step| step.live_bytes.unwrap_or(step.occupied_bytes) as f64)
    }
    fn restore_peak_megabytes(&self) -> f64 {
        let peaks = self.restores.iter().map(|restore| restore.peak_bytes);
        peaks.max().unwrap_or(0) as f64 / 1e6
    }
    /// Time to restore the last day of every VM.
    fn restore_wall(&self, last_day: u32) -> f64 {
        self.restores
            .iter()
            .filter(|restore| restore.day == last_day)
            .map(|restore| restore.wall_seconds)
            .sum()
    }
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let dataset = crate::default_below_cache(root, options.dataset.as_ref(), "dataset");
    let peers = crate::default_below_cache(root, options.peers.as_ref(), "peers");
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench");
    let oracle = Oracle::read(&dataset)?;
    let binary = copal::build_release(root)?;
    fs::create_dir_all(&scratch)?;
    let mut report = Report::new(root, &scratch);

    let mut all = Vec::new();
    for program in Program::all(&binary, &peers, &scratch) {
        let kept = scratch.join(format!("{}.json", program.name));
        let measure = options.only.is_empty() || options.only.iter().any(|name| name == program.name);
        let measured = if measure {
            if !program.available() {
                println!(
                    "{}: not installed; scripts/install-peers.sh installs it",
                    program.name
                );
                continue;
            }
            let measured = one_program(&program, &oracle, &dataset, &scratch)
                .with_context(|| format!("measuring {}", program.name))?;
            fs::write(&kept, serde_json::to_string_pretty(&measured)?)?;
            measured
        } else if let Ok(text) = fs::read_to_string(&kept) {
            serde_json::from_str(&text)?
        } else {
            continue;
        };
        all.push((program, measured));
    }
    print_sizes(&all);
    judge(&mut report, &all, &oracle)?;
    report.finish(root, "backup-peers")
}

fn one_program(program: &Program, oracle: &Oracle, dataset: &Path, scratch: &Path) -> Result<Measured> {
    program.init()?;
    let mut measured = Measured {
        version: program.version(),
        ..Measured::default()
    };
    let days = oracle.vms.iter().map(|vm| vm.days.len()).max().unwrap_or(0);
    for day in 0..days {
        for (vm, entry) in images(oracle, day) {
            let image = present(&dataset.join(&entry.image), &vm.name, scratch)?;
            let extents = entry.changed_extents.as_ref().map(|path| dataset.join(path));
            let done = program.backup(&vm.name, entry.day, &image, extents.as_deref())?;
            let sizes = program.sizes()?;
            println!(
                "{:8} {} day {day}: {:6.2} s cpu, {:6.2} s, {:6} MB peak, repository {} MB",
                program.name,
                vm.name,
                done.run.cpu.as_secs_f64(),
                done.run.wall.as_secs_f64(),
                megabytes(done.run.peak_bytes),
                megabytes(sizes.occupied_bytes)
            );
            measured.steps.push(Step {
                vm: vm.name.clone(),
                day: entry.day,
                cpu_seconds: done.run.cpu.as_secs_f64(),
                wall_seconds: done.run.wall.as_secs_f64(),
                peak_bytes: done.run.peak_bytes,
                occupied_bytes: sizes.occupied_bytes,
                live_bytes: sizes.live_bytes,
                read_bytes: done.read_bytes,
            });
        }
    }
    let first = if program.restores_every_day() {
        0
    } else {
        days.saturating_sub(1)
    };
    for day in first..days {
        for (vm, entry) in images(oracle, day) {
            measured.restores.push(restore(program, vm, entry, dataset)?);
        }
    }
    measured.prune = Some(prune(program, oracle)?);
    program.remove()?;
    Ok(measured)
}

fn prune(program: &Program, oracle: &Oracle) -> Result<Prune> {
    let before = program.sizes()?;
    let vms: Vec<&str> = oracle.vms.iter().map(|vm| vm.name.as_str()).collect();
    let runs = program.prune_to_the_last_day(&vms)?;
    let after = program.sizes()?;
    Ok(Prune {
        cpu_seconds: runs.iter().map(|run| run.cpu.as_secs_f64()).sum(),
        peak_bytes: runs.iter().map(|run| run.peak_bytes).max().unwrap_or(0),
        written_bytes: runs.iter().map(|run| run.written_bytes).sum(),
        occupied_bytes: [before.occupied_bytes, after.occupied_bytes],
        live_bytes: [before.live_bytes, after.live_bytes],
    })
}

fn images(oracle: &Oracle, day: usize) -> impl Iterator<Item = (&Vm, &Day)> {
    oracle
        .vms
        .iter()
        .filter_map(move |vm| Some((vm, vm.days.get(day)?)))
}

/// The image under a name that stays the same from day to day, as a VM's disk has.
fn present(image: &Path, vm: &str, scratch: &Path) -> Result<PathBuf> {
    let directory = scratch.join("disks").join(vm);
    fs::create_dir_all(&directory)?;
    let path = directory.join("disk.raw");
    if path.exists() {
        fs::remove_file(&path)?;
    }
    if fs::hard_link(image, &path).is_err() {
        sparse::copy(image, &path)?;
    }
    Ok(path)
}

fn restore(program: &Program, vm: &Vm, entry: &Day, dataset: &Path) -> Result<Restored> {
    let (run, path) = program.restore(&vm.name, entry.day)?;
    let difference = sparse::first_difference(&dataset.join(&entry.image), &path)?;
    if let Some(difference) = &difference {
        println!(
            "{} {} day {}: RESTORED DISK DIFFERS, {difference}",
            program.name, vm.name, entry.day
        );
    }
    let restored = Restored {
        vm: vm.name.clone(),
        day: entry.day,
        cpu_seconds: run.cpu.as_secs_f64(),
        wall_seconds: run.wall.as_secs_f64(),
        peak_bytes: run.peak_bytes,
        allocated_bytes: sparse::allocated_bytes(&path)?,
        equal: difference.is_none(),
    };
    fs::remove_file(&path).with_context(|| format!("removing {}", path.display()))?;
    Ok(restored)
}

fn print_sizes(all: &[(Program, Measured)]) {
    let mut header = vec!["repository MB after".to_owned()];
    for (program, measured) in all {
        header.push(program.name.to_owned());
        if measured.steps.iter().any(|step| step.live_bytes.is_some()) {
            header.push("live".to_owned());
        }
    }
    let mut table = Table::new(&header.iter().map(String::as_str).collect::<Vec<_>>());
    let longest = all
        .iter()
        .map(|(_, measured)| measured.steps.len())
        .max()
        .unwrap_or(0);
    for index in 0..longest {
        let mut row = Vec::new();
        for (_, measured) in all {
            let Some(step) = measured.steps.get(index) else {
                continue;
            };
            if row.is_empty() {
                row.push(format!("{} day {}", step.vm, step.day));
            }
            row.push(megabytes(step.occupied_bytes));
            if let Some(live) = step.live_bytes {
                row.push(megabytes(live));
            }
        }
        table.row(row);
    }
    println!("\n{table}");
}

fn judge(report: &mut Report, all: &[(Program, Measured)], oracle: &Oracle) -> Result<()> {
    let find = |name: &str| {
        all.iter()
            .find(|(program, _)| program.name == name)
            .map(|(_, measured)| measured)
    };
    let last_day = oracle
        .vms
        .iter()
        .filter_map(|vm| vm.days.last())
        .map(|day| day.day)
        .max()
        .unwrap_or(0);
    for (program, measured) in all {
        println!("{:8} {}", program.name, measured.version);
        let name = |what: &str| format!("{}: {what}", program.name);
        report.fact(name("repository"), measured.occupied() / 1e6, "MB");
        report.fact(name("processor time of all backups"), measured.cpu(), "s");
        report.fact(name("wall time of all backups"), measured.wall(), "s");
        report.fact(name("peak memory of a backup"), measured.peak_megabytes(), "MB");
        report.fact(
            name("wall time to restore the last day"),
            measured.restore_wall(last_day),
            "s",
        );
        let wrong = measured.restores.iter().filter(|restore| !restore.equal).count();
        let restored = measured.restores.len();
        report.exactly(
            name(&format!("disks restored wrongly of {restored}")),
            wrong as f64,
            "",
            0.0,
        );
        if let Some(prune) = &measured.prune {
            let occupied = prune.occupied_bytes[1] as f64 / 1e6;
            report.fact(name("repository pruned to the last day"), occupied, "MB");
            report.fact(name("given back by that"), prune.freed_megabytes(), "MB");
            report.fact(name("written by that"), prune.written_bytes as f64 / 1e6, "MB");
            report.fact(name("processor time of that"), prune.cpu_seconds, "s");
        }
        for step in &measured.steps {
            report.detail(
                name(&format!("repository after {} day {}", step.vm, step.day)),
                step.occupied_bytes as f64,
                "B",
            );
            report.detail(
                name(&format!("cpu of {} day {}", step.vm, step.day)),
                step.cpu_seconds,
                "s",
            );
            report.detail(
                name(&format!("peak of {} day {}", step.vm, step.day)),
                step.peak_bytes as f64,
                "B",
            );
        }
    }
    let Some(ours) = find("copal") else {
        bail!("Copal was not measured")
    };
    report.fact("copal: live bytes of the repository", ours.live() / 1e6, "MB");
    report.fact(
        "distinct 4 KiB blocks of all images",
        oracle.unique_4k_bytes as f64 / 1e6,
        "MB",
    );
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
        report.at_most(
            "processor time per backup of restic's",
            ours.cpu() / theirs.cpu(),
            "x",
            0.5,
        );
        let day0 = |measured: &Measured| -> f64 {
            measured
                .steps
                .iter()
                .filter(|step| step.day == 0)
                .map(|step| step.cpu_seconds)
                .sum()
        };
        let single = ours.steps.iter().zip(&theirs.steps);
        let worst = single.map(|(our, their)| our.cpu_seconds / their.cpu_seconds);
        report.at_most(
            "the same, worst single backup",
            worst.fold(0.0, f64::max),
            "x",
            0.5,
        );
        report.fact("the same, first day only", day0(ours) / day0(theirs), "x");
        report.fact(
            "the same, later days only",
            (ours.cpu() - day0(ours)) / (theirs.cpu() - day0(theirs)),
            "x",
        );
        let speed = theirs.restore_wall(last_day) / ours.restore_wall(last_day);
        report.at_least("restore speed of restic's", speed, "x", 3.0);
    }
    if let Some(pruned) = &ours.prune {
        judge_prune(
            report,
            pruned,
            find("restic").and_then(|theirs| theirs.prune.as_ref()),
        )?;
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

/// After pruning to the last day: the file beside what is in use and beside restic's repository, and what freeing
/// a byte cost in bytes written.
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

/// What Copal alone is held to: memory of each command, and restored disks as sparse as their sources.
fn memory_and_holes(report: &mut Report, name: &str, measured: &Measured, oracle: &Oracle) {
    let mut peak = |what: &str, megabytes: f64| {
        report.at_most(
            format!("{name}: peak memory of {what}"),
            megabytes,
            "MB",
            LIMIT_MEGABYTES,
        );
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
    report.at_most(
        format!("{name}: a restored disk occupies, of its source, worst"),
        worst,
        "x",
        1.05,
    );
}

/// With changed extents: what each backup of a later day read, of the bytes that had changed.
fn next_days(report: &mut Report, incremental: &Measured, oracle: &Oracle) -> Result<()> {
    let (mut read, mut dirty, mut seconds, mut worst) = (0, 0, 0.0, 0.0_f64);
    for step in incremental.steps.iter().filter(|step| step.day > 0) {
        let Some(entry) = oracle_day(oracle, &step.vm, step.day) else {
            continue;
        };
        let bytes = step.read_bytes.context("copal's summary names no bytes read")?;
        let ratio = bytes as f64 / entry.dirty_bytes.max(1) as f64;
        report.detail(
            format!("copal-cbt: {} day {} read of dirty bytes", step.vm, step.day),
            ratio,
            "x",
        );
        read += bytes;
        dirty += entry.dirty_bytes;
        worst = worst.max(ratio);
        seconds += step.cpu_seconds;
    }
    report.at_most(
        "copal-cbt: read of dirty bytes, worst backup",
        worst,
        "x",
        READ_OF_DIRTY,
    );
    report.fact(
        "copal-cbt: read of dirty bytes, all later days",
        read as f64 / dirty.max(1) as f64,
        "x",
    );
    report.fact(
        "copal-cbt: dirty bytes of all later days",
        dirty as f64 / 1e6,
        "MB",
    );
    report.fact("copal-cbt: processor time of all later days", seconds, "s");
    Ok(())
}

fn oracle_day<'a>(oracle: &'a Oracle, vm: &str, day: u32) -> Option<&'a Day> {
    let vm = oracle.vms.iter().find(|one| one.name == vm)?;
    vm.days.get(day as usize)
}
