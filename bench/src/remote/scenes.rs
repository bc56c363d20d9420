//! Measurements: the life of a repository, and cold reads of an export.

use super::{
    Options,
    link::{Link, Shape},
    programs::{Kind, Measured, Program},
};
use anyhow::{Context, Result, ensure};
use copal_bench_harness::report::Report;
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use xtask::dataset::random::Random;

/// Blocks of the image change as wholes.
const BLOCK: usize = 64 << 10;

/// A command that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Into an empty repository.
    First,
    /// The same image again.
    Again,
    /// The same image, from a host without a cache.
    Cold,
    /// The whole image.
    Restore,
    /// An image that shares some blocks with the first.
    Changed,
    /// All but the changed image goes.
    Prune,
}

impl Step {
    pub(super) const ALL: [Step; 6] =
        [Step::First, Step::Again, Step::Cold, Step::Restore, Step::Changed, Step::Prune];

    pub(super) fn name(self) -> &'static str {
        match self {
            Step::First => "first backup",
            Step::Again => "unchanged backup",
            Step::Cold => "backup with a lost cache",
            Step::Restore => "restore",
            Step::Changed => "changed backup",
            Step::Prune => "prune",
        }
    }
}

/// One measurement.
pub(super) struct Taken {
    pub(super) kind: Kind,
    pub(super) is_far: bool,
    pub(super) step: Step,
    pub(super) measured: Measured,
}

/// Programs, link and sizes.
pub(super) struct Bench<'a> {
    pub(super) link: &'a Link,
    pub(super) copal: &'a Path,
    pub(super) restic: &'a Path,
    pub(super) scratch: &'a Path,
    pub(super) options: &'a Options,
}

impl Bench<'_> {
    pub(super) fn program(&self, kind: Kind, prefix: &str) -> Result<Program<'_>> {
        let binary = match kind {
            Kind::Copal => self.copal,
            Kind::Restic => self.restic,
        };
        Program::with_repository(kind, binary, self.link, prefix, self.scratch)
    }

    /// All steps of one program in a new repository.
    pub(super) fn life(
        &self,
        kind: Kind,
        is_far: bool,
        shape: Shape,
        round: usize,
        taken: &mut Vec<Taken>,
    ) -> Result<()> {
        self.link.set(shape);
        let image = self.scratch.join("disk.raw");
        write_image(&image, self.options.mib, round as u64)?;
        let program = self.program(kind, &format!("{kind:?}-{is_far}-{round}").to_lowercase())?;
        let mut take = |step, measured| taken.push(Taken { kind, is_far, step, measured });
        take(Step::First, program.backup(&image)?);
        take(Step::Again, program.backup(&image)?);
        program.lose_cache()?;
        take(Step::Cold, program.backup(&image)?);
        let (restored, target) = program.restore()?;
        ensure!(
            Command::new("cmp").arg(&image).arg(&target).status()?.success(),
            "the restored image differs"
        );
        fs::remove_file(target)?;
        take(Step::Restore, restored);
        change_image(&image, self.options.live_percent, round as u64)?;
        take(Step::Changed, program.backup(&image)?);
        take(Step::Prune, program.prune()?);
        let (_, target) = program.restore()?;
        ensure!(Command::new("cmp").arg(&image).arg(&target).status()?.success(), "the kept image differs");
        Ok(fs::remove_file(target)?)
    }

    /// A read of 4 KiB of a served disk by a host without a cache.
    pub(super) fn cold_reads(&self, report: &mut Report) -> Result<()> {
        let program = self.program(Kind::Copal, "reads")?;
        let image = self.scratch.join("disk.raw");
        write_image(&image, 64, 0)?;
        program.backup(&image)?;
        program.lose_cache()?;
        self.link.take_counts();
        let socket = self.scratch.join("export.sock");
        let mut child = program
            .command(&["nbd", "latest", "--vm", "vm0", "--json", "--socket", &socket.to_string_lossy()])?
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting copal nbd")?;
        let mut lines = BufReader::new(child.stdout.take().context("it has a standard output")?).lines();
        let _ready = lines.next().context("copal nbd says that it is ready")??;
        let opened = self.link.take_counts().context("a connection is not understood")?;
        crate::exports::single_reads(&socket, 64 << 20, 1)?;
        let counts = self.link.take_counts().context("a connection is not understood")?;
        Command::new("kill").arg(child.id().to_string()).status()?;
        ensure!(child.wait()?.success(), "copal nbd failed");
        report.fact("opening an export without a cache: requests", opened.requests() as f64, "");
        report.at_most("cold 4 KiB of a served disk: GET", counts.gets as f64, "", 8.0);
        report.fact("cold 4 KiB of a served disk: received", counts.received as f64 / 1024.0, "KiB");
        Ok(())
    }
}

pub(super) fn write_image(path: &PathBuf, mib: u64, seed: u64) -> Result<()> {
    let (mut file, mut random) = (File::create(path)?, Random::new(&[34, seed, mib]));
    let mut bytes = vec![0; 1 << 20];
    for _ in 0..mib {
        random.fill(&mut bytes);
        file.write_all(&bytes)?;
    }
    Ok(())
}

/// Overwrites all but this share of the blocks, at random.
fn change_image(path: &Path, live_percent: u64, seed: u64) -> Result<()> {
    let file = File::options().write(true).open(path)?;
    let (mut random, mut bytes) = (Random::new(&[35, seed]), vec![0; BLOCK]);
    for block in 0..file.metadata()?.len() / BLOCK as u64 {
        if random.below(100) >= live_percent {
            random.fill(&mut bytes);
            file.write_all_at(&bytes, block * BLOCK as u64)?;
        }
    }
    Ok(())
}
