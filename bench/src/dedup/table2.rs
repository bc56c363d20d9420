//! Job span and mean time of a VM's backup, by scheme, for even and for skewed sizes.
//!
//! Paper: low-profile-dedup §5, table 2 (the largest VM 20 times the average)

use super::simulator::{LARGEST_EACH_STAGE, between, run_scaled};
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::Report;
use std::path::Path;

#[derive(Args)]
pub(crate) struct Options {
    /// Number of 4 KiB chunks for each id
    #[arg(long, default_value = "1000")]
    scale: String,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let simulate = |words: &[&str]| run_scaled(root, &options.scale, words);
    let mut report = Report::new(root, root);
    let even = simulate(&["--sizes", "even"])?;
    let skewed = simulate(&[])?;
    let pareto = simulate(&["--sizes", "pareto"])?;
    for (name, told) in [("even", &even), ("skewed", &skewed)] {
        let dirty = told.scheme("dirty-bit", "span_h")?;
        report.fact(format!("dirty-bit, {name}: span (paper: 1.25)"), dirty, "h");
        let per_vm = told.scheme("dirty-bit", "per_vm_h")?;
        report.fact(format!("dirty-bit, {name}: per VM (paper: 0.05)"), per_vm, "h");
        let span = told.scheme("collaborative", "span_h")?;
        match name {
            // The paper's column of spans belongs to the skewed sizes.
            "skewed" => {
                between(&mut report, "collaborative, skewed: span (paper: 2.36)", span, "h", (2.3, 2.45))
            }
            _ => report.fact("collaborative, even: span", span, "h"),
        }
        let per_vm = told.scheme("collaborative", "per_vm_h")?;
        let at = format!("collaborative, {name}: per VM (paper: 0.23)");
        between(&mut report, &at, per_vm, "h", (0.19, 0.23));
    }
    let per_vm = even.scheme("synchronous", "per_vm_h")?;
    between(&mut report, "synchronous, even: per VM (paper: 2.75)", per_vm, "h", (2.5, 2.8));
    for (name, told) in [("lognormal", &skewed), ("Pareto", &pareto)] {
        let at = format!("synchronous, {name}: span (paper: 50.40)");
        between(&mut report, &at, told.scheme("synchronous", "span_h")?, "h", (18.0, 36.0));
    }
    let largest = skewed.scheme(LARGEST_EACH_STAGE, "span_h")?;
    between(
        &mut report,
        "synchronous, a VM of the largest size in every stage: span (paper: 50.40)",
        largest,
        "h",
        (45.0, 55.0),
    );
    for (name, told) in [("even", &even), ("skewed", &skewed), ("Pareto", &pareto)] {
        let span = told.scheme("copal", "span_h")?;
        between(&mut report, &format!("copal, {name}: span"), span, "h", (1.25, 1.5));
        report.at_most(format!("copal, {name}: span, never more"), span, "h", 1.6);
        report.at_most(format!("copal, {name}: per VM"), told.scheme("copal", "per_vm_h")?, "h", 0.16);
    }
    for (skew, seed) in [("20", "1"), ("20", "2"), ("45", "1")] {
        let words = ["--scheme", "copal", "--placement", "random", "--skew", skew, "--seed", seed];
        let told = simulate(&words)?;
        for (name, figure) in [("span", "span_h"), ("per VM", "per_vm_h")] {
            let at = format!("copal, placed at random, skew {skew}, seed {seed}: {name}");
            report.fact(at, told.scheme("copal", figure)?, "h");
        }
    }
    report.finish(root, "dedup-table2")
}
