//! `draconis-fig9`: a durable append beside an update in place, and how much of the difference is journal traffic and
//! how much read-modify-write.
//!
//! On a loop device (`variants`) times and commands are measured. On the models (`sequences`) the commands of an append are
//! played with metadata that are shorter than a page, and again on a drive whose page is a sector. Between the two lies
//! read-modify-write alone; the rest is the number of commands. The recorded commands of ext4 are replayed the same way.
//!
//! Paper: draconis §3.2.3

mod sequences;
mod traces;
mod variants;

use super::{Study, StudyOptions, disks::DiskKind};
use anyhow::Result;
use clap::Args;
use copal_bench_harness::{chart::BarChart, mounted_disk::FileSystem};
use std::path::Path;

const SENTENCE: &str = "\"writing to a file with exact flash page size (4KB) gives more than 4X the throughput, but only \
    when updating not appending\" (3.2.3, figure 9).";

#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    study: StudyOptions,
    /// Turns of each variant on the loop device
    #[arg(long, default_value_t = 60)]
    turns: usize,
    /// Operations in one turn
    #[arg(long, default_value_t = 50)]
    slice: usize,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let mut study = Study::begin(root, &options.study, "draconis-fig9")?;
    let mut chart = BarChart::new("Durable appends and updates a second", "operations a second");
    let has_model = study.disks.iter().any(|disk| disk.is_model());
    if has_model {
        sequences::play(&mut study, &mut chart)?;
    }
    match FileSystem::Ext4.obstacle() {
        Some(reason) => study.report.note(format!("loop: skipped, {reason}.")),
        None => {
            if study.disks.contains(&DiskKind::Loop) {
                variants::measure(&mut study, options, &mut chart)?;
            }
            if has_model {
                traces::replay(&mut study, &mut chart)?;
            }
        }
    }
    chart.store(root, "draconis-fig9")?;
    study.finish(root, SENTENCE)
}
