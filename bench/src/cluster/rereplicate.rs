//! Speed at which the other servers copy the groups of a lost server.
//!
//! Paper: beanfs §5.3 (27,287 volumes, 205 GB at 338.67 MB/s, 32 copies at once)

use super::copies::{self, Plan};
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::Report;
use std::{
    fs,
    path::{Path, PathBuf},
};
use xtask::copal;

const PAPER_BYTES_PER_S: f64 = 338.67e6;
const PAPER_AT_ONCE: f64 = 32.0;

#[derive(Args)]
pub(crate) struct Options {
    /// Servers; one of them is lost
    #[arg(long, default_value_t = 8)]
    servers: usize,
    /// Groups, and volumes; of 728, a server of eight has 273
    #[arg(long, default_value_t = 728)]
    groups: u32,
    /// Kilobytes of each volume
    #[arg(long, default_value_t = 7500)]
    volume_kb: u64,
    /// Megabytes a second that each server has for copies
    #[arg(long, default_value_t = 20)]
    rate: u64,
    /// Directory of the cluster [default: .cache/bench/cluster]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench/cluster");
    fs::create_dir_all(&scratch)?;
    let binary = copal::build_release(root)?;
    let mut report = Report::new(root, &scratch);
    let directory = tempfile::tempdir_in(&scratch)?;
    let plan = Plan {
        servers: options.servers,
        groups: options.groups,
        volume_bytes: options.volume_kb * 1000,
        rate: options.rate * 1_000_000,
        at_once: None,
        lost: 1,
    };
    let outcome = copies::lose(&binary, &directory.path().join("c"), &plan)?;
    let bytes_per_s = outcome.bytes as f64 / outcome.seconds;
    let budget = (plan.servers - 1) as f64 * plan.rate as f64 / 2.0;
    report.fact("volumes of which a copy was lost (paper: 27,287)", outcome.volumes as f64, "");
    report.fact("bytes copied (paper: 205 GB)", outcome.bytes as f64 / 1e9, "GB");
    report.fact("until all was whole (paper: 605 s)", outcome.seconds, "s");
    report.fact("copied (paper: 338.67 MB/s)", bytes_per_s / 1e6, "MB/s");
    report.fact(
        "a copy at a time of it (paper: 10.6 MB/s)",
        bytes_per_s / 1e6 / outcome.most_running.max(1) as f64,
        "MB/s",
    );
    report.fact("paper, a copy at a time", PAPER_BYTES_PER_S / PAPER_AT_ONCE / 1e6, "MB/s");
    report.fact("most copies at a time", outcome.most_running as f64, "");
    report.fact("what all servers give copies, a byte taken twice", budget / 1e6, "MB/s");
    report.at_least("share of what they give", bytes_per_s / budget, "", 0.8);
    report.finish(root, "beanfs-rereplicate")
}
