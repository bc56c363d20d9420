//! The measurements of the Draconis paper on this machine's disks and on models of the paper's.
//!
//! Each figure is a suite `draconis-figN`. Its rows name the disk; those of a model have times that no other work on
//! the machine changes. On the disks of the machine the commands are exact and the times show a shape only.
//!
//! Not here: figures 4 to 8, which compare key-value engines (`bench/kv`).

mod closed_load;
mod disks;
pub(crate) mod figure1;
pub(crate) mod figure2;
pub(crate) mod figure3;
pub(crate) mod figure9;
mod file_appends;

use crate::objects::fresh;
use anyhow::Result;
use clap::Args;
use copal_bench_harness::report::Report;
use disks::{DiskKind, StudyDisk};
use std::{
    fs,
    path::{Path, PathBuf},
};

#[derive(Args)]
pub(crate) struct StudyOptions {
    /// Disks, comma-separated [default: all that this machine has, and the models]
    #[arg(long, value_enum, value_delimiter = ',')]
    on: Vec<DiskKind>,
    /// Directory of files and loop devices [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
}

/// A figure in the making.
struct Study {
    report: Report,
    scratch: PathBuf,
    name: &'static str,
    disks: Vec<DiskKind>,
}

impl Study {
    fn begin(root: &Path, options: &StudyOptions, name: &'static str) -> Result<Study> {
        let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench").join(name);
        fresh(&scratch)?;
        let mut disks = options.on.clone();
        if disks.is_empty() {
            disks = DiskKind::ALL.to_vec();
        }
        Ok(Study { report: Report::new(root, &scratch), scratch, name, disks })
    }

    /// Opens each disk in turn. A disk that the machine lacks is named, and the others go on.
    fn on_each_disk(&mut self, mut measure: impl FnMut(&mut Report, &StudyDisk) -> Result<()>) -> Result<()> {
        for kind in self.disks.clone() {
            if let Some(reason) = kind.obstacle() {
                self.report.note(format!("{}: skipped, {reason}.", kind.name()));
                continue;
            }
            let disk = StudyDisk::open(kind, &self.scratch)?;
            measure(&mut self.report, &disk)?;
        }
        Ok(())
    }

    fn finish(mut self, root: &Path, paper: &str) -> Result<()> {
        let models: Vec<_> =
            self.disks.iter().filter(|kind| kind.is_model()).map(|kind| kind.name()).collect();
        if !models.is_empty() {
            self.report.note(format!(
                "Rows of {} are models in virtual time; all others are this machine.",
                models.join(" and ")
            ));
        }
        self.report.note(format!("The paper: {paper}"));
        fs::remove_dir_all(&self.scratch)?;
        self.report.finish(root, self.name)
    }
}
