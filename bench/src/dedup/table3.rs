//! Time and memory of deleting a snapshot of every VM, by method.
//!
//! Paper: low-profile-dedup §5, table 3. Inputs are fitted to 100 hosts; 50 hosts are the check.

use super::simulator::{beside, run as simulate};
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::Report;
use std::path::Path;

/// Tolerance for the paper's own methods.
const NEAR: f64 = 0.10;
/// Methods, and the paper's hours at 100 and at 50 hosts.
const PRINTED: [(&str, f64, f64); 5] = [
    ("mark-sweep", 84.3, 35.9),
    ("grouped", 43.6, 18.6),
    ("local", 0.82, 0.7),
    ("summary", 0.014, 0.012),
    ("repair", 0.82, 0.7),
];

#[derive(Args)]
pub(crate) struct Options {}

pub(crate) fn run(root: &Path, _: &Options) -> Result<()> {
    let mut report = Report::new(root, root);
    for (hosts, at) in [("100", 0), ("50", 1)] {
        let told = simulate(root, &["deletion", "--hosts", hosts])?;
        for (method, at_100, at_50) in PRINTED {
            let hours = told.method(method, "hours")?;
            let name = format!("{hosts} hosts: {method}");
            beside(&mut report, &name, hours, "h", ([at_100, at_50][at], NEAR));
        }
        report.at_most(format!("{hosts} hosts: copal"), told.method("copal-summary", "hours")?, "h", 0.014);
        report.at_most(
            format!("{hosts} hosts: copal, repair"),
            told.method("copal-repair", "hours")?,
            "h",
            0.1,
        );
        if at == 0 {
            let memory = |method| told.method(method, "memory_mb");
            let most = |method| told.method(method, "most_memory_mb");
            let marks = memory("mark-sweep")?;
            beside(&mut report, "mark-sweep: memory, mean of hosts", marks, "MB", (1200.0, NEAR));
            report.fact(
                "mark-sweep: memory, most of hosts with VMs placed at random (paper: 3000)",
                most("mark-sweep")?,
                "MB",
            );
            beside(&mut report, "local: memory, mean of VMs", memory("local")?, "MB", (50.0, NEAR));
            report.fact("local: memory, largest VM (paper: 1960)", most("local")?, "MB");
            beside(&mut report, "summary: memory, mean of VMs", memory("summary")?, "MB", (15.0, NEAR));
            report.at_most("copal: memory, largest VM", most("copal-summary")?, "MB", 16.0);
            report.at_most(
                "copal, repair: memory, largest VM",
                most("copal-repair")? / 1.048_576,
                "MiB",
                64.0,
            );
        }
    }
    report.finish(root, "dedup-table3")
}
