//! Speed of re-replication by the number of parallel copies.
//!
//! Paper: beanfs §5.3, figure 11 (saturated at half as many copies as servers)

use super::copies::{self, Plan};
use anyhow::{Context, Result};
use clap::Args;
use copal_bench_harness::report::Report;
use std::{
    fs,
    path::{Path, PathBuf},
};
use xtask::copal;

/// The knee is the least number of parallel copies that reaches this share of the best speed.
const KNEE: f64 = 0.9;

#[derive(Args)]
pub(crate) struct Options {
    /// Servers; one of them is lost
    #[arg(long, default_value_t = 8)]
    servers: usize,
    /// Groups, and volumes
    #[arg(long, default_value_t = 128)]
    groups: u32,
    /// Kilobytes of each volume
    #[arg(long, default_value_t = 4000)]
    volume_kb: u64,
    /// Megabytes a second that each server has for copies
    #[arg(long, default_value_t = 8)]
    rate: u64,
    /// Numbers of parallel copies, each in a new cluster
    #[arg(long, value_delimiter = ',', default_value = "1,2,3,4,5,6,8")]
    at_once: Vec<usize>,
    /// Directory of the clusters [default: .cache/bench/cluster]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench/cluster");
    fs::create_dir_all(&scratch)?;
    let binary = copal::build_release(root)?;
    let mut report = Report::new(root, &scratch);
    let mut rates = Vec::new();
    for &at_once in &options.at_once {
        let directory = tempfile::tempdir_in(&scratch)?;
        let plan = Plan {
            servers: options.servers,
            groups: options.groups,
            volume_bytes: options.volume_kb * 1000,
            rate: options.rate * 1_000_000,
            at_once: Some(at_once),
            lost: 1,
        };
        let outcome = copies::lose(&binary, &directory.path().join("c"), &plan)?;
        let rate = outcome.bytes as f64 / outcome.seconds / 1e6;
        report.fact(format!("{at_once} at once"), rate, "MB/s");
        rates.push((at_once, rate));
    }
    let most = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let knee = rates.iter().find(|(_, rate)| *rate >= KNEE * most);
    let (knee, _) = knee.context("a rate")?;
    let half = options.servers as f64 / 2.0;
    report.within("knee: copies at once (paper: servers / 2)", *knee as f64, "", half, 1.0);
    report.finish(root, "beanfs-fig11")
}
