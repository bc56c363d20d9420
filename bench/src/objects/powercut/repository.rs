//! `DiskRepository`: a repository of the real binary on a loop device, bare or in an ext4.

use anyhow::{Context, Result};
use copal_bench_harness::{
    loop_device::LoopDevice,
    mounted_disk::{FileSystem, MountedDisk},
};
use copal_object::BackendKind;
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::metered::{self, Run};

enum RepositoryPlace {
    Bare(LoopDevice),
    Mounted(MountedDisk),
}

pub(super) struct DiskRepository<'a> {
    binary: &'a Path,
    backend: BackendKind,
    place: RepositoryPlace,
    home: PathBuf,
}

impl<'a> DiskRepository<'a> {
    /// The repository on the disk that `file` is; `makes` it anew.
    pub(super) fn on(
        binary: &'a Path,
        file: &Path,
        home: &Path,
        backend: BackendKind,
        makes: bool,
    ) -> Result<DiskRepository<'a>> {
        let device = LoopDevice::over(file)?;
        let place = match backend {
            BackendKind::Hostfs => {
                if makes {
                    FileSystem::Ext4.make_on(device.path())?;
                }
                RepositoryPlace::Mounted(MountedDisk::mount(device, &home.join("mount"), FileSystem::Ext4)?)
            }
            BackendKind::Cow | BackendKind::Log => RepositoryPlace::Bare(device),
        };
        fs::write(home.join("password"), "correct horse battery staple\n")?;
        Ok(DiskRepository { binary, backend, place, home: home.to_owned() })
    }

    pub(super) fn init(&self) -> Result<()> {
        self.run(&["init", "--backend", self.backend.name()])?.success("copal init").map(drop)
    }

    pub(super) fn backup(&self, image: &Path) -> Result<()> {
        let path = image.to_string_lossy();
        self.run(&["backup", "--vm", "vm", &path])?.success("copal backup").map(drop)
    }

    /// Number of snapshots; an error text when the repository does not open.
    pub(super) fn snapshots(&self) -> Result<Result<u64, String>> {
        let run = self.run(&["snapshots", "--json"])?;
        if run.code != 0 {
            return Ok(Err(format!("snapshots: {}", run.stderr.trim())));
        }
        let lines = run.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let count = lines.filter_map(|line| line["snapshots"].as_array().map(Vec::len)).next();
        Ok(Ok(count.context("no list of snapshots")? as u64))
    }

    /// The bytes of the newest snapshot's disk; an error text when the restore fails.
    pub(super) fn newest(&self) -> Result<Result<Vec<u8>, String>> {
        let target = self.home.join("restored");
        if target.exists() {
            fs::remove_dir_all(&target)?;
        }
        fs::create_dir_all(&target)?;
        let file = target.join("disk.raw");
        let run = self.run(&["restore", "latest", "--target", &file.to_string_lossy()])?;
        if run.code != 0 {
            return Ok(Err(format!("restore: {}", run.stderr.trim())));
        }
        Ok(Ok(fs::read(file)?))
    }

    /// Error text of a check of all data that finds damage.
    pub(super) fn damage(&self) -> Result<Option<String>> {
        let run = self.run(&["check", "--read-data"])?;
        Ok((run.code != 0).then(|| format!("check: {}", run.stderr.trim())))
    }

    fn run(&self, words: &[&str]) -> Result<Run> {
        let place = match &self.place {
            RepositoryPlace::Bare(device) => device.path().to_owned(),
            RepositoryPlace::Mounted(disk) => disk.directory().join("repository"),
        };
        let mut command = Command::new(self.binary);
        command.args(words).arg("--repo").arg(place);
        command.env("COPAL_PASSWORD_FILE", self.home.join("password")).env_remove("COPAL_REPOSITORY");
        metered::run(&mut command)
    }
}
