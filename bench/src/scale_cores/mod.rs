//! `scale-cores`: each operation on 1, 2, 4, 8 and 16 cores: backups and their reads beside restic, the engine
//! beside RocksDB, data servers under many clients.
//!
//! Programs are pinned by `taskset`, and take turns. Each measurement is stored at once (`results`), so that an
//! interrupted run continues with `--resume`. On a machine with few cores the rows still tell the processor time
//! and its share by stage (`thread_times`): a stage outside the pools bounds the speed on any number of cores.
//!
//! Not here: targets (`judge`), the work inside the engine's process (`bench/kv`, suite `threads`).

mod backup_rows;
mod bundle;
pub(crate) mod cluster_clients;
mod cluster_rows;
mod engine_rows;
mod image;
mod judge;
mod processors;
mod results;
mod thread_times;

use anyhow::{Result, ensure};
use bundle::Programs;
use clap::Args;
use copal_bench_harness::report::{Report, latest_results};
use processors::Processors;
use results::Results;
use std::{
    fs,
    path::{Path, PathBuf},
};

const SUITE: &str = "scale-cores";

/// Names of the rows, in the order of their measurement.
const ROWS: [&str; 12] = [
    "first-backup",
    "backup-again",
    "restore",
    "verify",
    "check-read-data",
    "engine-gets",
    "engine-multi-gets",
    "engine-mixed",
    "engine-writes",
    "engine-merges",
    "cluster-4k",
    "cluster-64k",
];

#[derive(Args, Clone)]
pub(crate) struct Options {
    /// Numbers of cores; those beyond the machine's are skipped
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2, 4, 8, 16])]
    cores: Vec<usize>,
    /// Size of the image in GiB
    #[arg(long, default_value_t = 1.0)]
    gib: f64,
    /// Image of the disk; made from files below /usr if it does not exist [default: in the scratch directory]
    #[arg(long)]
    image: Option<PathBuf>,
    /// Directory of the image, repositories and stores [default: .cache/bench, or scratch among the binaries]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Measure only rows whose names begin with one of these
    #[arg(long, value_name = "ROW", value_delimiter = ',')]
    only: Vec<String>,
    /// Keep the rows of an earlier run with the same image and options, and measure the rest
    #[arg(long)]
    resume: bool,
    /// Number of measurements of each backup row; the report has the median
    #[arg(long, default_value_t = 1)]
    rounds: usize,
    /// Seconds of each row of engine and cluster
    #[arg(long, default_value_t = 1.5)]
    seconds: f64,
    /// Directory of installed peers (scripts/install-peers.sh) [default: .cache/peers]
    #[arg(long, env = "COPAL_PEERS")]
    peers: Option<PathBuf>,
    /// Build the engine's program without RocksDB, whose C++ compiles for half an hour
    #[arg(long)]
    without_rocksdb: bool,
    /// Make a directory of stripped binaries that measures without compiler and network, and end
    #[arg(long, value_name = "DIR", conflicts_with = "binaries")]
    bundle: Option<PathBuf>,
    /// Use the binaries of such a directory, and write the results there
    #[arg(long, value_name = "DIR")]
    binaries: Option<PathBuf>,
}

impl Options {
    /// Whether a row is measured.
    fn is_chosen(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|begin| row.starts_with(begin.as_str()))
    }

    /// Whether any of the rows that begin with `part` is measured.
    fn is_part_chosen(&self, part: &str) -> bool {
        ROWS.iter().any(|row| row.starts_with(part) && self.is_chosen(row))
    }
}

/// A run of the suite.
struct ScaleBench {
    options: Options,
    programs: Programs,
    scratch: PathBuf,
    processors: Processors,
    /// Measured numbers of cores, ascending.
    cores: Vec<usize>,
    results: Results,
    /// Sentences for the report.
    notes: Vec<String>,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    for begin in &options.only {
        let is_known = ROWS.iter().any(|row| row.starts_with(begin.as_str()));
        ensure!(is_known, "no row begins with `{begin}`; the rows are {}", ROWS.join(", "));
    }
    if let Some(directory) = &options.bundle {
        return bundle::make(root, options, directory);
    }
    let (programs, scratch, results) = match &options.binaries {
        Some(directory) => {
            let directory = fs::canonicalize(directory)?;
            let scratch = options.scratch.clone().unwrap_or_else(|| directory.join("scratch")).join(SUITE);
            (Programs::bundled(&directory), scratch, directory)
        }
        None => {
            let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench").join(SUITE);
            (Programs::built(root, options)?, scratch, latest_results(root))
        }
    };
    fs::create_dir_all(&scratch)?;
    let scratch = fs::canonicalize(scratch)?;
    let mut report = Report::new(root, &scratch);
    if let Some(directory) = &options.binaries {
        report.commit = bundle::commit_of(directory);
    }
    let processors = Processors::here()?;
    let (mut cores, skipped): (Vec<_>, Vec<_>) =
        options.cores.iter().copied().partition(|cores| *cores > 0 && *cores <= processors.count());
    cores.sort_unstable();
    let mut bench = ScaleBench {
        options: options.clone(),
        programs,
        scratch,
        cores,
        results: Results::open(&results, options.resume)?,
        notes: skipped_notes(&skipped, processors.count()),
        processors,
    };
    backup_rows::measure(&mut bench)?;
    engine_rows::measure(&mut bench)?;
    cluster_rows::measure(&mut bench)?;
    bench.notes.into_iter().for_each(|note| report.note(note));
    judge::judge(&mut report, &bench.results);
    report.finish_in(&results, SUITE)
}

fn skipped_notes(skipped: &[usize], count: usize) -> Vec<String> {
    let text = |cores: &usize| format!("{cores} cores: skipped; this machine lets the suite use {count}.");
    skipped.iter().map(text).collect()
}
