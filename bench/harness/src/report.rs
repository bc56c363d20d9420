//! Results of one suite: rows of numbers with their targets, printed and stored.
//!
//! Stored as `bench/results/latest/<suite>.json`: `{command, commit, machine, notes, rows}`, each row `{name, value,
//! unit, target, ok}`. A row without a target is a fact, with `ok` null. A missed target is printed as
//! missed; it does not make the run fail.

use crate::machine::{self, Machine};
use anyhow::{Context, Result};
use serde::Serialize;
use std::{
    fs,
    path::{Path, PathBuf},
};
use xtask::table::Table;

/// One measured number.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the measured quantity.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit; empty for a ratio.
    pub unit: String,
    /// Its target, such as `<= 0.9`.
    pub target: Option<String>,
    /// Whether it meets the target.
    pub ok: Option<bool>,
    /// Whether the row is stored but not printed.
    #[serde(skip)]
    detail: bool,
}

/// Rows of a suite.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Command line of the run.
    pub command: String,
    /// Commit of the measured code.
    pub commit: String,
    /// Machine of the run.
    pub machine: Machine,
    /// Sentences that a reader of the rows needs.
    pub notes: Vec<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

impl Report {
    /// An empty report of the running command.
    pub fn new(root: &Path, scratch: &Path) -> Report {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        Report {
            command: format!("cargo xtask bench {}", arguments.join(" ")),
            commit: machine::commit(root),
            machine: Machine::here(scratch),
            notes: Vec::new(),
            rows: Vec::new(),
        }
    }

    /// Adds a sentence, printed below the rows.
    pub fn note(&mut self, sentence: impl Into<String>) {
        self.notes.push(sentence.into());
    }

    /// Adds a number without a target.
    pub fn fact(&mut self, name: impl Into<String>, value: f64, unit: &str) {
        let (name, unit) = (name.into(), unit.to_owned());
        self.rows.push(Row { name, value, unit, target: None, ok: None, detail: false });
    }

    /// Adds a number that is stored but not printed: one of many behind a printed one.
    pub fn detail(&mut self, name: impl Into<String>, value: f64, unit: &str) {
        let (name, unit) = (name.into(), unit.to_owned());
        self.rows.push(Row { name, value, unit, target: None, ok: None, detail: true });
    }

    /// Adds a number that should not exceed `limit`.
    pub fn at_most(&mut self, name: impl Into<String>, value: f64, unit: &str, limit: f64) {
        self.judged(name.into(), value, unit, format!("<= {limit}"), value <= limit);
    }

    /// Adds a number that should reach `limit`.
    pub fn at_least(&mut self, name: impl Into<String>, value: f64, unit: &str, limit: f64) {
        self.judged(name.into(), value, unit, format!(">= {limit}"), value >= limit);
    }

    /// Adds a number that must be exactly `wanted`.
    pub fn exactly(&mut self, name: impl Into<String>, value: f64, unit: &str, wanted: f64) {
        self.judged(name.into(), value, unit, format!("= {wanted}"), value == wanted);
    }

    /// Adds a number that should be `wanted`, plus or minus `tolerance`.
    pub fn within(&mut self, name: impl Into<String>, value: f64, unit: &str, wanted: f64, tolerance: f64) {
        let is_near = (value - wanted).abs() <= tolerance;
        self.judged(name.into(), value, unit, format!("{wanted} +- {tolerance}"), is_near);
    }

    fn judged(&mut self, name: String, value: f64, unit: &str, target: String, ok: bool) {
        self.rows.push(Row {
            name,
            value,
            unit: unit.to_owned(),
            target: Some(target),
            ok: Some(ok),
            detail: false,
        });
    }

    /// Prints the report as JSON and writes it below `root` as the latest results of `suite`.
    ///
    /// # Errors
    /// The file cannot be written.
    #[expect(clippy::print_stdout, reason = "the output for programs")]
    pub fn finish_as_json(&self, root: &Path, suite: &str) -> Result<()> {
        println!("{}", serde_json::to_string_pretty(self)?);
        self.store(&latest_results(root), suite).map(drop)
    }

    /// Prints the rows and writes them below `root` as the latest results of `suite`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn finish(&self, root: &Path, suite: &str) -> Result<()> {
        self.finish_in(&latest_results(root), suite)
    }

    /// Prints the rows and writes them into `directory` as `suite.json`.
    ///
    /// # Errors
    /// The file cannot be written.
    #[expect(clippy::print_stdout, reason = "a report is for people first")]
    pub fn finish_in(&self, directory: &Path, suite: &str) -> Result<()> {
        let mut table = Table::new(&[suite, "value", "unit", "target", ""]);
        for row in self.rows.iter().filter(|row| !row.detail) {
            let verdict = match row.ok {
                Some(true) => "ok",
                Some(false) => "MISSED",
                None => "",
            };
            let target = row.target.clone().unwrap_or_default();
            table.row([row.name.clone(), number(row.value), row.unit.clone(), target, verdict.to_owned()]);
        }
        println!("\n{table}");
        for note in &self.notes {
            println!("{note}");
        }
        let path = self.store(directory, suite)?;
        let missed = self.rows.iter().filter(|row| row.ok == Some(false)).count();
        println!("{} rows, {missed} targets missed, written to {}", self.rows.len(), path.display());
        Ok(())
    }

    /// Writes the report; returns the file.
    fn store(&self, directory: &Path, suite: &str) -> Result<PathBuf> {
        fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
        let path = directory.join(format!("{suite}.json"));
        fs::write(&path, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("writing {}", path.display()))?;
        Ok(path)
    }
}

/// Directory of the latest results of all suites, below the checkout.
#[must_use]
pub fn latest_results(root: &Path) -> PathBuf {
    root.join("bench/results/latest")
}

/// Median of the values, for an even number the mean of the middle two; `None` without values.
#[must_use]
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        len if len % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

/// Three significant digits, no exponent, no trailing zeros of a whole number.
fn number(value: f64) -> String {
    match value.abs() {
        _ if value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.1}"),
        size if size >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::median;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}
