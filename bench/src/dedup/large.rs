//! A hundred thousand VMs on four thousand hosts.
//!
//! Paper: low-profile-dedup §6 (0.96 PB become 196 TB in less than 3 h, 6.6 GB of messages from each host)

use super::simulator::{between, run as simulate};
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::Report;
use std::path::Path;

#[derive(Args)]
pub(crate) struct Options {}

pub(crate) fn run(root: &Path, _: &Options) -> Result<()> {
    let mut report = Report::new(root, root);
    let words = ["dedup", "--hosts", "4000", "--vms", "100000", "--scale", "20000"];
    let told = simulate(root, &[&words[..], &["--scheme", "copal", "--fewer-partitions", "64"]].concat())?;
    let stored = told.scheme("copal", "storage_gb")? / 1000.0;
    between(&mut report, "copal: storage (paper: 196)", stored, "TB", (190.0, 212.0));
    report.at_most("copal: span (paper: < 3)", told.scheme("copal", "span_h")?, "h", 1.6);
    let messages = told.scheme("copal", "messages_gb_a_host")?;
    report.at_most("copal: messages of a host (paper: 6.6)", messages, "GB", 0.5);
    report.fact("copal: per VM", told.scheme("copal", "per_vm_h")?, "h");
    let paper = simulate(root, &[&words[..], &["--scheme", "collaborative"]].concat())?;
    let stored = paper.scheme("collaborative", "storage_gb")? / 1000.0;
    report.fact("collaborative: storage (paper: 196)", stored, "TB");
    report.fact("collaborative: span (paper: < 3)", paper.scheme("collaborative", "span_h")?, "h");
    let messages = paper.scheme("collaborative", "messages_gb_a_host")?;
    report.fact("collaborative: messages of a host (paper: 6.6)", messages, "GB");
    report.finish(root, "dedup-100k")
}
