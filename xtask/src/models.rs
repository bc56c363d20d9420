//! Model checks of a cluster and of a fleet, each run alone and with its numbers printed.

use anyhow::{Context, Result, ensure};
use std::{path::Path, process::Command};

/// A model and its tests.
pub(crate) struct Model {
    /// Arguments of `cargo test` that build only these tests.
    build: &'static [&'static str],
    /// Filters of the tests; none selects all.
    tests: &'static [&'static str],
    /// Number of states that each deep search visits; repeated visits count again.
    deep_states: u64,
}

/// Model of a group of volumes.
pub(crate) const CLUSTER: Model = Model {
    build: &["-p", "copal-volume", "--test", "model"],
    tests: &[],
    // A state takes about 600 bytes: 40 million of one search took 23 GB.
    deep_states: 12_000_000,
};

/// Model of backups, prunes and clean-ups.
pub(crate) const FLEET: Model =
    Model { build: &["-p", "copal-backup", "--lib"], tests: &["model::"], deep_states: 10_000_000 };

/// Runs all searches; with `deep` in a release build and over many more states.
pub(crate) fn run(root: &Path, model: &Model, deep: bool) -> Result<()> {
    let mut command = Command::new("cargo");
    command.arg("test").args(model.build).arg("--quiet");
    if deep {
        let states = model.deep_states.to_string();
        command.arg("--release").env("COPAL_MODEL_STATES", states);
    }
    command.arg("--").args(model.tests);
    command.args(["--nocapture", "--test-threads=1"]);
    let status = command.current_dir(root).status().context("cargo runs")?;
    ensure!(
        status.success(),
        "a state violates an invariant, or a weakened rule was not detected; the steps to it are printed above"
    );
    Ok(())
}
