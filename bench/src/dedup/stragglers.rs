//! Effect of hosts that are ten times slower on the others, beside stages with barriers.
//!
//! Paper: low-profile-dedup §6 ("an order of magnitude faster than a synchronous scheme, when some machines
//! are very slow")

use super::simulator::run_scaled;
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::Report;
use std::path::Path;

/// An order of magnitude.
const BETTER: f64 = 10.0;

#[derive(Args)]
pub(crate) struct Options {
    /// Number of 4 KiB chunks for each id
    #[arg(long, default_value = "10000")]
    scale: String,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let simulate = |words: &[&str]| run_scaled(root, &options.scale, words);
    let mut report = Report::new(root, root);
    for sizes in ["even", "lognormal"] {
        for slow in ["1", "5"] {
            let of = |scheme| simulate(&["--scheme", scheme, "--sizes", sizes, "--slow", slow]);
            let (synchronous, copal) = (of("synchronous")?, of("copal")?);
            let at = format!("{slow} slow of 100, {sizes}");
            for (name, figure) in
                [("mean time per VM", "per_vm_h"), ("span of the healthy hosts", "healthy_span_h")]
            {
                let theirs = synchronous.scheme("synchronous", figure)?;
                let ours = copal.scheme("copal", figure)?;
                report.fact(format!("{at}: {name}, synchronous"), theirs, "h");
                report.fact(format!("{at}: {name}, copal"), ours, "h");
                report.at_least(format!("{at}: {name}, better by"), theirs / ours, "times", BETTER);
            }
            let span = copal.scheme("copal", "span_h")?;
            report.fact(format!("{at}: span of the slow hosts, copal"), span, "h");
            let unresolved = copal.unresolved("copal")?;
            report.fact(format!("{at}: stored without an answer, copal"), unresolved, "%");
        }
    }
    report.finish(root, "dedup-stragglers")
}
