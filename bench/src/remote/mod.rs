//! `remote-s3`: requests, bytes and time of Copal and restic over one MinIO, in turns.
//!
//! A link in between counts the requests, and gives each command the delay and the bandwidth of a distant store. Both
//! programs use eight connections, their defaults otherwise, and caches of their own. Data does not compress.
//! Not here: failures of networks (`crates/app/copal/tests/it/hostile_network.rs`).

mod counts;
mod link;
mod many;
mod programs;
mod scenes;
mod server;

use anyhow::{Context, Result, ensure};
use clap::Args;
use copal_bench_harness::{
    machine,
    report::{Report, median},
};
use link::{Link, Shape};
use programs::Kind;
use scenes::{Bench, Step, Taken};
use server::Minio;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use xtask::copal;

const MIB: f64 = (1 << 20) as f64;
/// Memory limit of each command, in MB.
const PEAK_MB: f64 = 100.0;

#[derive(Args)]
pub(crate) struct Options {
    /// Directory of images, caches and the server's data [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// The server [default: .cache/clients/bin/minio]
    #[arg(long)]
    minio: Option<PathBuf>,
    /// Size of the image, in MiB
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Number of measurements of each step
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Round trip of the distant store, in milliseconds
    #[arg(long, default_value_t = 100)]
    round_trip_ms: u64,
    /// Bandwidth of the link to the distant store, in MB a second, each way
    #[arg(long, default_value_t = 50)]
    link_mb: u64,
    /// Share of the blocks that the newest snapshot shares with the one that is pruned
    #[arg(long, default_value_t = 30)]
    live_percent: u64,
    /// VMs of the list of snapshots
    #[arg(long, default_value_t = 50)]
    vms: u64,
    /// Snapshots of each
    #[arg(long, default_value_t = 200)]
    snapshots: u64,
    /// Size of the image of the new host, in MiB; its packs have 8 MiB
    #[arg(long, default_value_t = 8192)]
    packs_mib: u64,
}

impl Options {
    /// The link to the distant store.
    fn far(&self) -> Shape {
        Shape {
            round_trip: Duration::from_millis(self.round_trip_ms),
            bandwidth: Some(self.link_mb * 1_000_000),
        }
    }
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench").join("remote");
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;
    let minio = crate::default_below_cache(root, options.minio.as_ref(), "clients/bin/minio");
    let server = Minio::start(&minio, &scratch.join("server"))?;
    let link = Link::start(server.address())?;
    let binary = copal::build_release(root)?;
    let restic = PathBuf::from("restic");
    let mut report = Report::new(root, &scratch);
    report.note(machine::first_line(Command::new(&restic).arg("version")));
    report.note(machine::first_line(Command::new(&minio).arg("--version")));
    let bench = Bench { link: &link, copal: &binary, restic: &restic, scratch: &scratch, options };
    let (near, far) = (Shape::NEAR, options.far());
    let mut taken = Vec::new();
    for round in 0..options.rounds {
        for (is_far, shape) in [(false, near), (true, far)] {
            for kind in [Kind::Copal, Kind::Restic] {
                bench.life(kind, is_far, shape, round, &mut taken)?;
            }
        }
    }
    link.set(near);
    rows(&mut report, &taken, options)?;
    bench.lists(&mut report)?;
    bench.cold_reads(&mut report)?;
    bench.new_host(&mut report)?;
    // A running server would write into the directory while it is removed.
    drop(server);
    fs::remove_dir_all(&scratch)?;
    report.finish(root, "remote-s3")
}

/// Medians of one step of one program.
struct Middle {
    seconds: f64,
    cpu_seconds: f64,
    peak_mb: f64,
    puts: f64,
    gets: f64,
    requests: f64,
    beside_puts: f64,
    sent: f64,
    received: f64,
}

fn middle(taken: &[Taken], kind: Kind, is_far: bool, step: Step) -> Result<Middle> {
    let of = |number: &dyn Fn(&Taken) -> f64| {
        let is_meant = |one: &&Taken| one.kind == kind && one.is_far == is_far && one.step == step;
        median(taken.iter().filter(is_meant).map(number).collect()).context("each step was measured")
    };
    Ok(Middle {
        seconds: of(&|one| one.measured.run.wall.as_secs_f64())?,
        cpu_seconds: of(&|one| one.measured.run.cpu.as_secs_f64())?,
        peak_mb: of(&|one| one.measured.run.peak_bytes as f64 / 1e6)?,
        puts: of(&|one| one.measured.counts.puts as f64)?,
        gets: of(&|one| one.measured.counts.gets as f64)?,
        requests: of(&|one| one.measured.counts.requests() as f64)?,
        beside_puts: of(&|one| one.measured.counts.beside_puts() as f64)?,
        sent: of(&|one| one.measured.counts.sent as f64)?,
        received: of(&|one| one.measured.counts.received as f64)?,
    })
}

fn rows(report: &mut Report, taken: &[Taken], options: &Options) -> Result<()> {
    let bytes = options.mib as f64 * MIB;
    let copal = |is_far, step| middle(taken, Kind::Copal, is_far, step);
    let restic = |is_far, step| middle(taken, Kind::Restic, is_far, step);
    let first = copal(false, Step::First)?;
    let share = bytes / (1024.0 * MIB);
    report.at_most("first backup: sent / data", first.sent / bytes, "", 1.02);
    report.at_most("first backup: PUT for each GiB", first.puts / share, "", 160.0);
    report.at_most("first backup: other requests", first.beside_puts, "", 60.0);
    let again = copal(false, Step::Again)?;
    report.at_most("unchanged: requests", again.requests, "", 40.0);
    report.at_most("unchanged: sent", again.sent / MIB, "MiB", 1.0);
    let restored = copal(false, Step::Restore)?;
    report.at_most("restore: received / data", restored.received / bytes, "", 1.05);
    report.at_most("restore: GET for each MiB", restored.gets / (bytes / MIB), "", 1.5);
    let prune = copal(false, Step::Prune)?;
    report.fact("prune: received", prune.received / 1e6, "MB");
    report.fact("prune: sent", prune.sent / 1e6, "MB");
    report.at_most("prune: GET for each MiB read", prune.gets / (prune.received / MIB), "", 3.0);
    let cold = copal(false, Step::Cold)?;
    report.at_most("lost cache: GET for each pack", cold.gets / first.puts, "", 2.2);
    let link = options.link_mb as f64 * 1e6;
    for (name, step) in [("backup", Step::First), ("restore", Step::Restore)] {
        let (ours, theirs) = (copal(true, step)?, restic(true, step)?);
        report.at_least(format!("distant {name}: share of the link"), bytes / ours.seconds / link, "", 0.7);
        report.at_most(format!("distant {name}: time / restic"), ours.seconds / theirs.seconds, "", 1.0);
    }
    for step in Step::ALL {
        for is_far in [false, true] {
            let (ours, theirs) = (copal(is_far, step)?, restic(is_far, step)?);
            let name = format!("{}{}", if is_far { "distant " } else { "" }, step.name());
            let (requests, ratio) = (format!("{name}: requests / restic"), ours.requests / theirs.requests);
            match is_far && [Step::First, Step::Restore].contains(&step) {
                true => report.at_most(requests, ratio, "", 1.0),
                false => report.fact(requests, ratio, ""),
            }
            for (program, middle) in [("copal", &ours), ("restic", &theirs)] {
                report.fact(format!("{name}: {program}"), middle.seconds, "s");
                report.detail(format!("{name}: {program}, processor time"), middle.cpu_seconds, "s");
                report.fact(format!("{name}: {program}, requests"), middle.requests, "");
                report.detail(format!("{name}: {program}, PUT"), middle.puts, "");
                report.detail(format!("{name}: {program}, GET"), middle.gets, "");
                report.detail(format!("{name}: {program}, sent"), middle.sent / 1e6, "MB");
                report.detail(format!("{name}: {program}, received"), middle.received / 1e6, "MB");
                report.detail(format!("{name}: {program}, peak memory"), middle.peak_mb, "MB");
            }
        }
    }
    let peak = taken
        .iter()
        .filter(|one| one.kind == Kind::Copal)
        .map(|one| one.measured.run.peak_bytes)
        .max()
        .context("commands were measured")?;
    report.at_most("memory of a command of copal, at most", peak as f64 / 1e6, "MB", PEAK_MB);
    ensure!(taken.iter().all(|one| one.measured.run.code == 0), "a command failed");
    Ok(())
}
