//! Checks that the recovery queue copies last replicas first after a loss of two servers.
//!
//! Paper: beanfs §5.3 (two servers with 27,000 volumes each: 236 single copies in 18 s of 1,170).
//! Of groups spread evenly over `n` servers, a share of `6 / (n (n - 1))` has lost two replicas, and `6 / n`
//! copies per group are to be made. After the last replicas alone, `1 / (n - 1)` of all copies are made, for
//! every number of groups. For 64 servers that is 1.6 %, for eight 14 %.

use super::copies::{self, Plan};
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::Report;
use std::{
    fs,
    path::{Path, PathBuf},
};
use xtask::copal;

#[derive(Args)]
pub(crate) struct Options {
    /// Servers; two of them are lost
    #[arg(long, default_value_t = 12)]
    servers: usize,
    /// Groups, and volumes
    #[arg(long, default_value_t = 360)]
    groups: u32,
    /// Kilobytes of each volume
    #[arg(long, default_value_t = 1500)]
    volume_kb: u64,
    /// Megabytes a second that each server has for copies
    #[arg(long, default_value_t = 4)]
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
        lost: 2,
    };
    let outcome = copies::lose(&binary, &directory.path().join("c"), &plan)?;
    let percent = |part: f64, whole: f64| 100.0 * part / whole;
    report.fact("copies to make (paper: 54,000)", outcome.copies as f64, "");
    report.fact("groups with one copy left (paper: 236 volumes)", outcome.single_groups as f64, "");
    report.fact("until all was whole (paper: 1,170 s)", outcome.seconds, "s");
    report.fact("until no last copy was left (paper: 18 s)", outcome.single_seconds, "s");
    report.exactly("copies that began while a last copy could have", outcome.out_of_order as f64, "", 0.0);
    let share = percent(outcome.single_seconds, outcome.seconds);
    report.at_most("share of the time (paper: 1.5 %)", share, "%", 2.0);
    let expected = percent(outcome.single_groups as f64, outcome.copies as f64);
    report.fact("first copies of those groups, of all copies", expected, "%");
    report.fact("the same on 64 servers", percent(1.0, 63.0), "%");
    report.at_most("share of the time, by the share of the copies", share / expected, "", 1.5);
    report.finish(root, "beanfs-priority")
}
