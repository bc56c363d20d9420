//! The engine beside RocksDB: look-ups in memory, look-ups of many keys, mixed work, writes and merges, with
//! as many threads as cores.

use super::{ScaleBench, results::RowKey};
use anyhow::{Context, Result};
use serde_json::Value;
use std::{collections::BTreeMap, process::Command};
use xtask::metered;

/// Row, and the name of its work in the engine's program.
const WORKS: [(&str, &str); 5] = [
    ("engine-gets", "gets"),
    ("engine-multi-gets", "multi-gets"),
    ("engine-mixed", "mixed"),
    ("engine-writes", "writes"),
    ("engine-merges", "merges"),
];
pub(super) const ENGINES: [&str; 2] = ["copal", "rocksdb"];

pub(super) fn measure(bench: &mut ScaleBench) -> Result<()> {
    for cores in bench.cores.clone() {
        for engine in ENGINES {
            let missing: Vec<_> = WORKS
                .into_iter()
                .filter(|(row, _)| {
                    bench.options.is_chosen(row) && !bench.results.has(&RowKey::new(row, engine, cores))
                })
                .map(|(_, work)| work)
                .collect();
            if !missing.is_empty() {
                one_engine(bench, engine, cores, &missing)?;
            }
        }
    }
    Ok(())
}

fn one_engine(bench: &mut ScaleBench, engine: &str, cores: usize, works: &[&str]) -> Result<()> {
    let mut command = Command::new("taskset");
    command
        .args(["-c", &bench.processors.first(cores)])
        .arg(&bench.programs.engine)
        .args(["engine-threads", "--engine", engine, "--threads", &cores.to_string()])
        .args(["--seconds", &bench.options.seconds.to_string(), "--work", &works.join(",")])
        .arg("--directory")
        .arg(bench.scratch.join("engine"));
    let run = metered::run(&mut command)?.success(&format!("the engine's program with {engine}"))?;
    for line in run.stdout.lines() {
        let line: Value = serde_json::from_str(line).with_context(|| format!("reading `{line}`"))?;
        if let Some(reason) = line["skipped"].as_str() {
            let note = format!("engine rows of {engine}: skipped: {reason}.");
            if !bench.notes.contains(&note) {
                println!("{note}");
                bench.notes.push(note);
            }
            return Ok(());
        }
        let name = line["work"].as_str();
        let row = WORKS.iter().find(|(_, work)| Some(*work) == name).context("work of an unknown name")?.0;
        let numbers = line.as_object().into_iter().flatten();
        let values: BTreeMap<_, _> =
            numbers.filter_map(|(name, value)| Some((name.clone(), value.as_f64()?))).collect();
        bench.results.add(RowKey::new(row, engine, cores), values)?;
    }
    Ok(())
}
