//! `TraceFolder`: the stored traces and the processor times that were recorded with them.

use super::program::Operation;
use anyhow::{Context, Result};
use copal_bench_harness::machine;
use copal_device::emulated::BlockTrace;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::BufReader,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::metered::Run;

/// Traces are stored once and read often.
const ZSTD_LEVEL: i32 = 19;

/// The folder of `PROGRAM-OPERATION.trace.zst` and `runs.json`.
pub(super) struct TraceFolder {
    path: PathBuf,
}

/// Costs of one program that a block trace lacks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct ProgramRun {
    version: String,
    /// Processor seconds by operation: the least of all recordings of this version.
    cpu_seconds: BTreeMap<String, f64>,
}

impl ProgramRun {
    pub(super) fn new(binary: &Path) -> ProgramRun {
        let version = machine::first_line(Command::new(binary).arg("version"));
        ProgramRun { version, cpu_seconds: BTreeMap::new() }
    }

    pub(super) fn add(&mut self, operation: Operation, run: &Run) {
        self.cpu_seconds.insert(operation.name().to_owned(), run.cpu.as_secs_f64());
    }

    pub(super) fn cpu_seconds(&self, operation: Operation) -> Option<f64> {
        self.cpu_seconds.get(operation.name()).copied()
    }
}

impl TraceFolder {
    pub(super) fn new(root: &Path) -> TraceFolder {
        TraceFolder { path: root.join("bench/traces") }
    }

    pub(super) fn trace(&self, program: &str, operation: &str) -> Result<BlockTrace> {
        let path = self.trace_path(program, operation);
        let file = File::open(&path).with_context(|| format!("opening {}", path.display()))?;
        let decoder = zstd::Decoder::new(file)?;
        BlockTrace::read(BufReader::new(decoder)).with_context(|| format!("reading {}", path.display()))
    }

    pub(super) fn store_trace(&self, program: &str, operation: &str, text: &str) -> Result<()> {
        fs::create_dir_all(&self.path)?;
        let path = self.trace_path(program, operation);
        let packed = zstd::encode_all(text.as_bytes(), ZSTD_LEVEL)?;
        fs::write(&path, packed).with_context(|| format!("writing {}", path.display()))
    }

    /// Costs by program.
    pub(super) fn runs(&self) -> Result<BTreeMap<String, ProgramRun>> {
        match fs::read_to_string(self.path.join("runs.json")) {
            Ok(text) => Ok(serde_json::from_str(&text).context("reading runs.json")?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(error).context("reading runs.json"),
        }
    }

    /// Keeps the least processor time of each operation over all recordings of a version: load of the machine only
    /// adds to it.
    pub(super) fn store_run(&self, program: &str, mut run: ProgramRun) -> Result<()> {
        let mut runs = self.runs()?;
        if let Some(old) = runs.get(program).filter(|old| old.version == run.version) {
            for (operation, seconds) in &mut run.cpu_seconds {
                *seconds = old.cpu_seconds.get(operation).map_or(*seconds, |old| old.min(*seconds));
            }
        }
        runs.insert(program.to_owned(), run);
        fs::write(self.path.join("runs.json"), serde_json::to_string_pretty(&runs)? + "\n")?;
        Ok(())
    }

    fn trace_path(&self, program: &str, operation: &str) -> PathBuf {
        self.path.join(format!("{program}-{operation}.trace.zst"))
    }
}
