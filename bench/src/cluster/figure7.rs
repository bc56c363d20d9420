//! Volumes that lose their last in-sync replica: the simulator beside the paper's formula.
//!
//! Paper: beanfs §6, figure 7 and table 3 (200 servers, 9 M volumes, two years: 18 dead volumes at worst)
//! Runs are repeated until enough losses are counted. Where the formula expects only a few losses of groups
//! in all runs together, the count says nothing, and the row has no target.

use anyhow::{Context, Result, ensure};
use clap::Args;
use copal_bench_harness::report::Report;
use serde_json::Value;
use std::{path::Path, process::Command};

/// Permanent failures of a server per second, as in the paper.
const PERMANENT: [f64; 2] = [1.0e-8, 1.5e-8];
/// Transient failures, up to the paper's highest rate.
const TRANSIENT: [f64; 4] = [5e-8, 10e-8, 15e-8, 19e-8];
/// Least expected number of lost groups for a row with a target.
const ENOUGH: f64 = 30.0;

#[derive(Args)]
pub(crate) struct Options {
    /// Runs of two years at each point
    #[arg(long, default_value_t = 2000)]
    runs: u32,
    /// Number of groups of the nine million volumes
    #[arg(long, default_value_t = 65_536)]
    groups: u32,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut report = Report::new(root, root);
    let mut worst: f64 = 1.0;
    for permanent in PERMANENT {
        for transient in TRANSIENT {
            let told = simulate(root, options, permanent, transient)?;
            let number = |value: &Value| value.as_f64().context("a number");
            let (ours, paper) = (number(&told["dead_volumes"]["sum"])?, number(&told["paper"]["sum"])?);
            let at = format!("pf {permanent:.1e}, tf {transient:.1e}");
            report.fact(format!("{at}: dead volumes, formula"), paper, "");
            report.fact(format!("{at}: dead volumes, simulated"), ours, "");
            let exact = number(&told["constant_times"]["sum"])?;
            report.detail(format!("{at}: formula of constant times"), exact, "");
            let expected = paper * f64::from(options.groups) / 9e6 * f64::from(options.runs);
            let times = ours / paper;
            if expected < ENOUGH {
                report.fact(format!("{at}: simulated by formula, too few to judge"), times, "");
                continue;
            }
            report.at_most(format!("{at}: apart by"), times.max(1.0 / times), "times", 2.0);
            worst = worst.max(times.max(1.0 / times));
            if (permanent, transient) == (1.5e-8, 19e-8) {
                report.within("formula at worst (paper: 18)", paper, "", 18.0, 0.1);
                report.within(
                    "3 permanent failures a run (paper: one in all)",
                    number(&told["paper"]["3pf"])?,
                    "",
                    0.033,
                    0.0005,
                );
            }
        }
    }
    report.at_most("furthest apart on the grid", worst, "times", 2.0);
    report.finish(root, "beanfs-fig7")
}

fn simulate(root: &Path, options: &Options, permanent: f64, transient: f64) -> Result<Value> {
    let ran = Command::new("cargo")
        .args(["run", "--quiet", "--release", "--locked", "--package", "copal-sim", "--"])
        .args(["availability", "--json", "--runs", &options.runs.to_string()])
        .args(["--groups", &options.groups.to_string()])
        .args(["--permanent-rate", &permanent.to_string()])
        .args(["--transient-rate", &transient.to_string()])
        .current_dir(root)
        .output()
        .context("running the simulator")?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Ok(serde_json::from_slice(&ran.stdout)?)
}
