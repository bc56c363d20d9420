//! Long run of the crash enumerator, in a release build.

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use std::{path::Path, process::Command};

/// Backend of a device.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum CrashBackend {
    /// Copy on write
    #[default]
    Cow,
    /// Segments, with the cleaner at work
    Log,
}

/// Tries `histories` histories of the object store, starting at number `from`; prints the number of crash
/// states.
pub(crate) fn run(root: &Path, backend: CrashBackend, histories: u64, from: u64) -> Result<()> {
    let test = match backend {
        CrashBackend::Cow => "crashes::no_crash_state_loses_or_mixes_acknowledged_data",
        CrashBackend::Log => "crashes::no_crash_state_of_segments_loses_or_mixes_acknowledged_data",
    };
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
