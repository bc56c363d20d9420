//! Simulated clusters, one per seed, until one violates an invariant.

use anyhow::{Context, Result, ensure};
use std::{path::Path, process::Command};

/// Runs `seeds` seeds, starting at `seed`, in a release build.
pub(crate) fn run(root: &Path, seeds: u64, seed: u64) -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(["run", "--release", "--quiet", "-p", "copal-sim", "--", "cluster"]);
    command.args(["--seeds", &seeds.to_string(), "--seed", &seed.to_string()]);
    let status = command.current_dir(root).status().context("cargo runs")?;
    ensure!(
        status.success(),
        "a seed violated an invariant, or one kind of fault never occurred in any seed"
    );
    Ok(())
}
