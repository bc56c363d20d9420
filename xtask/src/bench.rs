//! Suites of measurements, run from `bench/`, a workspace of its own.
//!
//! Not here: the suites themselves (`bench/src`), so that nothing they need enters the main lock file.

use anyhow::{Context, Result, bail};
use std::{path::Path, process::Command};

/// One suite by its name.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
}

/// Every suite there is; `docs/papers.md` may name only these.
pub(crate) const SUITES: [Suite; 4] = [
    Suite {
        name: "backup-peers",
        about: "repository size, CPU, memory, restore beside restic, rustic and borg",
    },
    Suite {
        name: "backup-memory",
        about: "peak memory of backup, restore, forget and prune, with a 100 GB sparse image too",
    },
    Suite {
        name: "object-commands",
        about: "device commands per durable append and per commit",
    },
    Suite {
        name: "draconis-fig9",
        about: "durable append against append + fdatasync on journaled ext4",
    },
];

/// Builds `bench/` in release mode and runs the suite; without a name, lists the suites.
pub(crate) fn run(root: &Path, suite: Option<&str>, arguments: &[String]) -> Result<()> {
    let Some(name) = suite else {
        for suite in SUITES {
            println!("{:18} {}", suite.name, suite.about);
        }
        return Ok(());
    };
    if !SUITES.iter().any(|suite| suite.name == name) {
        bail!("there is no suite `{name}`; `cargo xtask bench` lists them");
    }
    let status = Command::new("cargo")
        .args([
            "run",
            "--quiet",
            "--release",
            "--manifest-path",
            "bench/Cargo.toml",
            "--",
            name,
        ])
        .args(arguments)
        .current_dir(root)
        .status()
        .context("running cargo")?;
    if !status.success() {
        bail!("the suite `{name}` failed ({status})");
    }
    Ok(())
}
