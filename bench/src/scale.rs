//! `backup-scale`: cost of a small backup in a repository of many VMs, or of a VM with many snapshots, beside
//! one of few.
//!
//! Each command is its own process, as `cron` starts it. The repositories take turns, so that other load of
//! the machine affects all of them. Targets refer to processor time: times of the machine's disk tell little
//! about the program.

use anyhow::{Context, Result};
use clap::Args;
use copal_bench_harness::report::{Report, median};
use serde_json::Value;
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::{
    copal,
    dataset::random::Random,
    metered::{self, Run},
};

/// Greatest ratio of a backup's processor time among many VMs to that among few.
const LIMIT: f64 = 1.5;
/// VMs of the small repository.
const FEW: u64 = 10;
/// Content of each disk, and the change before each backup.
const DISK_BYTES: usize = 8192;
/// The VM that is measured.
const VM: &str = "vm3";

#[derive(Args)]
pub(crate) struct Options {
    /// Directory of images and repositories [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// VMs of the large repository
    #[arg(long, default_value_t = 2000)]
    vms: u64,
    /// Number of snapshots of the VM in a third repository
    #[arg(long, default_value_t = 500)]
    snapshots: u64,
    /// Number of measurements of each command in each repository
    #[arg(long, default_value_t = 15)]
    rounds: usize,
}

/// Measured commands, in an order that keeps the number of snapshots of a round.
const COMMANDS: [&str; 5] = ["backup", "ls ID", "hold ID", "forget ID", "snapshots"];

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench").join("scale");
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;
    let binary = copal::build_release(root)?;
    let mut report = Report::new(root, &scratch);
    let mut scales = Vec::new();
    for (label, vms, snapshots) in [
        (format!("{FEW} VMs"), FEW, 1),
        (format!("{} VMs", options.vms), options.vms, 1),
        (format!("{} snapshots", options.snapshots), FEW, options.snapshots),
    ] {
        println!("making {label}");
        let repository = Repository::make(&binary, &scratch, scales.len(), vms, snapshots)?;
        scales.push(Scale { label, repository, runs: vec![Vec::new(); COMMANDS.len()] });
    }
    // The first round is a warm-up.
    for round in 0..=options.rounds {
        for scale in &mut scales {
            let runs = scale.repository.round()?;
            if round > 0 {
                scale.runs.iter_mut().zip(runs).for_each(|(all, run)| all.push(run));
            }
        }
    }
    tell(&scales, &mut report)?;
    fs::remove_dir_all(&scratch)?;
    report.finish(root, "backup-scale")
}

/// A repository and the cost of its commands.
struct Scale {
    label: String,
    repository: Repository,
    runs: Vec<Vec<Run>>,
}

fn tell(scales: &[Scale], report: &mut Report) -> Result<()> {
    let middle = |runs: &[Run], of: fn(&Run) -> f64| {
        median(runs.iter().map(of).collect()).context("at least one round is measured")
    };
    for (at, command) in COMMANDS.iter().enumerate() {
        let few = middle(&scales[0].runs[at], cpu_ms)?;
        for scale in scales {
            let (runs, name) = (&scale.runs[at], format!("{command}, {}", scale.label));
            let cpu = middle(runs, cpu_ms)?;
            report.fact(format!("{name}: processor time"), cpu, "ms");
            report.detail(format!("{name}: wall"), middle(runs, |run| run.wall.as_secs_f64() * 1e3)?, "ms");
            report.fact(format!("{name}: reads"), middle(runs, |run| run.read_calls as f64)?, "calls");
            report.fact(format!("{name}: read"), middle(runs, |run| run.read_bytes as f64 / 1e6)?, "MB");
            for (round, run) in runs.iter().enumerate() {
                report.detail(format!("{name}: processor time, round {round}"), cpu_ms(run), "ms");
            }
            let ratio = format!("{name}: processor time / that of {}", scales[0].label);
            match (at, scale.label == scales[0].label) {
                (_, true) => {}
                (0, false) => report.at_most(ratio, cpu / few, "", LIMIT),
                (_, false) => report.fact(ratio, cpu / few, ""),
            }
        }
    }
    Ok(())
}

fn cpu_ms(run: &Run) -> f64 {
    run.cpu.as_secs_f64() * 1e3
}

/// A repository and the built binary. Without a password: unlocking would cost more than the measured work.
struct Repository {
    binary: PathBuf,
    path: PathBuf,
    image: PathBuf,
    random: Random,
}

impl Repository {
    fn make(binary: &Path, scratch: &Path, number: usize, vms: u64, snapshots: u64) -> Result<Repository> {
        let mut repository = Repository {
            binary: binary.to_owned(),
            path: scratch.join(format!("repo{number}")),
            image: scratch.join(format!("disk{number}.raw")),
            random: Random::new(&[300, number as u64]),
        };
        repository.run("init", &["--size", "1GiB"])?;
        for vm in 0..vms {
            repository.back_up(&format!("vm{vm}"))?;
        }
        for _ in 1..snapshots {
            repository.back_up(VM)?;
        }
        Ok(repository)
    }

    /// Runs each of the commands once.
    fn round(&mut self) -> Result<Vec<Run>> {
        let backup = self.back_up(VM)?;
        let id = snapshot_of(&backup)?;
        let mut runs = vec![backup];
        for command in &COMMANDS[1..] {
            let words: Vec<&str> = command.split(' ').collect();
            let arguments: Vec<&str> = words[1..].iter().map(|_| id.as_str()).collect();
            let release = (words[0] == "hold").then_some("--release");
            runs.push(self.run(words[0], &[&arguments[..], release.as_slice()].concat())?);
        }
        Ok(runs)
    }

    /// Backs up one VM with a different disk each time.
    fn back_up(&mut self, vm: &str) -> Result<Run> {
        let mut disk = vec![0; DISK_BYTES];
        self.random.fill(&mut disk);
        fs::write(&self.image, &disk).context("writing a disk image")?;
        let image = self.image.clone();
        self.run("backup", &["--vm".as_ref(), vm.as_ref(), image.as_os_str()])
    }

    fn run(&self, command: &str, arguments: &[impl AsRef<OsStr>]) -> Result<Run> {
        let mut process = Command::new(&self.binary);
        process
            .args([command, "--json", "--insecure-no-password", "--repo"])
            .arg(&self.path)
            .args(arguments)
            .env_remove("COPAL_REPOSITORY")
            .env_remove("COPAL_PASSWORD")
            .env_remove("COPAL_PASSWORD_FILE");
        metered::run(&mut process)?.success(&format!("copal {command}"))
    }
}

fn snapshot_of(run: &Run) -> Result<String> {
    let mut lines = run.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines
        .find_map(|line| line["snapshot"].as_str().map(str::to_owned))
        .context("the backup named no snapshot")
}
