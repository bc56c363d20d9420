//! Runs all checks that a change must pass, the fastest first. `make test` runs this and CI runs `make test`.
//!
//! Not here: measurements (`bench`), which take minutes and judge numbers, not correctness.

use anyhow::{Context, Result, bail};
use std::{
    path::Path,
    process::{Command, Stdio},
    time::Instant,
};

/// Runs all steps; stops at the first that fails.
pub(crate) fn run(root: &Path) -> Result<()> {
    step(root, "cargo fmt --all --check")?;
    step(root, "cargo fmt --manifest-path bench/Cargo.toml --all --check")?;
    step(root, "cargo fmt --manifest-path fuzz/Cargo.toml --check")?;
    timed("tidy", || crate::tidy::run(root, false))?;
    timed("layers", || crate::layers::run(root))?;
    timed("layers --modules", || crate::modules::run(root, false))?;
    // With HDFS, which no other step compiles.
    step(
        root,
        "cargo clippy --workspace --all-targets --features copal/hdfs --locked --quiet -- -D warnings",
    )?;
    // Workspaces of their own. One target directory: they share the checked dependencies.
    step(
        root,
        "cargo check --manifest-path bench/Cargo.toml --workspace --locked --quiet --target-dir target",
    )?;
    step(root, "cargo check --manifest-path fuzz/Cargo.toml --locked --quiet --target-dir target")?;
    timed("cargo test", || crate::test_programs::run(root))?;
    step(root, "cargo test --workspace --locked --doc --no-fail-fast")?;
    // The default features leave out the compared engines.
    step(root, "cargo test --manifest-path bench/kv/Cargo.toml --locked --no-fail-fast --target-dir target")
}

fn step(root: &Path, command: &str) -> Result<()> {
    timed(command, || {
        let mut words = command.split(' ');
        let program = words.next().context("an empty command")?;
        let status = Command::new(program)
            .args(words)
            .current_dir(root)
            .stdin(Stdio::null())
            .status()
            .with_context(|| format!("starting {program}"))?;
        if !status.success() {
            bail!("`{command}` failed ({status})");
        }
        Ok(())
    })
}

fn timed(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let started = Instant::now();
    println!("ci: {name}");
    work()?;
    println!("ci: {name}: {:.1} s", started.elapsed().as_secs_f64());
    Ok(())
}
