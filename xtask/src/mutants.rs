//! Runs `cargo mutants` on a change: it breaks every changed function once, and the tests of the crate should
//! fail.
//!
//! Takes minutes for a small change and is not part of `make test`. Variants that once survived are kept: in
//! the crates (`broken.rs`), where every test run tries them, or as patches (`kept`).

mod kept;

pub(crate) use kept::run as run_kept;

use anyhow::{Context, Result, bail, ensure};
use std::{
    path::Path,
    process::{Command, Stdio},
};

/// Mutates the functions changed since `base`: by default the uncommitted changes, or the last commit if
/// there are none.
pub(crate) fn run(root: &Path, base: Option<&str>, arguments: &[String]) -> Result<()> {
    let is_installed = Command::new("cargo")
        .args(["mutants", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    ensure!(
        is_installed,
        "cargo-mutants is not installed; `cargo install --locked cargo-mutants` installs it"
    );
    let base = match base {
        Some(base) => base,
        None if diff(root, "HEAD")?.is_empty() => "HEAD~1",
        None => "HEAD",
    };
    let change = diff(root, base)?;
    if change.is_empty() {
        bail!("no source file differs from {base}; name another commit with --base");
    }
    let directory = tempfile::tempdir().context("making a directory for the change")?;
    let file = directory.path().join("change.diff");
    std::fs::write(&file, change).context("writing the change down")?;
    let status = Command::new("cargo")
        .args(["mutants", "--no-shuffle", "--output", "target", "--in-diff"])
        .arg(&file)
        .args(arguments)
        .current_dir(root)
        .status()
        .context("running cargo mutants")?;
    ensure!(
        status.success(),
        "some variants were not noticed ({status}); target/mutants.out/missed.txt names them"
    );
    Ok(())
}

/// The change of source files since `base`, committed or not.
fn diff(root: &Path, base: &str) -> Result<Vec<u8>> {
    let output = Command::new("git")
        .args(["diff", base, "--", "crates/*.rs", "sim/*.rs", "xtask/*.rs"])
        .current_dir(root)
        .output()
        .context("running git")?;
    ensure!(
        output.status.success(),
        "git knows no commit `{base}`: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output.stdout)
}
