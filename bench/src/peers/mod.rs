//! `backup-peers`: all images of the data set, in the same order, into Copal and into its peers.
//!
//! Each program backs up every VM on every day, with its defaults, reading a file of the same name each day.
//! The repository is measured after each backup. At the end the last day of every VM is restored (Copal:
//! every day) and compared byte for byte. Copal runs twice: reading whole images like the others, and with
//! changed extents; both end by forgetting and pruning all but the last day.
//!
//! Two sizes are shown: the repository's size on its file system, and for Copal its live bytes inside its
//! preallocated file. Targets refer to the first, which the user pays for.
//! Not here: command lines of the programs (`programs`).

mod judge;
mod programs;

use anyhow::{Context, Result};
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

#[derive(Args)]
pub(crate) struct Options {
    /// Directory of the data set [default: .cache/dataset]
    #[arg(long, env = "COPAL_DATASET")]
    dataset: Option<PathBuf>,
    /// Directory of the installed peers (scripts/install-peers.sh) [default: .cache/peers]
    #[arg(long, env = "COPAL_PEERS")]
    peers: Option<PathBuf>,
    /// Directory of the repositories [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Measure only these, comma-separated, and take the others from the last run
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

/// Cost of one backup.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Step {
    vm: String,
    day: u32,
    cpu_seconds: f64,
    wall_seconds: f64,
    peak_bytes: u64,
    /// Size of the repository afterwards.
    occupied_bytes: u64,
    /// Its live bytes, if the program reports them.
    live_bytes: Option<u64>,
    /// Bytes read from the source, if the program reports them.
    read_bytes: Option<u64>,
}

/// Cost of one restore.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Restored {
    vm: String,
    day: u32,
    cpu_seconds: f64,
    wall_seconds: f64,
    peak_bytes: u64,
    /// Size of the restored disk.
    allocated_bytes: u64,
    equal: bool,
}

/// Figures of one program's whole run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Measured {
    version: String,
    steps: Vec<Step>,
    restores: Vec<Restored>,
    /// Forgetting and pruning all but the last day, at the end.
    #[serde(default)]
    prune: Option<Prune>,
}

/// Cost of forgetting and pruning all but the last day, and the freed space.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Prune {
    cpu_seconds: f64,
    /// Largest of its commands.
    peak_bytes: u64,
    written_bytes: u64,
    /// Size of the repository before and afterwards.
    occupied_bytes: [u64; 2],
    /// Its live bytes before and afterwards, if the program reports them.
    live_bytes: [Option<u64>; 2],
}

impl Prune {
    /// Space given back to the file system; negative when the repository grew.
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
    /// Live bytes if the program reports them, else the size.
    fn live(&self) -> f64 {
        self.steps.last().map_or(0.0, |step| step.live_bytes.unwrap_or(step.occupied_bytes) as f64)
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
                println!("{}: not installed; scripts/install-peers.sh installs it", program.name);
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
    judge::judge(&mut report, &all, &oracle)?;
    report.finish(root, "backup-peers")
}

fn one_program(program: &Program, oracle: &Oracle, dataset: &Path, scratch: &Path) -> Result<Measured> {
    program.init()?;
    let mut measured = Measured { version: program.version(), ..Measured::default() };
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
    let first = if program.restores_every_day() { 0 } else { days.saturating_sub(1) };
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
    oracle.vms.iter().filter_map(move |vm| Some((vm, vm.days.get(day)?)))
}

/// Link to the image under a constant name, as the disk of a VM has.
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
        println!("{} {} day {}: RESTORED DISK DIFFERS, {difference}", program.name, vm.name, entry.day);
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
    let longest = all.iter().map(|(_, measured)| measured.steps.len()).max().unwrap_or(0);
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
