//! Simulated clusters, seed after seed, until one breaks what must hold.

use anyhow::{Context, Result, ensure};
use std::{path::Path, process::Command};

/// Runs `seeds` seeds from `seed` on, in a release build.
pub(crate) fn run(root: &Path, seeds: u64, seed: u64) -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(["run", "--release", "--quiet", "-p", "copal-sim", "--", "cluster"]);
    command.args(["--seeds", &seeds.to_string(), "--seed", &seed.to_string()]);
    let status = command.current_dir(root).status().context("cargo runs")?;
    ensure!(
        status.success(),
        "a seed breaks what must hold, or nothing of one kind went wrong in all of them"
    );
    Ok(())
}
