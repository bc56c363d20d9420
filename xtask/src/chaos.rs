//! The long form of the test that kills and freezes processes of a cluster while clients use it.

use anyhow::{Context, Result, ensure};
use std::{path::Path, process::Command};

/// Runs the cluster for `minutes`. Prints what the test prints.
pub(crate) fn run(root: &Path, minutes: u64, seed: u64) -> Result<()> {
    let test = "chaos::nothing_acknowledged_is_lost_whoever_is_killed_or_frozen";
    let status = Command::new("cargo")
        .args([
            "test",
            "-p",
            "copal",
            "--test",
            "it",
            test,
            "--",
            "--exact",
            "--nocapture",
        ])
        .env("COPAL_CHAOS_SECONDS", (minutes * 60).to_string())
        .env("COPAL_CHAOS_SEED", seed.to_string())
        .current_dir(root)
        .status()
        .context("cargo runs")?;
    ensure!(
        status.success(),
        "seed {seed}: something acknowledged was lost, or members differ; it is printed above"
    );
    Ok(())
}
