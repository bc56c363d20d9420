//! Counts acknowledged files lost by power cuts: simulated clusters, seed after seed.
//!
//! Each seed is a cluster of product code, over disks that lose unflushed data; its only faults are power
//! cuts. A seed fails when any promise to a client is broken; the suite goes on with the other seeds.

use anyhow::{Context, Result, ensure};
use clap::Args;
use copal_bench_harness::report::Report;
use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

#[derive(Args)]
pub(crate) struct Options {
    /// Number of seeds; the design demands 10,000
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// First seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Virtual minutes of power cuts in each
    #[arg(long, default_value_t = 2)]
    minutes: u64,
    /// Parallel seeds
    #[arg(long, default_value_t = 2)]
    at_a_time: u64,
}

/// Sums of the simulators' output.
#[derive(Default)]
struct SimulatorSums {
    seeds: u64,
    failed: Vec<u64>,
    counts: BTreeMap<String, u64>,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut report = Report::new(root, root);
    let built = Command::new("cargo")
        .args(["build", "--release", "--locked", "--quiet", "-p", "copal-sim"])
        .current_dir(root)
        .status()?;
    ensure!(built.success(), "building the simulator failed");
    let began = Instant::now();
    let sums = simulate(root, options)?;
    let sum = |what: &str| {
        sums.counts.iter().filter(|(of, _)| of.contains(what)).map(|(_, count)| count).sum::<u64>() as f64
    };
    report.fact("seeds, each a cluster", sums.seeds as f64, "");
    report.fact("power cuts", sum("power cut"), "");
    report.fact("of all servers at once", sum("power cut of all"), "");
    report.fact("in the middle of a write", sum("power cut in the middle"), "");
    report.fact("writes that were torn", sum("a write was torn"), "");
    report.fact("creates that were acknowledged", sum("creates that were acknowledged"), "");
    report.fact("deletes that were acknowledged", sum("deletes that were acknowledged"), "");
    report.fact("took", began.elapsed().as_secs_f64(), "s");
    if !sums.failed.is_empty() {
        eprintln!("seeds that failed: {:?}", sums.failed);
    }
    report.exactly(
        "seeds that lost what was acknowledged, or broke another promise",
        sums.failed.len() as f64,
        "",
        0.0,
    );
    report.finish(root, "volume-powercut")
}

/// Runs all seeds; after a failed one, a new simulator runs those behind it.
fn simulate(root: &Path, options: &Options) -> Result<SimulatorSums> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into);
    let mut sums = SimulatorSums::default();
    let (mut seed, end) = (options.seed, options.seed + options.seeds);
    while seed < end {
        let ran = Command::new(target.join("release/copal-sim"))
            .args(["cluster", "--power-cuts", "--minutes", &options.minutes.to_string()])
            .args(["--seed", &seed.to_string(), "--seeds", &(end - seed).to_string()])
            .args(["--jobs", &options.at_a_time.to_string()])
            .current_dir(root)
            .stdin(Stdio::null())
            .output()?;
        let stderr = String::from_utf8_lossy(&ran.stderr);
        let begun = seed;
        let mut is_violated = None;
        for line in String::from_utf8_lossy(&ran.stdout).lines() {
            if let Some(number) = line.strip_prefix("seed ").and_then(|rest| rest.split(':').next()) {
                let number = number.parse::<u64>().context("a seed")?;
                sums.seeds += 1;
                // Several seeds run in parallel and end in any order.
                seed = seed.max(number + 1);
                is_violated = Some(number);
            } else if let Some((count, what)) = line.trim_start().split_once(' ')
                && let Ok(count) = count.parse::<u64>()
            {
                *sums.counts.entry(what.to_owned()).or_default() += count;
            } else if line.starts_with("  ")
                && let Some(number) = is_violated.take()
            {
                eprintln!("seed {number}: {line}");
                sums.failed.push(number);
            }
        }
        ensure!(seed > begun, "the simulator ran no seed: {stderr}");
        ensure!(ran.status.success() || !sums.failed.is_empty(), "the simulator failed: {stderr}");
    }
    Ok(sums)
}
