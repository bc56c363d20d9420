//! Memory, local I/O, storage and network of a day's backup, by scheme.
//!
//! The simulator's inputs were derived from this table (docs/design/backup.md#the-simulator). Rows marked
//! "fits by construction" show that one reading of the paper yields them; they check no prediction.
//!
//! Paper: low-profile-dedup §5, table 1

use super::simulator::{beside, between, run_scaled};
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::Report;
use std::path::{Path, PathBuf};

/// Tolerance for figures of the paper's own scheme.
const NEAR: f64 = 0.05;
/// Mark of rows whose inputs were derived from the same table.
const BY_CONSTRUCTION: &str = " (fits by construction)";

#[derive(Args)]
pub(crate) struct Options {
    /// Number of 4 KiB chunks for each id
    #[arg(long, default_value = "1000")]
    scale: String,
    /// Directory of the real agent [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Measure the real agent only
    #[arg(long)]
    real_agent: bool,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut report = Report::new(root, root);
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench");
    super::real_agent::measure(root, &scratch, &mut report)?;
    if !options.real_agent {
        simulated(root, options, &mut report)?;
    }
    report.finish(root, "dedup-table1")
}

fn simulated(root: &Path, options: &Options, report: &mut Report) -> Result<()> {
    let simulate = |words: &[&str]| run_scaled(root, &options.scale, words);
    let told = simulate(&[])?;
    for (scheme, local_io, stored, network) in [
        ("dirty-bit", 220.0, 22_000.0, 22_000.0),
        ("synchronous", 453.0, 4840.0, 5500.0),
        ("collaborative", 491.0, 4840.0, 5500.0),
    ] {
        for (name, figure, paper) in [
            ("local I/O of a host", "local_io_gb_a_host", local_io),
            ("storage", "storage_gb", stored),
            ("network", "network_gb", network),
        ] {
            let value = told.scheme(scheme, figure)?;
            // The reading of messages was derived from the collaborative scheme; this cell checks it.
            let is_checked = (scheme, figure) == ("synchronous", "local_io_gb_a_host");
            let mark = if is_checked { "" } else { BY_CONSTRUCTION };
            beside(report, &format!("{scheme}: {name}{mark}"), value, "GB", (paper, NEAR));
        }
    }
    let memory = told.scheme("collaborative", "memory_mb")?;
    beside(report, &format!("collaborative: memory of answers{BY_CONSTRUCTION}"), memory, "MB", (90.0, NEAR));
    let memory = told.scheme("synchronous", "memory_mb")?;
    report.fact("synchronous: memory of answers (paper: 40)", memory, "MB");
    let copal = |figure| told.scheme("copal", figure);
    report.fact("copal: memory of answers", copal("memory_mb")?, "MB");
    let local_io = copal("local_io_gb_a_host")?;
    between(report, "copal: local I/O of a host", local_io, "GB", (265.0, 290.0));
    report.at_most("copal: local I/O of a host, never more", local_io, "GB", 330.0);
    between(report, "copal: storage", copal("storage_gb")?, "GB", (4665.0, 5015.0));
    report.at_most("copal: messages of a host", copal("messages_gb_a_host")?, "GB", 0.5);
    report.fact("copal: stored without an answer", told.unresolved("copal")?, "%");
    let even = simulate(&["--scheme", "copal", "--sizes", "even"])?;
    let value = even.scheme("copal", "local_io_gb_a_host")?;
    report.fact("copal, even sizes: local I/O of a host", value, "GB");
    Ok(())
}
