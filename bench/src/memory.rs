//! `backup-memory`: peak resident memory of each command, on a plain image and on a 100 GB sparse one.
//!
//! The sparse image holds runs of incompressible data, and one 4 KiB block in each of many segments. This is
//! the worst case for memory that grows with the size of a disk instead of its content.

use anyhow::{Context, Result, bail};
use clap::Args;
use copal_bench_harness::report::Report;
use std::{
    fs::{self, File},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};
use xtask::{
    changes::{self, Change, Extent},
    copal::{self, Copal, Done},
    dataset::random::Random,
    sparse,
};

const LIMIT_MEGABYTES: f64 = 100.0;
const MIB: u64 = 1 << 20;

#[derive(Args)]
pub(crate) struct Options {
    /// Directory of images and repositories [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Size of the sparse image, in GB of 10^9 bytes
    #[arg(long, default_value_t = 100)]
    sparse_gb: u64,
    /// Incompressible data in each image, in MiB
    #[arg(long, default_value_t = 1024)]
    data_mib: u64,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench").join("memory");
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;
    let binary = copal::build_release(root)?;
    let mut report = Report::new(root, &scratch);
    let plain_size = (options.data_mib + 1024) * MIB;
    let sparse_size = options.sparse_gb * 1_000_000_000 / 4096 * 4096;
    one_image(&binary, &scratch, "plain", plain_size, options.data_mib, &mut report)?;
    one_image(
        &binary,
        &scratch,
        &format!("sparse {} GB", options.sparse_gb),
        sparse_size,
        options.data_mib,
        &mut report,
    )?;
    fs::remove_dir_all(&scratch)?;
    report.finish(root, "backup-memory")
}

fn one_image(
    binary: &Path,
    scratch: &Path,
    name: &str,
    size: u64,
    data_mib: u64,
    report: &mut Report,
) -> Result<()> {
    let image = scratch.join("disk.raw");
    let copal = Copal::new(binary, &scratch.join("repo"))?;
    let mut random = Random::new(&[100, size]);
    make(&image, size, data_mib, &mut random)?;
    let mut peak = |what: &str, done: &Done| {
        println!(
            "{name}: {what}: {:.1} MB, {:.1} s",
            done.run.peak_bytes as f64 / 1e6,
            done.run.wall.as_secs_f64()
        );
        report.at_most(format!("{name}: {what}"), done.run.peak_bytes as f64 / 1e6, "MB", LIMIT_MEGABYTES);
    };
    peak("init", &copal.init()?);
    let first = copal.backup("vm", &image, None)?;
    peak("first backup", &first);
    let dirty = rewrite(&image, size, &mut random)?;
    let extents = scratch.join("changed.json");
    changes::write_own_form(&extents, size, &dirty)?;
    peak("backup with changed extents", &copal.backup("vm", &image, Some(&extents))?);
    let last = copal.backup("vm", &image, None)?;
    peak("backup without", &last);
    let target = scratch.join("restored.raw");
    let snapshot = |done: &Done| {
        done.text("snapshot")
            .or(done.text("snapshot_id"))
            .map(str::to_owned)
            .context("the backup named no snapshot")
    };
    peak("restore", &copal.restore(&snapshot(&last)?, &target)?);
    if let Some(difference) = sparse::first_difference(&image, &target)? {
        bail!("the restored disk differs: {difference}");
    }
    fs::remove_file(&target)?;
    peak("snapshots", &copal.run("snapshots", &[] as &[&str])?);
    peak("verify", &copal.run("verify", &[snapshot(&last)?])?);
    peak("check --read-data", &copal.run("check", &["--read-data"])?);
    peak("forget", &copal.run("forget", &[snapshot(&first)?])?);
    peak("prune", &copal.run("prune", &[] as &[&str])?);
    fs::remove_file(&image)?;
    fs::remove_dir_all(copal.repository())?;
    Ok(())
}

/// Writes runs of 1 MiB spread evenly, and 4 KiB in every fourth segment of 2 MiB, up to 12,500 of them.
fn make(image: &Path, size: u64, data_mib: u64, random: &mut Random) -> Result<()> {
    let file = File::create_new(image).with_context(|| format!("creating {}", image.display()))?;
    file.set_len(size)?;
    let mut run = vec![0; MIB as usize];
    for index in 0..data_mib {
        random.fill(&mut run);
        file.write_all_at(&run, index * (size / data_mib) / 4096 * 4096)?;
    }
    for index in 0..(size / (8 * MIB)).min(12_500) {
        random.fill(&mut run[..4096]);
        file.write_all_at(&run[..4096], index * 8 * MIB + 3 * MIB)?;
    }
    Ok(())
}

/// Rewrites 64 places of 256 KiB; returns their offsets.
fn rewrite(image: &Path, size: u64, random: &mut Random) -> Result<Vec<Extent>> {
    let file = File::options().write(true).open(image)?;
    let mut bytes = vec![0; 256 << 10];
    let mut extents = Vec::new();
    for index in 0..64 {
        let offset = index * (size / 64) / 65_536 * 65_536;
        random.fill(&mut bytes);
        file.write_all_at(&bytes, offset)?;
        extents.push(Extent { offset, length: bytes.len() as u64, change: Change::Dirty });
    }
    Ok(extents)
}
