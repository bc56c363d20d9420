//! Measurements of this run and of earlier ones that it continues: a line of JSON each, written at once.

use anyhow::{Context, Result};
use copal_bench_harness::report::median;
use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File, OpenOptions},
    io::Write,
    path::Path,
};

/// Position of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RowKey {
    pub(super) row: String,
    pub(super) program: String,
    pub(super) cores: usize,
    /// Number of clients; 0 where there are none.
    #[serde(default)]
    pub(super) clients: usize,
    #[serde(default)]
    pub(super) round: usize,
}

impl RowKey {
    pub(super) fn new(row: &str, program: &str, cores: usize) -> RowKey {
        RowKey { row: row.to_owned(), program: program.to_owned(), cores, clients: 0, round: 0 }
    }
}

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Measurement {
    #[serde(flatten)]
    key: RowKey,
    /// Numbers by name.
    values: BTreeMap<String, f64>,
}

/// All measurements.
pub(super) struct Results {
    file: File,
    all: Vec<Measurement>,
}

impl Results {
    /// Reads those of an earlier run if this one resumes it.
    pub(super) fn open(directory: &Path, resume: bool) -> Result<Results> {
        fs::create_dir_all(directory)?;
        let path = directory.join(format!("{}.rows.jsonl", super::SUITE));
        let text = if resume { fs::read_to_string(&path).unwrap_or_default() } else { String::new() };
        // A kill may have cut the last line.
        let all = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("opening {}", path.display()))?;
        if !resume {
            file.set_len(0)?;
        } else if !text.is_empty() && !text.ends_with('\n') {
            file.write_all(b"\n")?;
        }
        Ok(Results { file, all })
    }

    pub(super) fn has(&self, key: &RowKey) -> bool {
        self.all.iter().any(|one| one.key == *key)
    }

    /// Stores and prints a measurement.
    pub(super) fn add(&mut self, key: RowKey, values: BTreeMap<String, f64>) -> Result<()> {
        let mut position = format!("{}, {}, {}", key.row, key.program, counted(key.cores, "core"));
        if key.clients > 0 {
            position = format!("{position}, {}", counted(key.clients, "client"));
        }
        let shown = values.iter().filter(|(name, _)| !name.starts_with(STAGE));
        let shown: Vec<_> = shown.map(|(name, value)| format!("{name} {value:.2}")).collect();
        println!("{position}: {}", shown.join(", "));
        let measurement = Measurement { key, values };
        let mut line = serde_json::to_string(&measurement)?;
        line.push('\n');
        self.file.write_all(line.as_bytes())?;
        self.all.push(measurement);
        Ok(())
    }

    /// Median of a number over the rounds.
    pub(super) fn value(&self, row: &str, program: &str, cores: usize, name: &str) -> Option<f64> {
        self.value_at(row, program, cores, 0, name)
    }

    /// The same with a number of clients.
    pub(super) fn value_at(
        &self,
        row: &str,
        program: &str,
        cores: usize,
        clients: usize,
        name: &str,
    ) -> Option<f64> {
        let of = |key: &RowKey| {
            (key.row.as_str(), key.program.as_str(), key.cores, key.clients) == (row, program, cores, clients)
        };
        let here = self.all.iter().filter(|one| of(&one.key));
        median(here.filter_map(|one| one.values.get(name).copied()).collect())
    }

    /// Numbers of cores with a measurement of the row, ascending.
    pub(super) fn cores(&self, row: &str, program: &str) -> BTreeSet<usize> {
        let here = self.all.iter().filter(|one| one.key.row == row && one.key.program == program);
        here.map(|one| one.key.cores).collect()
    }

    /// Numbers of clients with a measurement of the row, ascending.
    pub(super) fn clients(&self, row: &str, cores: usize) -> BTreeSet<usize> {
        let here = self.all.iter().filter(|one| one.key.row == row && one.key.cores == cores);
        here.map(|one| one.key.clients).collect()
    }

    /// Names of the stages of the row.
    pub(super) fn stages(&self, row: &str, program: &str, cores: usize) -> BTreeSet<String> {
        let here = self.all.iter().filter(|one| {
            (one.key.row.as_str(), one.key.program.as_str(), one.key.cores) == (row, program, cores)
        });
        here.flat_map(|one| one.values.keys())
            .filter_map(|name| name.strip_prefix(STAGE))
            .map(str::to_owned)
            .collect()
    }
}

/// A number with the word for one thing, in the plural if it needs it.
pub(super) fn counted(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

/// Begin of the names of processor times by stage.
pub(super) const STAGE: &str = "stage ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_run_has_the_measurements_of_the_earlier_one_but_for_a_cut_line() {
        let directory = tempfile::tempdir().unwrap();
        let key = |cores| RowKey::new("restore", "copal", cores);
        let values = |wall| BTreeMap::from([("wall".to_owned(), wall)]);
        let mut first = Results::open(directory.path(), false).unwrap();
        first.add(key(1), values(4.0)).unwrap();
        first.file.write_all(b"{\"row\":\"resto").unwrap();
        drop(first);
        let mut second = Results::open(directory.path(), true).unwrap();
        assert!(second.has(&key(1)) && !second.has(&key(2)));
        second.add(key(2), values(2.0)).unwrap();
        drop(second);
        let third = Results::open(directory.path(), true).unwrap();
        assert_eq!(third.value("restore", "copal", 2, "wall"), Some(2.0));
        assert_eq!(third.cores("restore", "copal"), BTreeSet::from([1, 2]));
        drop(third);
        assert!(!Results::open(directory.path(), false).unwrap().has(&key(1)));
    }
}
