//! First backup, the same again with all data read, restore, verify and `check --read-data`; restic beside the
//! first backup and the restore.
//!
//! Each number of cores has a new repository, with a password as users have it. The programs take turns row by
//! row.

use super::{
    ScaleBench, image,
    results::{RowKey, STAGE},
    thread_times::{self, StagedRun},
};
use anyhow::{Context, Result};
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

pub(super) const ROWS: [&str; 5] = ["first-backup", "backup-again", "restore", "verify", "check-read-data"];
/// The rows that restic has too.
const RESTIC_ROWS: [&str; 2] = ["first-backup", "restore"];
const GIB: f64 = (1_u64 << 30) as f64;
const PASSWORD: &str = "correct horse battery staple";

#[derive(Clone, Copy, PartialEq)]
enum BackupProgram {
    Copal,
    Restic,
}

impl BackupProgram {
    fn name(self) -> &'static str {
        match self {
            BackupProgram::Copal => "copal",
            BackupProgram::Restic => "restic",
        }
    }
}

pub(super) fn measure(bench: &mut ScaleBench) -> Result<()> {
    if !ROWS.iter().any(|row| bench.options.is_chosen(row)) {
        return Ok(());
    }
    let bytes = (bench.options.gib * GIB) as u64;
    let path = bench.options.image.clone();
    let path = path.unwrap_or_else(|| bench.scratch.join(format!("image-{}.raw", bytes >> 20)));
    let size = image::make(&path, bytes)?;
    if size != bytes {
        bench.notes.push(format!("The image has {:.2} GiB.", size as f64 / GIB));
    }
    if bench.programs.restic.is_none() {
        bench.notes.push("restic: not installed; scripts/install-peers.sh installs it.".to_owned());
    }
    image::warm(&path)?;
    let path = fs::canonicalize(path)?;
    for round in 0..bench.options.rounds {
        for cores in bench.cores.clone() {
            BackupTurn { bench, image: &path, gib: size as f64 / GIB, cores, round }.run()?;
        }
    }
    Ok(())
}

/// All rows once on one number of cores.
struct BackupTurn<'a> {
    bench: &'a mut ScaleBench,
    image: &'a Path,
    gib: f64,
    cores: usize,
    round: usize,
}

impl BackupTurn<'_> {
    fn run(&mut self) -> Result<()> {
        let missing: Vec<_> = [BackupProgram::Copal, BackupProgram::Restic]
            .into_iter()
            .filter(|program| ROWS.iter().any(|row| self.is_missing(row, *program)))
            .collect();
        for program in &missing {
            self.make_repository(*program)?;
        }
        for row in ROWS {
            for program in &missing {
                // Reads need the first backup, measured or not.
                if row == "first-backup" || self.is_missing(row, *program) {
                    self.one_row(row, *program)?;
                }
            }
        }
        for program in &missing {
            fs::remove_dir_all(self.home(*program))?;
        }
        Ok(())
    }

    fn key(&self, row: &str, program: BackupProgram) -> RowKey {
        RowKey { round: self.round, ..RowKey::new(row, program.name(), self.cores) }
    }

    fn is_missing(&self, row: &str, program: BackupProgram) -> bool {
        let is_there = match program {
            BackupProgram::Copal => true,
            BackupProgram::Restic => self.bench.programs.restic.is_some() && RESTIC_ROWS.contains(&row),
        };
        is_there && self.bench.options.is_chosen(row) && !self.bench.results.has(&self.key(row, program))
    }

    fn one_row(&mut self, row: &str, program: BackupProgram) -> Result<()> {
        let is_measured = self.is_missing(row, program);
        let out = self.home(program).join("out");
        let words: Vec<&OsStr> = match (program, row) {
            (BackupProgram::Copal, "first-backup" | "backup-again") => {
                // The second one reads all as the first one does: no list of changes is given.
                let backup = ["backup", "--vm", "scale", "--format", "raw", "--full"].map(OsStr::new);
                backup.into_iter().chain([self.image.as_os_str()]).collect()
            }
            (BackupProgram::Copal, "restore") => {
                let restore = ["restore", "latest", "--force", "--target"].map(OsStr::new);
                restore.into_iter().chain([out.as_os_str()]).collect()
            }
            (BackupProgram::Copal, "verify") => ["verify", "latest"].map(OsStr::new).into(),
            (BackupProgram::Copal, _) => ["check", "--read-data"].map(OsStr::new).into(),
            (BackupProgram::Restic, "first-backup") => vec!["backup".as_ref(), self.image.as_os_str()],
            (BackupProgram::Restic, _) => {
                let restore = ["restore", "latest", "--target"].map(OsStr::new);
                restore.into_iter().chain([out.as_os_str()]).collect()
            }
        };
        // Pages that earlier runs left to be written would be written during this one.
        rustix::fs::sync();
        let mut command = self.command(program, is_measured.then_some(self.cores));
        let done = thread_times::run(command.args(words))?;
        let run = done.run.clone().success(&format!("{} {row}", program.name()))?;
        if row == "restore" {
            let removed = if out.is_dir() { fs::remove_dir_all(&out) } else { fs::remove_file(&out) };
            removed.context("removing the restored disk")?;
        }
        if is_measured {
            let values = self.values(program, &StagedRun { run, stages: done.stages });
            self.bench.results.add(self.key(row, program), values)?;
        }
        Ok(())
    }

    fn values(&self, program: BackupProgram, done: &StagedRun) -> BTreeMap<String, f64> {
        let (wall, cpu) = (done.run.wall.as_secs_f64(), done.run.cpu.as_secs_f64());
        let peak = done.run.peak_bytes as f64 / 1e6;
        let mut values: BTreeMap<_, _> = [
            ("wall", wall),
            ("cpu", cpu),
            ("cpu per GiB", cpu / self.gib),
            ("GiB", self.gib),
            ("peak MB", peak),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        // Threads of restic's runtime have no names.
        if program == BackupProgram::Copal {
            values.extend(done.stages.iter().map(|(stage, seconds)| (format!("{STAGE}{stage}"), *seconds)));
        }
        values
    }

    fn home(&self, program: BackupProgram) -> PathBuf {
        self.bench.scratch.join(program.name())
    }

    fn make_repository(&self, program: BackupProgram) -> Result<()> {
        let home = self.home(program);
        if home.exists() {
            fs::remove_dir_all(&home)?;
        }
        fs::create_dir_all(home.join("cache"))?;
        fs::write(home.join("password"), PASSWORD)?;
        let mut command = self.command(program, None);
        xtask::metered::run(command.arg("init"))?.success(&format!("{} init", program.name()))?;
        Ok(())
    }

    /// The program with its repository; on the first cores, or on all.
    fn command(&self, program: BackupProgram, cores: Option<usize>) -> Command {
        let binary = match program {
            BackupProgram::Copal => Some(&self.bench.programs.copal),
            BackupProgram::Restic => self.bench.programs.restic.as_ref(),
        };
        let mut command = Command::new("taskset");
        let processors = self.bench.processors.first(cores.unwrap_or(usize::MAX));
        command.args(["-c", &processors]).args(binary);
        let home = self.home(program);
        match program {
            BackupProgram::Copal => command
                .args(["--json", "--allow-cow", "--allow-volatile", "--repo"])
                .arg(home.join("repository"))
                .env_remove("COPAL_REPOSITORY")
                .env_remove("COPAL_THREADS")
                .env("COPAL_PASSWORD_FILE", home.join("password")),
            BackupProgram::Restic => command
                .env("RESTIC_REPOSITORY", home.join("repository"))
                .env("RESTIC_PASSWORD_FILE", home.join("password"))
                .env("RESTIC_CACHE_DIR", home.join("cache")),
        };
        command
    }
}
