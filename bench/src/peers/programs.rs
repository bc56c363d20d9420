//! Command lines of each backup program: defaults, with caches and keys inside its own scratch directory.

use anyhow::{Context, Result, bail};
use copal_bench_harness::machine;
use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::{
    copal::Copal,
    metered::{self, Run},
};

const PASSWORD: &str = "correct horse battery staple";

enum Kind {
    Restic,
    Rustic,
    /// With a compression other than the default, if given.
    Borg(Option<&'static str>),
    /// With or without changed extents.
    Copal {
        changed_extents: bool,
    },
}

/// One program and its repository.
pub(super) struct Program {
    pub(super) name: &'static str,
    kind: Kind,
    binary: PathBuf,
    home: PathBuf,
}

/// A finished backup.
pub(super) struct BackedUp {
    pub(super) run: Run,
    pub(super) read_bytes: Option<u64>,
}

/// Size of the repository.
pub(super) struct Sizes {
    pub(super) occupied_bytes: u64,
    pub(super) live_bytes: Option<u64>,
}

impl Program {
    pub(super) fn all(copal: &Path, peers: &Path, scratch: &Path) -> Vec<Program> {
        let program = |name, kind, binary: PathBuf| Program { name, kind, binary, home: scratch.join(name) };
        vec![
            program("copal", Kind::Copal { changed_extents: false }, copal.to_owned()),
            program("copal-cbt", Kind::Copal { changed_extents: true }, copal.to_owned()),
            program("restic", Kind::Restic, peers.join("bin/restic")),
            program("rustic", Kind::Rustic, peers.join("bin/rustic")),
            program("borg", Kind::Borg(None), peers.join("bin/borg")),
            program("borg-zstd", Kind::Borg(Some("zstd,3")), peers.join("bin/borg")),
        ]
    }

    pub(super) fn available(&self) -> bool {
        self.binary.exists()
    }

    pub(super) fn version(&self) -> String {
        let argument =
            if matches!(self.kind, Kind::Rustic | Kind::Borg(_)) { "--version" } else { "version" };
        machine::first_line(Command::new(&self.binary).arg(argument))
    }

    /// Copal restores every snapshot; for a peer one day is enough to compare the time.
    pub(super) fn restores_every_day(&self) -> bool {
        matches!(self.kind, Kind::Copal { .. })
    }

    fn repository(&self) -> PathBuf {
        self.home.join("repo")
    }

    fn copal(&self) -> Result<Copal> {
        Copal::new(&self.binary, &self.repository())
    }

    /// Makes an empty repository; removes one of an earlier run.
    pub(super) fn init(&self) -> Result<()> {
        self.remove()?;
        fs::create_dir_all(self.home.join("out"))?;
        match self.kind {
            Kind::Restic | Kind::Rustic => self.run(&["init"], &self.home)?,
            Kind::Borg(_) => self.run(&["init", "-e", "repokey-blake2"], &self.home)?,
            Kind::Copal { .. } => self.copal()?.init()?.run,
        };
        Ok(())
    }

    /// Removes repository, caches and keys.
    pub(super) fn remove(&self) -> Result<()> {
        if self.home.exists() {
            fs::remove_dir_all(&self.home).with_context(|| format!("removing {}", self.home.display()))?;
        }
        Ok(())
    }

    pub(super) fn backup(
        &self,
        vm: &str,
        day: u32,
        image: &Path,
        extents: Option<&Path>,
    ) -> Result<BackedUp> {
        let directory = image.parent().context("an image lies in a directory")?;
        let file = image.as_os_str();
        let (day, archive) = (format!("day{day}"), format!("::{vm}-day{day}"));
        let run = match &self.kind {
            Kind::Restic | Kind::Rustic => {
                let arguments: [&OsStr; 6] =
                    ["backup".as_ref(), "--host".as_ref(), vm.as_ref(), "--tag".as_ref(), day.as_ref(), file];
                self.run(&arguments, directory)?
            }
            Kind::Borg(compression) => {
                let mut arguments: Vec<&OsStr> = vec!["create".as_ref()];
                if let Some(compression) = compression {
                    arguments.extend(["--compression".as_ref(), OsStr::new(compression)]);
                }
                arguments.extend([archive.as_ref(), OsStr::new("disk.raw")]);
                self.run(&arguments, directory)?
            }
            Kind::Copal { changed_extents } => {
                let done = self.copal()?.backup(vm, image, extents.filter(|_| *changed_extents))?;
                let snapshot = done
                    .text("snapshot")
                    .or(done.text("snapshot_id"))
                    .context("copal's summary names no snapshot")?;
                fs::write(self.home.join(format!("{vm}-{day}.snapshot")), snapshot)?;
                return Ok(BackedUp { read_bytes: Some(done.number("read_bytes")), run: done.run });
            }
        };
        Ok(BackedUp { run, read_bytes: None })
    }

    /// Restores one snapshot; returns the path of the disk.
    pub(super) fn restore(&self, vm: &str, day: u32) -> Result<(Run, PathBuf)> {
        let out = self.home.join("out");
        let out_text = out.to_string_lossy().into_owned();
        let (tag, archive) = (format!("day{day}"), format!("::{vm}-day{day}"));
        let run = match &self.kind {
            Kind::Restic => {
                self.run(&["restore", "latest", "--host", vm, "--tag", &tag, "--target", &out_text], &out)?
            }
            Kind::Rustic => {
                let arguments = [
                    "restore",
                    "latest",
                    &out_text,
                    "--filter-host",
                    vm,
                    "--filter-tags",
                    &tag,
                    "--sparse",
                    "by-content",
                ];
                self.run(&arguments, &out)?
            }
            Kind::Borg(_) => self.run(&["extract", "--sparse", &archive], &out)?,
            Kind::Copal { .. } => {
                let snapshot = fs::read_to_string(self.home.join(format!("{vm}-{tag}.snapshot")))?;
                let target = out.join("disk.raw");
                return Ok((self.copal()?.restore(&snapshot, &target)?.run, target));
            }
        };
        Ok((run, find_disk(&out).context("the restored disk is nowhere")?))
    }

    /// Forgets and prunes all but the last snapshot of each VM and frees the space at once; returns the cost
    /// of each command.
    pub(super) fn prune_to_the_last_day(&self, vms: &[&str]) -> Result<Vec<Run>> {
        match &self.kind {
            Kind::Restic => {
                let policy = ["forget", "--group-by", "host", "--keep-last", "1"];
                Ok(vec![self.run(&policy, &self.home)?, self.run(&["prune"], &self.home)?])
            }
            Kind::Rustic => {
                let policy = ["forget", "--group-by", "host", "--keep-last", "1"];
                // Without this option packs are only marked, and removed a day later.
                let prune = ["prune", "--instant-delete"];
                Ok(vec![self.run(&policy, &self.home)?, self.run(&prune, &self.home)?])
            }
            Kind::Borg(_) => {
                let mut runs = Vec::new();
                for vm in vms {
                    let archives = format!("{vm}-*");
                    let policy = ["prune", "--keep-last", "1", "--glob-archives", &archives];
                    runs.push(self.run(&policy, &self.home)?);
                }
                runs.push(self.run(&["compact"], &self.home)?);
                Ok(runs)
            }
            Kind::Copal { .. } => {
                let copal = self.copal()?;
                let forget = copal.run("forget", &["--keep-last", "1"])?;
                let prune = copal.run("prune", &[] as &[&str])?;
                Ok(vec![forget.run, prune.run])
            }
        }
    }

    pub(super) fn sizes(&self) -> Result<Sizes> {
        let mut du = Command::new("du");
        du.args(["-s", "-B1"]).arg(self.repository());
        let text = metered::run(&mut du)?.success("du")?.stdout;
        let occupied_bytes = text.split_whitespace().next().context("du printed nothing")?.parse()?;
        let live_bytes = match self.kind {
            Kind::Copal { .. } => Some(self.copal()?.run("stats", &[] as &[&str])?.number("live_bytes")),
            _ => None,
        };
        Ok(Sizes { occupied_bytes, live_bytes: live_bytes.filter(|bytes| *bytes > 0) })
    }

    /// Runs a peer with its environment inside its own directory.
    fn run(&self, arguments: &[impl AsRef<OsStr>], directory: &Path) -> Result<Run> {
        let repository = self.repository();
        let cache = self.home.join("cache");
        let mut command = Command::new(&self.binary);
        command
            .args(arguments)
            .current_dir(directory)
            .env("RESTIC_REPOSITORY", &repository)
            .env("RESTIC_PASSWORD", PASSWORD)
            .env("RESTIC_CACHE_DIR", &cache)
            .env("RUSTIC_REPOSITORY", &repository)
            .env("RUSTIC_PASSWORD", PASSWORD)
            .env("RUSTIC_CACHE_DIR", &cache)
            .env("BORG_REPO", &repository)
            .env("BORG_PASSPHRASE", PASSWORD)
            .env("BORG_BASE_DIR", &cache)
            .env("BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK", "yes")
            .env("XDG_CACHE_HOME", &cache);
        fs::create_dir_all(&cache)?;
        let run = metered::run(&mut command)?;
        let words: Vec<_> =
            arguments.iter().map(|word| word.as_ref().to_string_lossy().into_owned()).collect();
        run.success(&format!("{} {}", self.name, words.join(" ")))
    }
}

/// The file `disk.raw` below a directory; peers restore with or without its path.
fn find_disk(directory: &Path) -> Result<PathBuf> {
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() {
                open.push(path);
            } else if path.file_name() == Some(OsStr::new("disk.raw")) {
                return Ok(path);
            }
        }
    }
    bail!("no disk.raw below {}", directory.display())
}
