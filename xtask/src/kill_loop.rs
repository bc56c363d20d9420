//! Long run of the test that kills `copal` at random moments of backup, forget, prune and restore.

use anyhow::{Context, Result, ensure};
use std::{path::Path, process::Command};

/// Kills `rounds` commands on one repository of the `backend`. Prints the test's output.
pub(crate) fn run(root: &Path, rounds: u64, seed: u64, backend: &str) -> Result<()> {
    let test = "kill::killed_at_random_moments_nothing_published_is_lost";
    let status = Command::new("cargo")
        .args(["test", "--locked", "--profile", "demo", "-p", "copal", "--test", "it", test, "--", "--exact"])
        .env("COPAL_KILL_ROUNDS", rounds.to_string())
        .env("COPAL_KILL_SEED", seed.to_string())
        .env("COPAL_KILL_BACKEND", backend)
        .current_dir(root)
        .status()
        .context("cargo runs")?;
    ensure!(status.success(), "seed {seed}: a kill lost or damaged data; the round is printed above");
    Ok(())
}
