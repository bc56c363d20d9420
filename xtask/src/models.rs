//! The model checks of a cluster and of a fleet, each by itself and with its numbers printed.

use anyhow::{Context, Result, ensure};
use std::{path::Path, process::Command};

/// A model, and where its searches are.
pub(crate) struct Model {
    /// What `cargo test` takes to build them, and them alone.
    build: &'static [&'static str],
    /// Which of those tests they are; none: all.
    tests: &'static [&'static str],
    /// States that each search looks at when it goes deep, visited ones counted again.
    deep_states: u64,
}

/// Steps of a group of volumes.
pub(crate) const CLUSTER: Model = Model {
    build: &["-p", "copal-volume", "--test", "model"],
    tests: &[],
    // A state takes about 600 bytes: 40 million of one search took 23 GB.
    deep_states: 12_000_000,
};

/// Steps of backups, prunes and clean-ups.
pub(crate) const FLEET: Model =
    Model { build: &["-p", "copal-backup", "--lib"], tests: &["model::"], deep_states: 10_000_000 };

/// Runs all searches; `deep`: in a release build, each over many more states.
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
        "a state breaks an invariant, or a weakened rule was not found out; the way there is printed above"
    );
    Ok(())
}
