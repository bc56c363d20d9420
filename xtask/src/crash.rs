//! Long run of the crash enumerator, in a release build.

use anyhow::{Context, Result, ensure};
use std::{path::Path, process::Command};

/// Tries `histories` histories of the object store, starting at number `from`; prints the number of crash
/// states.
pub(crate) fn run(root: &Path, histories: u64, from: u64) -> Result<()> {
    let test = "crashes::no_crash_state_loses_or_mixes_acknowledged_data";
    let status = Command::new("cargo")
        .args(["test", "--release", "-p", "copal-object", "--lib", test, "--", "--exact", "--nocapture"])
        .env("COPAL_CRASH_SEEDS", histories.to_string())
        .env("COPAL_CRASH_FROM", from.to_string())
        .current_dir(root)
        .status()
        .context("cargo runs")?;
    ensure!(status.success(), "a crash state lost or mixed acknowledged data; its seed is printed above");
    Ok(())
}
