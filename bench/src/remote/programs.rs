//! Command lines of Copal and restic over one bucket, each with a repository and a cache of its own.

use super::{
    counts::Counts,
    link::Link,
    server::{BUCKET, KEY_ID, SECRET},
};
use crate::cluster::s3::REGION;
use anyhow::{Context, Result};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::metered::{self, Run};

pub(super) const PASSWORD: &str = "correct horse battery staple";
/// Connections of each program.
pub(super) const CONNECTIONS: u32 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Copal,
    Restic,
}

/// A program and its repository.
pub(super) struct Program<'a> {
    pub(super) kind: Kind,
    binary: PathBuf,
    link: &'a Link,
    prefix: String,
    home: PathBuf,
}

/// A finished command: its cost on this machine and on the server.
pub(super) struct Measured {
    pub(super) run: Run,
    pub(super) counts: Counts,
}

impl<'a> Program<'a> {
    /// With an empty repository below `prefix`.
    pub(super) fn with_repository(
        kind: Kind,
        binary: &Path,
        link: &'a Link,
        prefix: &str,
        scratch: &Path,
    ) -> Result<Program<'a>> {
        let home = scratch.join(prefix);
        fs::create_dir_all(&home)?;
        fs::write(home.join("password"), PASSWORD)?;
        let program = Program { kind, binary: binary.to_owned(), link, prefix: prefix.to_owned(), home };
        program.run(&["init"])?;
        Ok(program)
    }

    /// Another host with the same repository: without its cache.
    pub(super) fn lose_cache(&self) -> Result<()> {
        let cache = self.home.join("cache");
        match cache.exists() {
            true => fs::remove_dir_all(cache).context("removing a cache"),
            false => Ok(()),
        }
    }

    pub(super) fn backup(&self, image: &Path) -> Result<Measured> {
        let image = image.to_string_lossy();
        match self.kind {
            Kind::Copal => self.run(&["backup", "--vm", "vm0", &image]),
            Kind::Restic => self.run(&["backup", "--host", "vm0", &image]),
        }
    }

    /// Restores the newest snapshot to a new file, whose path is returned.
    pub(super) fn restore(&self) -> Result<(Measured, PathBuf)> {
        let out = self.home.join("out");
        if out.exists() {
            fs::remove_dir_all(&out)?;
        }
        fs::create_dir_all(&out)?;
        let target = out.to_string_lossy();
        match self.kind {
            Kind::Copal => {
                let target = out.join("disk.raw");
                let measured =
                    self.run(&["restore", "latest", "--vm", "vm0", "--target", &target.to_string_lossy()])?;
                Ok((measured, target))
            }
            Kind::Restic => {
                let measured = self.run(&["restore", "latest", "--host", "vm0", "--target", &target])?;
                let path = find_file(&out)?.context("restic restored no file")?;
                Ok((measured, path))
            }
        }
    }

    /// Forgets all but the newest snapshot and frees their space.
    pub(super) fn prune(&self) -> Result<Measured> {
        match self.kind {
            Kind::Copal => self.run(&["prune", "--keep-last", "1", "--force", "--max-unused", "0%"]),
            Kind::Restic => self.run(&["forget", "--keep-last", "1", "--prune", "--max-unused", "0"]),
        }
    }

    /// Runs a command and fails unless it ends with 0.
    pub(super) fn run(&self, words: &[&str]) -> Result<Measured> {
        self.link.take_counts();
        let run = metered::run(&mut self.command(words)?)?.success(&format!(
            "{:?} {}",
            self.kind,
            words.join(" ")
        ))?;
        let counts = self.link.take_counts().context("a connection is not understood")?;
        Ok(Measured { run, counts })
    }

    /// Address of the repository, as the program writes it.
    pub(super) fn address(&self) -> String {
        let (address, prefix) = (self.link.address(), &self.prefix);
        match self.kind {
            Kind::Copal => format!(
                "s3://{BUCKET}/{prefix}?endpoint=http://{address}&region={REGION}&connections={CONNECTIONS}"
            ),
            Kind::Restic => format!("s3:http://{address}/{BUCKET}/{prefix}"),
        }
    }

    /// A command with the repository, its keys and its cache.
    pub(super) fn command(&self, words: &[&str]) -> Result<Command> {
        let cache = self.home.join("cache");
        fs::create_dir_all(&cache)?;
        let mut command = Command::new(&self.binary);
        command
            .args(words)
            .current_dir(&self.home)
            .env("AWS_ACCESS_KEY_ID", KEY_ID)
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .env("XDG_CACHE_HOME", &cache);
        match self.kind {
            Kind::Copal => command
                .env("COPAL_REPOSITORY", self.address())
                .env("COPAL_PASSWORD_FILE", self.home.join("password")),
            Kind::Restic => command
                .args(["-o", &format!("s3.connections={CONNECTIONS}"), "-o", &format!("s3.region={REGION}")])
                .env("RESTIC_REPOSITORY", self.address())
                .env("RESTIC_PASSWORD_FILE", self.home.join("password"))
                .env("RESTIC_CACHE_DIR", cache.join("restic")),
        };
        Ok(command)
    }
}

fn find_file(directory: &Path) -> Result<Option<PathBuf>> {
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            match path.is_dir() {
                true => left.push(path),
                false => return Ok(Some(path)),
            }
        }
    }
    Ok(None)
}
