//! Time to list a volume with a million files, page by page.

use super::{
    load,
    running::{Running, Setup},
};
use anyhow::{Result, ensure};
use clap::Args;
use copal_bench_harness::report::{Report, median};
use copal_volume::{ReadOptions, VolumeOptions, VolumeStore};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};
use xtask::copal;

/// V2 of the design: files, and seconds for all of them.
const WANTED_FILES: f64 = 1e6;
const LIMIT: f64 = 10.0;

#[derive(Args)]
pub(crate) struct Options {
    /// Files of the volume
    #[arg(long, default_value_t = 1_000_000, env = "COPAL_BENCH_FILES")]
    files: u64,
    /// Files of a page
    #[arg(long, default_value_t = 1_000)]
    page: usize,
    /// Replicas of each file, on as many servers
    #[arg(long, default_value_t = 3)]
    copies: u8,
    /// Number of listings; the figure is the median
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Directory of the cluster [default: .cache/bench/list]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench/list");
    fs::create_dir_all(&scratch)?;
    let directory = tempfile::tempdir_in(&scratch)?;
    let binary = copal::build_release(root)?;
    let mut report = Report::new(root, &scratch);
    let setup = Setup { replicas: options.copies, groups: 4, ..Setup::of(usize::from(options.copies)) };
    let cluster = Running::start(&binary, &directory.path().join("cluster"), &setup)?;
    let store = cluster.store();
    let vid = store.create_volume("", "many", &VolumeOptions::default())?;
    let speed = load::put(store, vid, 0..options.files, 100)?;
    let mut seconds = Vec::new();
    for _ in 0..options.rounds {
        let began = Instant::now();
        let (mut listed, mut last) = (0, None);
        loop {
            let page = store.list(vid, b"", last.as_deref(), options.page, &ReadOptions::default())?;
            let Some((name, _)) = page.last() else {
                break;
            };
            let is_sorted = page.is_sorted_by(|a, b| a.0 < b.0);
            let goes_on = last.as_ref().is_none_or(|last| *last < page[0].0);
            ensure!(is_sorted && goes_on, "a page is out of order");
            last = Some(name.clone());
            listed += page.len() as u64;
        }
        seconds.push(began.elapsed().as_secs_f64());
        ensure!(listed == options.files, "{listed} of {} files are listed", options.files);
    }
    let middle = median(seconds).unwrap_or_default();
    report.fact("files, each on as many servers as asked for", options.files as f64, "");
    report.fact("put in batches, all of them durable", speed, "/s");
    report.fact("the list, page by page", middle, "s");
    let million = middle * WANTED_FILES / options.files as f64;
    report.at_most("a list of a million files", million, "s", LIMIT);
    report.finish(root, "volume-list")
}
