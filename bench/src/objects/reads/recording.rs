//! Records the traces of `object-reads`: seven days of one VM into each program's repository on a loop device.
//!
//! Image, caches and restored disks lie on another device. The kernel's caches are dropped before each operation.

use super::{
    image::VmImage,
    program::{Operation, Program, Repository},
    traces::{ProgramRun, TraceFolder},
};
use crate::objects::fresh;
use anyhow::{Context, Result};
use copal_bench_harness::{
    block_tracer::BlockTracer,
    loop_device::LoopDevice,
    mounted_disk::{FileSystem, MountedDisk},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::{metered, metered::Run};

const DEVICE_BYTES: u64 = 2 << 30;
/// Day of the recorded incremental backup; day 0 is the first.
const LAST_DAY: u64 = 6;

/// Binaries that are recorded.
pub(super) struct Binaries {
    pub(super) copal: PathBuf,
    /// Copal of an earlier commit.
    pub(super) before: Option<PathBuf>,
    pub(super) restic: Option<PathBuf>,
}

impl Binaries {
    fn of(&self, program: &Program) -> Option<&Path> {
        match program {
            program if program.is_restic() => self.restic.as_deref(),
            program if program.is_before => self.before.as_deref(),
            _ => Some(&self.copal),
        }
    }
}

/// Records every program that has a binary, and stores traces and processor times in `folder`.
/// # Errors
/// A program fails, or restores another disk than the one it was given.
pub(super) fn record(
    binaries: &Binaries,
    scratch: &Path,
    only: &[String],
    folder: &TraceFolder,
) -> Result<()> {
    for program in Program::ALL {
        if !only.is_empty() && !only.iter().any(|name| name == program.name) {
            continue;
        }
        let Some(binary) = binaries.of(&program) else {
            println!("{}: skipped, no binary was given; its stored traces stay", program.name);
            continue;
        };
        fresh(scratch)?;
        record_program(program, binary, scratch, folder)
            .with_context(|| format!("recording {}", program.name))?;
    }
    fs::remove_dir_all(scratch)?;
    Ok(())
}

/// Device of a repository, with a file system if the program needs one.
enum RepositoryDisk {
    Bare(LoopDevice),
    Ext4(MountedDisk),
}

impl RepositoryDisk {
    fn device(&self) -> &LoopDevice {
        match self {
            RepositoryDisk::Bare(device) => device,
            RepositoryDisk::Ext4(mount) => mount.device(),
        }
    }

    fn place(&self) -> PathBuf {
        match self {
            RepositoryDisk::Bare(device) => device.path().to_owned(),
            RepositoryDisk::Ext4(mount) => mount.directory().join("repository"),
        }
    }
}

fn record_program(program: Program, binary: &Path, scratch: &Path, folder: &TraceFolder) -> Result<()> {
    let disk = if program.takes_device() {
        RepositoryDisk::Bare(LoopDevice::attach(&scratch.join("device.raw"), DEVICE_BYTES)?)
    } else {
        RepositoryDisk::Ext4(MountedDisk::make(scratch, DEVICE_BYTES, FileSystem::Ext4)?)
    };
    let image = VmImage::make(&scratch.join("vm.raw"))?;
    let repository = Repository { program, binary, place: disk.place(), home: scratch.to_owned() };
    repository.init()?;
    for day in 0..LAST_DAY {
        if day > 0 {
            image.pass_day(day)?;
        }
        repository.backup(&image)?;
    }
    image.pass_day(LAST_DAY)?;
    let tracer = BlockTracer::of(disk.device().path())?;
    let mut run = ProgramRun::new(binary);
    for operation in Operation::ALL {
        if operation == Operation::Prune {
            repository.forget()?;
        }
        drop_caches()?;
        tracer.start()?;
        let done = repository.operation(operation, &image)?;
        sync()?;
        let trace = tracer.stop()?;
        folder.store_trace(program.name, operation.name(), &trace)?;
        run.add(operation, &done);
        tell(program, operation, &done);
    }
    folder.store_run(program.name, run)
}

#[expect(clippy::print_stdout, reason = "a recording takes minutes")]
fn tell(program: Program, operation: Operation, done: &Run) {
    let (cpu, wall) = (done.cpu.as_secs_f64(), done.wall.as_secs_f64());
    println!("{:10} {:14} {cpu:6.2} s cpu, {wall:6.2} s", program.name, operation.name());
}

fn sync() -> Result<()> {
    metered::run(&mut Command::new("sync"))?.success("sync").map(drop)
}

fn drop_caches() -> Result<()> {
    sync()?;
    fs::write("/proc/sys/vm/drop_caches", "3").context("dropping the kernel's caches")
}
