//! Runs of `copal-sim dedup` and `deletion`, and rows beside the paper's.

use anyhow::{Context, Result, ensure};
use copal_bench_harness::report::Report;
use serde_json::Value;
use std::{path::Path, process::Command};

/// Output of a run.
pub(super) struct Run(Value);

/// Runs the simulator with these arguments.
pub(super) fn run(root: &Path, words: &[&str]) -> Result<Run> {
    let ran = Command::new("cargo")
        .args(["run", "--quiet", "--release", "--locked", "--package", "copal-sim", "--"])
        .args(words)
        .arg("--json")
        .current_dir(root)
        .output()
        .context("running the simulator")?;
    ensure!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    Ok(Run(serde_json::from_slice(&ran.stdout)?))
}

/// Runs `dedup` with further arguments; one id stands for `scale` chunks.
pub(super) fn run_scaled(root: &Path, scale: &str, words: &[&str]) -> Result<Run> {
    run(root, &[&["dedup", "--scale", scale], words].concat())
}

impl Run {
    /// A figure of a scheme.
    pub(super) fn scheme(&self, scheme: &str, figure: &str) -> Result<f64> {
        number(find(&self.0["schemes"], "scheme", scheme)?, figure)
    }

    /// A figure of a method of deletion.
    pub(super) fn method(&self, method: &str, figure: &str) -> Result<f64> {
        number(find(&self.0["methods"], "method", method)?, figure)
    }

    /// Percentage of a scheme's chunks that were stored without an answer in time.
    pub(super) fn unresolved(&self, scheme: &str) -> Result<f64> {
        let ids = &find(&self.0["schemes"], "scheme", scheme)?["ids"];
        Ok(100.0 * number(ids, "unresolved")? / number(ids, "all")?)
    }
}

fn find<'a>(list: &'a Value, key: &str, name: &str) -> Result<&'a Value> {
    let list = list.as_array().context("the simulator printed a list")?;
    let found = list.iter().find(|one| one[key] == name);
    found.with_context(|| format!("the simulator printed nothing of {name}"))
}

fn number(of: &Value, figure: &str) -> Result<f64> {
    of[figure].as_f64().with_context(|| format!("{figure} is a number"))
}

/// The scheme with a VM of the largest size in every stage.
pub(super) const LARGEST_EACH_STAGE: &str = "synchronous, a VM of the largest size in every stage";

/// Adds a row whose target is a band.
pub(super) fn between(report: &mut Report, name: &str, value: f64, unit: &str, (low, high): (f64, f64)) {
    let rounded = |number: f64| (number * 1e6).round() / 1e6;
    report.within(name, value, unit, rounded((low + high) / 2.0), rounded((high - low) / 2.0));
}

/// Adds a row with a figure of the paper as target, and a tolerance.
pub(super) fn beside(report: &mut Report, name: &str, value: f64, unit: &str, (paper, share): (f64, f64)) {
    report.within(
        format!("{name} (paper: {paper})"),
        value,
        unit,
        paper,
        (paper * share * 1e6).round() / 1e6,
    );
}
