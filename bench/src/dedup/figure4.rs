//! Job span and mean time of a VM's backup, by the number of rounds.
//!
//! Paper: low-profile-dedup §5, figure 4 (the time of a VM falls, the span rises slightly)
//! The paper does not give the sizes; its table 2 has one time per VM for even and skewed ones. Rows for even
//! sizes have targets; both are shown.

use super::simulator::{beside, run_scaled};
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::Report;
use std::path::Path;

const ROUNDS: [&str; 6] = ["1", "2", "4", "8", "12", "24"];
/// Ends of the paper's curve: rounds, span and time of a VM in hours.
const FIRST: (f64, f64) = (2.1, 2.1);
const LAST: (f64, f64) = (2.5, 0.1);
/// Tolerances: a share of the span, and the 0.1 h that can be read off the figure.
const NEAR: f64 = 0.05;
const ABOUT_A_TENTH: f64 = 0.15;
/// Greatest ratio of Copal's longest span to its shortest.
const FLAT: f64 = 1.05;

#[derive(Args)]
pub(crate) struct Options {
    /// Number of 4 KiB chunks for each id
    #[arg(long, default_value = "10000")]
    scale: String,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let simulate = |words: &[&str]| run_scaled(root, &options.scale, words);
    let mut report = Report::new(root, root);
    let mut paper = Vec::new();
    let mut spans = Vec::new();
    for rounds in ROUNDS {
        for (sizes, scheme) in [
            ("even", "collaborative"),
            ("lognormal", "collaborative"),
            ("even", "copal"),
            ("lognormal", "copal"),
        ] {
            let words = ["--scheme", scheme, "--sizes", sizes, "--rounds", rounds];
            let told = simulate(&words)?;
            let (span, per_vm) = (told.scheme(scheme, "span_h")?, told.scheme(scheme, "per_vm_h")?);
            report.fact(format!("{scheme}, {sizes}, {rounds} rounds: span"), span, "h");
            report.fact(format!("{scheme}, {sizes}, {rounds} rounds: per VM"), per_vm, "h");
            match (sizes, scheme) {
                ("even", "copal") => spans.push(span),
                ("even", _) => paper.push((span, per_vm)),
                _ => {}
            }
        }
    }
    let (first, last) = (paper[0], paper[paper.len() - 1]);
    beside(&mut report, "collaborative: span of 1 round", first.0, "h", (FIRST.0, NEAR));
    beside(&mut report, "collaborative: per VM of 1 round", first.1, "h", (FIRST.1, NEAR));
    beside(&mut report, "collaborative: span of 24 rounds", last.0, "h", (LAST.0, NEAR));
    let at = format!("collaborative: per VM of 24 rounds (paper: {})", LAST.1);
    report.at_most(at, last.1, "h", ABOUT_A_TENTH);
    let shortest = spans.iter().copied().fold(f64::INFINITY, f64::min);
    let longest = spans.iter().copied().fold(0.0, f64::max);
    report.at_most("copal: longest span by shortest", longest / shortest, "times", FLAT);
    report.finish(root, "dedup-figure4")
}
