//! Programs whose commands are recorded, and their command lines for each operation.

use super::image::VmImage;
use anyhow::{Result, bail};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::{
    metered::{self, Run},
    sparse,
};

/// Operations that are recorded, in the order of the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Incremental,
    Restore,
    Check,
    Prune,
    RestorePruned,
}

impl Operation {
    pub(super) const ALL: [Operation; 5] = [
        Operation::Incremental,
        Operation::Restore,
        Operation::Check,
        Operation::Prune,
        Operation::RestorePruned,
    ];

    /// Name in files of traces.
    pub(super) fn name(self) -> &'static str {
        match self {
            Operation::Incremental => "incremental",
            Operation::Restore => "restore",
            Operation::Check => "check",
            Operation::Prune => "prune",
            Operation::RestorePruned => "restore-pruned",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Store {
    /// On the bare device.
    Cow,
    /// In a directory of an ext4.
    Files,
    Restic,
}

/// One program with its kind of repository.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Program {
    /// Name in files of traces.
    pub(super) name: &'static str,
    store: Store,
    /// `--read-gap`: the gap of a kind of disk other than the recording one.
    read_gap: Option<&'static str>,
    /// Whether the binary is that of an earlier commit.
    pub(super) is_before: bool,
}

/// The gap that a disk that turns gets.
const HDD_GAP: &str = "1M";
const fn program(name: &'static str, store: Store, read_gap: Option<&'static str>) -> Program {
    Program { name, store, read_gap, is_before: false }
}

/// The default, with the commands that a disk that turns gets.
pub(super) const COW: Program = program("cow", Store::Cow, Some(HDD_GAP));
/// The default, with the commands that flash gets.
pub(super) const COW_FLASH: Program = program("cow-flash", Store::Cow, None);
/// The default of an earlier commit, the same for every disk.
pub(super) const COW_BEFORE: Program = Program { is_before: true, ..program("cow-before", Store::Cow, None) };
/// The control: objects as files.
pub(super) const HOSTFS: Program = program("hostfs", Store::Files, Some(HDD_GAP));
pub(super) const RESTIC: Program = program("restic", Store::Restic, None);

impl Program {
    pub(super) const ALL: [Program; 5] = [COW, COW_FLASH, COW_BEFORE, HOSTFS, RESTIC];

    pub(super) fn is_restic(&self) -> bool {
        self.store == Store::Restic
    }

    /// Whether the repository is the device itself.
    pub(super) fn takes_device(&self) -> bool {
        self.store == Store::Cow
    }
}

/// A program with its binary and its repository.
pub(super) struct Repository<'a> {
    pub(super) program: Program,
    pub(super) binary: &'a Path,
    /// Device or directory.
    pub(super) place: PathBuf,
    /// Caches, keys and restored disks, on another device.
    pub(super) home: PathBuf,
}

impl Repository<'_> {
    pub(super) fn init(&self) -> Result<()> {
        fs::write(self.home.join("password"), "correct horse battery staple\n")?;
        let words: &[&str] = match self.program.store {
            Store::Files => &["init", "--backend", "hostfs"],
            Store::Cow | Store::Restic => &["init"],
        };
        self.run(words).map(drop)
    }

    pub(super) fn backup(&self, image: &VmImage) -> Result<Run> {
        let path = image.path().to_string_lossy();
        if self.program.is_restic() {
            self.run(&["backup", "--host", "vm", &path])
        } else {
            self.run(&["backup", "--vm", "vm", &path])
        }
    }

    /// Forgets all snapshots but the last one, which frees nothing yet.
    pub(super) fn forget(&self) -> Result<()> {
        let words: &[&str] = if self.program.is_restic() {
            &["forget", "--keep-last", "1"]
        } else {
            &["forget", "--keep-last", "1", "--force"]
        };
        self.run(words).map(drop)
    }

    pub(super) fn operation(&self, operation: Operation, image: &VmImage) -> Result<Run> {
        match operation {
            Operation::Incremental => self.backup(image),
            Operation::Check => self.run(&["check", "--read-data"]),
            Operation::Prune => self.run(&["prune"]),
            Operation::Restore | Operation::RestorePruned => {
                let target = self.home.join("restored");
                let is_restic = self.program.is_restic();
                let file = if is_restic { target.clone() } else { target.join("disk.raw") };
                fs::create_dir_all(&target)?;
                let run = self.run(&["restore", "latest", "--target", &file.to_string_lossy()])?;
                // restic makes the whole path of the disk below the target.
                let inside = image.path().strip_prefix("/").unwrap_or(image.path());
                let disk = if is_restic { target.join(inside) } else { file };
                if let Some(difference) = sparse::first_difference(image.path(), &disk)? {
                    bail!("{}: the restored disk differs: {difference}", self.program.name);
                }
                fs::remove_dir_all(&target)?;
                Ok(run)
            }
        }
    }

    fn run(&self, words: &[&str]) -> Result<Run> {
        let mut command = Command::new(self.binary);
        command.args(words);
        let password = self.home.join("password");
        if self.program.is_restic() {
            command.env("RESTIC_REPOSITORY", &self.place).env("RESTIC_PASSWORD_FILE", password);
            command.env("RESTIC_CACHE_DIR", self.home.join("cache"));
        } else {
            command.arg("--repo").arg(&self.place).env("COPAL_PASSWORD_FILE", password);
            command.env_remove("COPAL_REPOSITORY");
            if let Some(gap) = self.program.read_gap {
                command.args(["--read-gap", gap]);
            }
        }
        let words = words.join(" ");
        metered::run(&mut command)?.success(&format!("{}: {words}", self.program.name))
    }
}
