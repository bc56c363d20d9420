//! Checks of the machine of a server: its files, disk and limits.

use super::{DoctorFindings, certificates, private};
use crate::human;
use copal_node::{DirectoryLock, NodeError};
use copal_server::{HomeError, MasterHome, ServerHome};
use rustix::process::{Resource, getrlimit};
use std::{
    fs::File,
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

/// Open files that a server with many connections and objects needs.
const OPEN_FILES: u64 = 4096;
/// Number of timed syncs.
const SYNCS: usize = 9;
/// No disk syncs this fast; a layer below acknowledges before the data is durable.
const TOO_FAST: Duration = Duration::from_micros(10);
/// A slow sync: every acknowledgement waits for one.
const SLOW: Duration = Duration::from_millis(50);

pub(super) fn look(dir: &Path, findings: &mut DoctorFindings) {
    if !dir.is_dir() {
        findings.bad("directory", format!("{} is not there", dir.display()));
        return;
    }
    check_owner(dir, findings);
    match DirectoryLock::take(dir) {
        Ok(_) => findings.good("lock", "no process runs here"),
        Err(NodeError::InUse { .. }) => findings.good("lock", "a process runs here"),
        Err(error) => findings.bad("lock", error.to_string()),
    }
    room(dir, findings);
    file_system(dir, findings);
    sync(dir, findings);
    limits(findings);
    ring(findings);
}

fn check_owner(dir: &Path, findings: &mut DoctorFindings) {
    match ServerHome::read(dir) {
        Ok(home) if home.has_joined() => {
            findings.good("directory", format!("{} of {}", dir.display(), home.name));
            private("directory", &dir.join("server.json"), findings);
            certificates(&home.identity(), 0, findings);
        }
        Ok(home) => findings.bad(
            "directory",
            format!("{} has not joined yet; give it a token of `copal node token`", home.name),
        ),
        Err(HomeError::Missing { .. }) => match MasterHome::read(dir) {
            Ok(_) => {
                findings.good("directory", format!("{} of a master", dir.display()));
                private("directory", &dir.join("master.json"), findings);
            }
            Err(HomeError::Missing { .. }) => {
                findings.bad("directory", format!("{} is of no server and no master", dir.display()));
            }
            Err(error) => findings.bad("directory", error.to_string()),
        },
        Err(error) => findings.bad("directory", error.to_string()),
    }
}

fn room(dir: &Path, findings: &mut DoctorFindings) {
    let Ok(fs) = rustix::fs::statvfs(dir) else {
        return findings.bad("free", format!("the file system of {} does not answer", dir.display()));
    };
    let (free, all) = (fs.f_bavail.saturating_mul(fs.f_frsize), fs.f_blocks.saturating_mul(fs.f_frsize));
    let percent = free.saturating_mul(100).checked_div(all).unwrap_or(0);
    let sentence = format!("{} of {} are free below it", human::bytes(free), human::bytes(all));
    match percent {
        0..=4 => findings
            .bad("free", format!("{sentence}: only deletes will be taken; make room, or drain the server")),
        5..=14 => findings.doubtful("free", format!("{sentence}; make room, or add a server")),
        _ => findings.good("free", sentence),
    }
}

fn file_system(dir: &Path, findings: &mut DoctorFindings) {
    let Ok(fs) = rustix::fs::statfs(dir) else {
        return;
    };
    let name = "file system";
    match fs.f_type as u64 & 0xffff_ffff {
        0xef53 => findings.good(name, "ext4"),
        0x5846_5342 => findings.good(name, "XFS"),
        0x9123_683e => {
            findings.doubtful(name, "btrfs copies on every write; ext4 or XFS honour preallocation")
        }
        0x2fc1_2fc1 => findings.doubtful(name, "ZFS copies on every write; ext4 or XFS honour preallocation"),
        0x0102_1994 => findings.bad(name, "tmpfs is memory: a reboot loses this copy; use a disk"),
        0x6969 | 0xff53_4d42 | 0xfe53_4d42 => findings.bad(
            name,
            "a network share: its locks and syncs are not to be relied on; use a disk of this machine",
        ),
        0x794c_7630 => {
            findings.doubtful(name, "an overlay, as in containers: mount a volume of the host there")
        }
        other => {
            findings.doubtful(name, format!("of kind {other:#x}, which is not tested; ext4 and XFS are"))
        }
    }
}

/// Times a small durable write.
fn sync(dir: &Path, findings: &mut DoctorFindings) {
    let path = dir.join(".doctor");
    let timed = timed_syncs(&path);
    // Removed after success and failure.
    let _ = std::fs::remove_file(&path);
    match timed {
        Err(error) => findings.bad("sync", format!("a file in {} cannot be written: {error}", dir.display())),
        Ok(median) if median < TOO_FAST => findings.doubtful(
            "sync",
            format!("a sync takes {median:?}: no disk does that; is a write cache without a battery below?"),
        ),
        Ok(median) if median > SLOW => findings.doubtful(
            "sync",
            format!("a sync takes {median:?}, and every acknowledgement waits for one; use a faster disk"),
        ),
        Ok(median) => findings.good("sync", format!("a sync takes {median:?}")),
    }
}

fn timed_syncs(path: &Path) -> std::io::Result<Duration> {
    let mut file = File::create(path)?;
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        let began = Instant::now();
        file.write_all(&[0; 4096])?;
        file.sync_data()?;
        times.push(began.elapsed());
    }
    times.sort();
    Ok(times[SYNCS / 2])
}

fn limits(findings: &mut DoctorFindings) {
    match getrlimit(Resource::Nofile).current {
        Some(most) if most < OPEN_FILES => findings.doubtful(
            "open files",
            format!("at most {most}; let the service have more (LimitNOFILE=65536, or ulimit -n)"),
        ),
        Some(most) => findings.good("open files", format!("up to {most}")),
        None => findings.good("open files", "without a limit"),
    }
}

fn ring(findings: &mut DoctorFindings) {
    let setting = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    match setting.as_deref().map(str::trim) {
        Ok("0") => findings.good("io_uring", "the kernel offers it"),
        Ok(_) => findings.doubtful(
            "io_uring",
            "the kernel refuses it (kernel.io_uring_disabled): reads and writes go one by one, and slower",
        ),
        Err(_) => findings.good("io_uring", "the kernel has no setting against it"),
    }
}
