//! Suites of measurements, run from `bench/`, a workspace of its own.
//!
//! Not here: the suites themselves (`bench/src`), so that nothing they need enters the main lock file.

use anyhow::{Context, Result, bail};
use std::{path::Path, process::Command};

/// One suite by its name.
pub(crate) struct Suite {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    package: Package,
}

/// Which binary of the workspace holds it. The peers of the key-value duels are C++ that takes half an hour to
/// build, which no other suite should wait for.
#[derive(Clone, Copy)]
enum Package {
    Bench,
    Kv,
}

const fn suite(name: &'static str, about: &'static str, package: Package) -> Suite {
    Suite { name, about, package }
}

/// Every suite there is; `docs/papers.md` may name only these.
pub(crate) const SUITES: [Suite; 16] = [
    suite(
        "backup-peers",
        "repository size, CPU, memory, restore beside restic, rustic and borg",
        Package::Bench,
    ),
    suite(
        "backup-memory",
        "peak memory of backup, restore, forget and prune, with a 100 GB sparse image too",
        Package::Bench,
    ),
    suite(
        "object-commands",
        "device commands per durable append and per commit",
        Package::Bench,
    ),
    suite(
        "draconis-fig9",
        "durable append against append + fdatasync on journaled ext4",
        Package::Bench,
    ),
    suite(
        "kv-filters",
        "filters alone: build, probe, bits per key, false positives",
        Package::Bench,
    ),
    suite(
        "elasticbf-table1",
        "reads per Get by filter and rule, beside LevelDB, RocksDB and fjall",
        Package::Kv,
    ),
    suite(
        "elasticbf-fig5",
        "Gets per second under memory caps, beside the same",
        Package::Kv,
    ),
    suite(
        "elasticbf-fig6",
        "Gets per second by filter bits per key",
        Package::Kv,
    ),
    suite(
        "elasticbf-fig7",
        "time to load with fixed and with elastic filters",
        Package::Kv,
    ),
    suite(
        "kv-memory",
        "memory that grows with the data, and life under the caps",
        Package::Kv,
    ),
    suite("kv-sync", "durable writes by threads", Package::Kv),
    suite("kv-ycsb", "YCSB A to F", Package::Kv),
    suite("kv-scan", "range scans", Package::Kv),
    suite("kv-purge", "deleting everything below a prefix", Package::Kv),
    suite(
        "kv-values",
        "large values straight into their object, or through the log",
        Package::Bench,
    ),
    suite(
        "kv-load",
        "random load and overwrite: speed, amplification, waits",
        Package::Kv,
    ),
];

/// Builds `bench/` in release mode and runs the suite; without a name, lists the suites.
pub(crate) fn run(root: &Path, suite: Option<&str>, arguments: &[String]) -> Result<()> {
    let Some(name) = suite else {
        for suite in &SUITES {
            println!("{:18} {}", suite.name, suite.about);
        }
        return Ok(());
    };
    let Some(suite) = SUITES.iter().find(|suite| suite.name == name) else {
        bail!("there is no suite `{name}`; `cargo xtask bench` lists them");
    };
    let mut cargo = Command::new("cargo");
    cargo.args([
        "run",
        "--quiet",
        "--release",
        "--manifest-path",
        "bench/Cargo.toml",
    ]);
    match suite.package {
        Package::Bench => cargo.args(["--package", "copal-bench"]),
        Package::Kv => {
            if std::env::var_os("CXXFLAGS").is_none() && has_avx2() {
                // RocksDB chooses its checksums and filter probes when it is compiled: give it its best.
                cargo.env("CXXFLAGS", "-march=x86-64-v3 -mpclmul");
            }
            cargo.args(["--package", "copal-bench-kv", "--features", "peers"])
        }
    };
    let status = cargo
        .args(["--", name])
        .args(arguments)
        .current_dir(root)
        .status()
        .context("running cargo")?;
    if !status.success() {
        bail!("the suite `{name}` failed ({status})");
    }
    Ok(())
}

#[cfg(target_arch = "x86_64")]
fn has_avx2() -> bool {
    // What processors of that level have in common beyond it came no later.
    std::arch::is_x86_feature_detected!("avx2")
        && std::arch::is_x86_feature_detected!("bmi2")
        && std::arch::is_x86_feature_detected!("fma")
}

#[cfg(not(target_arch = "x86_64"))]
fn has_avx2() -> bool {
    false
}
