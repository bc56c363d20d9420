//! `object-commands`: device commands of each operation; counts, not times.
//!
//! Counts of stores on a device are those of the store's own handle. Stores of files, and the same work by hand on ext4 and
//! XFS, are counted at their loop device. Each number is the mean over many operations, alone and in a row.

mod device_stores;
mod file_systems;
mod groups;

use super::fresh;
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::Report;
use copal_object::BackendKind;
use std::{
    fs,
    path::{Path, PathBuf},
};

#[derive(Args)]
pub(crate) struct Options {
    /// Directory of store and loop device [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Number of operations of each kind
    #[arg(long, default_value_t = 200)]
    operations: u64,
}

pub(crate) fn run(root: &Path, arguments: &Options) -> Result<()> {
    let scratch =
        crate::default_below_cache(root, arguments.scratch.as_ref(), "bench").join("object-commands");
    fresh(&scratch)?;
    let mut report = Report::new(root, &scratch);
    for backend in [BackendKind::Cow, BackendKind::Log] {
        device_stores::count(&scratch, backend, arguments.operations, &mut report)?;
        groups::count(backend, &mut report)?;
    }
    file_systems::count(&scratch, arguments.operations, &mut report)?;
    report.note("Rows of writers that wait together are of the HDD model; all counts are exact.");
    fs::remove_dir_all(&scratch)?;
    report.finish(root, "object-commands")
}
