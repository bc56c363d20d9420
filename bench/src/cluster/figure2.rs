//! Sizes of mails as drawn, beside the paper's figure 2.

use super::mails::mail_bytes;
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::{Report, median};
use copal_testkit::Random;
use std::path::Path;

#[derive(Args)]
pub(crate) struct Options {
    /// Mails to draw
    #[arg(long, default_value_t = 1_000_000)]
    mails: usize,
    /// Seed of the draw
    #[arg(long, default_value_t = 2)]
    seed: u64,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut report = Report::new(root, root);
    let mut random = Random::new(options.seed);
    let sizes: Vec<u64> = (0..options.mails).map(|_| mail_bytes(&mut random)).collect();
    let total: u64 = sizes.iter().sum();
    let below = |limit: u64| sizes.iter().copied().filter(move |size| *size < limit);
    let percent = |part: f64, whole: f64| 100.0 * part / whole;
    let mails = sizes.len() as f64;
    report.within("mails below 55 KB", percent(below(55_000).count() as f64, mails), "%", 95.0, 0.2);
    report.within("mails below 100 KB", percent(below(100_000).count() as f64, mails), "%", 98.5, 0.2);
    report.within(
        "bytes in mails below 100 KB",
        percent(below(100_000).sum::<u64>() as f64, total as f64),
        "%",
        62.3,
        1.0,
    );
    report.fact("mails drawn", mails, "");
    report.fact("mean size", total as f64 / mails, "B");
    let middle = median(sizes.iter().map(|size| *size as f64).collect());
    report.fact("median size", middle.unwrap_or_default(), "B");
    report.finish(root, "beanfs-fig2")
}
