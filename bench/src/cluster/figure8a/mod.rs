//! Writes and reads by file size, beside HDFS and Garage, each as it ships and made durable. All systems run
//! at once; only one of them has work at a time.
//!
//! Paper: beanfs §7.1 (figure 8a: HDFS reaches 4 to 34 % of the writes and 14 to 46 % of the reads, for 16 to
//! 512 KB)

mod garage;
mod hdfs;
mod ours;
mod phases;

use anyhow::{Context, Result};
use clap::Args;
use copal_bench_harness::report::{Report, median};
use phases::Done;
use std::{
    fs,
    path::{Path, PathBuf},
};
use xtask::copal;

/// File sizes in KiB, and HDFS' share of BeanFS in percent, for writes and reads, where the paper's text has
/// a number.
const SIZES: [(usize, Option<(f64, f64)>); 6] =
    [(16, Some((4.0, 14.0))), (32, None), (64, None), (128, None), (256, None), (512, Some((34.0, 46.0)))];

#[derive(Args)]
pub(crate) struct Options {
    /// Seconds of each write phase and read phase
    #[arg(long, default_value_t = 2.0)]
    seconds: f64,
    /// Rounds of each size; figures are medians
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Clients of each system
    #[arg(long, default_value_t = 4)]
    clients: usize,
    /// Directory of the installed peers [default: .cache/peers]
    #[arg(long, env = "COPAL_PEERS")]
    peers: Option<PathBuf>,
    /// Directory of all files [default: .cache/bench/fig8a]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

/// A store that keeps files on three servers.
trait System {
    fn name(&self) -> &'static str;
    /// Writes files of `bytes` below `prefix` for `seconds`.
    fn write(&mut self, prefix: &str, bytes: usize, seconds: f64) -> Result<Done>;
    /// Reads these files from the first on, each at most once.
    fn read(&mut self, prefix: &str, bytes: usize, seconds: f64) -> Result<Done>;
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench/fig8a");
    let peers = crate::default_below_cache(root, options.peers.as_ref(), "peers");
    fs::create_dir_all(&scratch)?;
    let directory = tempfile::tempdir_in(&scratch)?;
    let binary = copal::build_release(root)?;
    let mut report = Report::new(root, &scratch);
    let place = |name: &str| directory.path().join(name);
    let clients = options.clients;
    let hdfs = hdfs::start(&peers, &place("hdfs"), clients)?;
    let mut systems: Vec<Box<dyn System>> = vec![
        Box::new(ours::start(&binary, &place("copal"), clients)?),
        Box::new(hdfs::Hdfs::as_shipped(&hdfs)),
        Box::new(hdfs::Hdfs::durable(&hdfs)),
        Box::new(garage::start(&peers, &place("garage"), clients, false)?),
        Box::new(garage::start(&peers, &place("garage-durable"), clients, true)?),
    ];
    // Warm-up: lazily started parts and just-in-time compilation are not compared.
    for system in &mut systems {
        for (kib, _) in [SIZES[0], SIZES[5]] {
            let prefix = format!("warm{kib}");
            system.write(&prefix, kib << 10, options.seconds)?;
            system.read(&prefix, kib << 10, options.seconds)?;
        }
    }
    for (kib, paper) in SIZES {
        size(&mut report, &mut systems, kib, paper, options)?;
    }
    report.finish(root, "beanfs-fig8a")
}

fn size(
    report: &mut Report,
    systems: &mut [Box<dyn System>],
    kib: usize,
    paper: Option<(f64, f64)>,
    options: &Options,
) -> Result<()> {
    let bytes = kib << 10;
    // Write and read speeds of each system, MB/s.
    let mut speeds = vec![[Vec::new(), Vec::new()]; systems.len()];
    for round in 0..options.rounds {
        for turn in 0..systems.len() {
            let at = (turn + round) % systems.len();
            let (system, prefix) = (&mut systems[at], format!("k{kib}r{round}"));
            let name = system.name();
            let wrote = system
                .write(&prefix, bytes, options.seconds)
                .with_context(|| format!("{name}: writing files of {kib} KiB"))?;
            speeds[at][0].push(wrote.megabytes_per_s(bytes));
            // Reads come from the disk, not from the page cache; without permission to drop it, all systems
            // read from it.
            let _ = fs::write("/proc/sys/vm/drop_caches", "1");
            let read = system
                .read(&prefix, bytes, options.seconds)
                .with_context(|| format!("{name}: reading files of {kib} KiB"))?;
            speeds[at][1].push(read.megabytes_per_s(bytes));
        }
    }
    for (what, of) in ["write", "read"].into_iter().zip(0..) {
        let middles = speeds.iter().map(|speeds| median(speeds[of].clone()).context("a round"));
        let middles: Vec<f64> = middles.collect::<Result<_>>()?;
        let ours = middles[0];
        for (system, middle) in systems.iter().zip(&middles) {
            report.fact(format!("{what} {kib} KiB: {}", system.name()), *middle, "MB/s");
        }
        for (system, middle) in systems.iter().zip(&middles).skip(1) {
            report.at_least(format!("{what} {kib} KiB: ours by {}", system.name()), ours / middle, "", 1.0);
        }
        report.fact(format!("{what} {kib} KiB: HDFS of ours"), 100.0 * middles[1] / ours, "%");
        if let Some((writes, reads)) = paper {
            let paper = if what == "write" { writes } else { reads };
            report.fact(format!("{what} {kib} KiB: HDFS of BeanFS, the paper"), paper, "%");
        }
    }
    Ok(())
}
