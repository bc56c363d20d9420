//! Long run of the test that fills a cluster to its limit, deletes half of the files, and restarts it.

use anyhow::{Context, Result, ensure};
use std::{path::Path, process::Command};

/// Fills disks of `limit` with files of `file_bytes` and prints the test's output.
pub(crate) fn run(root: &Path, limit: &str, file_bytes: u64) -> Result<()> {
    let test = "full_cluster::a_full_cluster_comes_back";
    let status = Command::new("cargo")
        .args(["test", "-p", "copal", "--test", "it", test, "--", "--exact"])
        .env("COPAL_FULL_LIMIT", limit)
        .env("COPAL_FULL_FILE_BYTES", file_bytes.to_string())
        .current_dir(root)
        .status()
        .context("cargo runs")?;
    ensure!(
        status.success(),
        "disks of {limit} filled with files of {file_bytes} bytes did not recover; see the output above"
    );
    Ok(())
}
