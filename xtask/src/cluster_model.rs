//! The model check of the rules of a group, by itself and with its numbers printed.

use anyhow::{Context, Result, ensure};
use std::{path::Path, process::Command};

/// States that each search looks at, visited ones counted again.
const DEEP_STATES: &str = "40000000";

/// Runs all searches; `deep`: in a release build, each over many more states.
pub(crate) fn run(root: &Path, deep: bool) -> Result<()> {
    let mut command = Command::new("cargo");
    command.args(["test", "-p", "copal-volume", "--test", "model", "--quiet"]);
    if deep {
        command.arg("--release").env("COPAL_MODEL_STATES", DEEP_STATES);
    }
    command.args(["--", "--nocapture", "--test-threads=1"]);
    let status = command.current_dir(root).status().context("cargo runs")?;
    ensure!(
        status.success(),
        "a state breaks an invariant, or a weakened rule was not found out; the way there is printed above"
    );
    Ok(())
}
