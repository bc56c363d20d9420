//! Recorded Gets as a load of four phases of equal length.

use super::{
    store::{Key, Store},
    traces::{Beside, Heat, Phase, Trace},
};
use crate::rules::trace;
use anyhow::{Context, Result, ensure};
use std::{fs::File, io::BufReader, path::Path};

const PHASES: u64 = 4;

/// Reads a file of `Store::record_gets`. Its keys stand at their rank; a file does not contain the lengths of
/// values.
pub(super) fn read(path: &Path, budget: u64, row_bytes: u64) -> Result<Trace> {
    let file = File::open(path).with_context(|| format!("opening {}", path.display()))?;
    let trace = trace::read(BufReader::new(file)).with_context(|| format!("reading {}", path.display()))?;
    let rows = trace.store_keys.max(trace.gets.len() as u64 / 4).max(1_000);
    let key = |key: &crate::rules::key::Key| Key {
        id: ((u128::from(key.position) * u128::from(rows)) >> 64) as u64,
        is_absent: key.home.is_none(),
    };
    let recorded: Vec<Key> = trace.gets.iter().map(key).collect();
    let gets = recorded.len() as u64 / PHASES;
    ensure!(gets > 0, "{} has fewer than {PHASES} Gets", path.display());
    let phases = (0..PHASES).map(|phase| Phase {
        gets,
        heat: Heat::Recorded { from: (phase * gets) as usize },
        missing: 0.0,
        is_shift: true,
    });
    Ok(Trace {
        name: path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        budget,
        store: Store::new(rows, row_bytes),
        phases: phases.collect(),
        beside: Beside::default(),
        recorded,
    })
}
