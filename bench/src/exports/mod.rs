//! `nbd-serve`: speed of `copal nbd` serving a snapshot, beside a restore of it and beside reads of the
//! image.
//!
//! Restores into a file, copies of the served disk by `nbdcopy`, and copies of the image by it take turns;
//! the report has medians and their ratio. Single reads of 4 KiB, one at a time, go to random places of the
//! served disk, in a process with cold caches. Then a guest boots from the export with an overlay (`--cow`),
//! and from a copy of the image.

mod boot;

use anyhow::{Context, Result, ensure};
use clap::Args;
use copal_bench_harness::report::{Report, median};
use serde_json::Value;
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use xtask::{
    copal::{self, Copal},
    dataset::{oracle::Oracle, random::Random},
};

/// Sequential reads of an export reach at least this share of a restore's speed.
const SHARE: f64 = 0.8;
const READ_BYTES: usize = 4096;

#[derive(Args)]
pub(crate) struct Options {
    /// Directory of the data set, whose first image is served [default: .cache/dataset-fleet]
    #[arg(long, env = "COPAL_DATASET_FLEET")]
    dataset: Option<PathBuf>,
    /// Directory of the repository [default: .cache/bench]
    #[arg(long)]
    scratch: Option<PathBuf>,
    /// Number of measurements of each way
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Number of single reads
    #[arg(long, default_value_t = 2000)]
    reads: usize,
    /// Number of boots of each way
    #[arg(long, default_value_t = 3)]
    boots: usize,
}

pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    let dataset = crate::default_below_cache(root, options.dataset.as_ref(), "dataset-fleet");
    let scratch = crate::default_below_cache(root, options.scratch.as_ref(), "bench").join("exports");
    if scratch.exists() {
        fs::remove_dir_all(&scratch)?;
    }
    fs::create_dir_all(&scratch)?;
    let oracle = Oracle::read(&dataset)?;
    let day = oracle.vms.first().and_then(|vm| vm.days.first()).context("the data set has an image")?;
    let (image, data) = (dataset.join(&day.image), day.data_bytes as f64 / 1e6);
    let binary = copal::build_release(root)?;
    let copal = Copal::new(&binary, &scratch.join("repository"))?;
    copal.init()?;
    copal.backup("vm0", &image, None)?;
    let mut report = Report::new(root, &scratch);
    report.fact("data of the disk", data, "MB");

    let (mut restores, mut copies, mut plain) = (Vec::new(), Vec::new(), Vec::new());
    // The first round is a warm-up.
    for round in 0..=options.rounds {
        let restored = timed(|| copal.restore("latest", &scratch.join("restored.raw")).map(drop))?;
        let export = SnapshotExport::open(&copal, &binary, &scratch, None)?;
        let copied = timed(|| export.copy(&scratch.join("copied.raw")))?;
        export.close()?;
        if round == 0 {
            ensure!(same(&scratch.join("copied.raw"), &image)?, "the served bytes differ from the image");
        }
        let read = timed(|| nbdcopy(&image, &scratch.join("plain.raw")))?;
        for name in ["restored.raw", "copied.raw", "plain.raw"] {
            fs::remove_file(scratch.join(name))?;
        }
        if round > 0 {
            restores.push(restored.as_secs_f64());
            copies.push(copied.as_secs_f64());
            plain.push(read.as_secs_f64());
        }
    }
    let middle = |times: Vec<f64>| median(times).context("at least one round is measured");
    let (restore, copy, plain) = (middle(restores)?, middle(copies)?, middle(plain)?);
    report.fact("restore into a file", data / restore, "MB/s");
    report.fact("nbdcopy of the served disk into a file", data / copy, "MB/s");
    report.fact("nbdcopy of the image into a file", data / plain, "MB/s");
    report.at_least("served / restored, sequential", restore / copy, "", SHARE);

    let export = SnapshotExport::open(&copal, &binary, &scratch, None)?;
    let mut times = single_reads(&export.socket, day.size_bytes, options.reads)?;
    let peak = export.peak_memory()?;
    export.close()?;
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied();
    report.fact("4 KiB at a random place: median", at(0.5).context("reads were made")?, "ms");
    report.fact("4 KiB at a random place: p99", at(0.99).context("reads were made")?, "ms");
    report.fact("memory of copal nbd, at most", peak / 1e6, "MB");

    boots(&mut report, &copal, &binary, &image, &scratch, options.boots)?;
    fs::remove_dir_all(&scratch)?;
    report.finish(root, "nbd-serve")
}

fn boots(
    report: &mut Report,
    copal: &Copal,
    binary: &Path,
    image: &Path,
    scratch: &Path,
    count: usize,
) -> Result<()> {
    let system = boot::System::of(image, scratch)?;
    let (written, copied) = (scratch.join("writes.cow"), scratch.join("copied.raw"));
    let (mut served, mut plain) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let export = SnapshotExport::open(copal, binary, scratch, Some(&written))?;
        served.push(system.boot(&format!("nbd:unix:{}", export.socket.display()))?.as_secs_f64());
        export.close()?;
        fs::remove_file(&written)?;
        xtask::sparse::copy(image, &copied)?;
        plain.push(system.boot(&copied.display().to_string())?.as_secs_f64());
        fs::remove_file(&copied)?;
    }
    let middle = |times: Vec<f64>| median(times).context("at least one boot is measured");
    report.fact("boot to login from --cow", middle(served)?, "s");
    report.fact("boot to login from a copy of the image", middle(plain)?, "s");
    Ok(())
}

/// `copal nbd` of the newest snapshot.
struct SnapshotExport {
    child: Child,
    socket: PathBuf,
    uri: String,
}

impl SnapshotExport {
    /// Overlay file for the guest's writes; without one the export is read-only.
    fn open(copal: &Copal, binary: &Path, scratch: &Path, writes: Option<&Path>) -> Result<SnapshotExport> {
        let socket = scratch.join("export.sock");
        let writes = writes.map(|file| ["--cow".as_ref(), file.as_os_str()]);
        let mut child = Command::new(binary)
            .args(["nbd", "latest", "--vm", "vm0", "--json", "--socket"])
            .arg(&socket)
            .arg("--repo")
            .arg(copal.repository())
            .arg("--password-file")
            .arg(copal.password_file())
            .args(writes.into_iter().flatten())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting copal nbd")?;
        let mut lines = BufReader::new(child.stdout.take().context("it has a standard output")?).lines();
        let line = lines.next().context("copal nbd says that it is ready")??;
        let ready: Value = serde_json::from_str(&line)?;
        let uri = ready["uri"].as_str().context("copal nbd prints an address")?;
        Ok(SnapshotExport { child, socket, uri: uri.to_owned() })
    }

    fn copy(&self, target: &Path) -> Result<()> {
        nbdcopy(Path::new(&self.uri), target)
    }

    /// Peak memory of the process.
    fn peak_memory(&self) -> Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find(|line| line.starts_with("VmHWM:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().nth(1));
        Ok(kilobytes.context("the kernel tells the peak")?.parse::<f64>()? * 1024.0)
    }

    fn close(mut self) -> Result<()> {
        Command::new("kill").arg(self.child.id().to_string()).status()?;
        let status = self.child.wait()?;
        ensure!(status.success(), "copal nbd ended with {status}");
        Ok(())
    }
}

fn nbdcopy(source: &Path, target: &Path) -> Result<()> {
    let run = Command::new("nbdcopy")
        .arg(source)
        .arg(target)
        .output()
        .context("running nbdcopy (apt install libnbd-bin)")?;
    ensure!(run.status.success(), "nbdcopy: {}", String::from_utf8_lossy(&run.stderr));
    // A restore makes its file durable before it ends; so does this copy.
    File::open(target)?.sync_all()?;
    Ok(())
}

fn timed(work: impl FnOnce() -> Result<()>) -> Result<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}

fn same(one: &Path, other: &Path) -> Result<bool> {
    Ok(Command::new("cmp").arg(one).arg(other).status()?.success())
}

/// Reads of 4 KiB, one at a time, at random places of the disk; returns milliseconds of each. It speaks the
/// protocol itself, since existing tools report only sums.
pub(crate) fn single_reads(socket: &Path, size: u64, reads: usize) -> Result<Vec<f64>> {
    let mut stream = UnixStream::connect(socket)?;
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    ensure!(&greeting[..8] == b"NBDMAGIC", "no NBD server answers");
    // Fixed newstyle without zeroes; the only export has an empty name.
    stream.write_all(&3_u32.to_be_bytes())?;
    stream.write_all(b"IHAVEOPT")?;
    stream.write_all(&[0, 0, 0, 1, 0, 0, 0, 0])?;
    let mut chosen = [0; 10];
    stream.read_exact(&mut chosen)?;
    let mut random = Random::new(&[7]);
    let mut times = Vec::with_capacity(reads);
    let mut answer = [0; 16 + READ_BYTES];
    for number in 0..reads as u64 {
        let offset = random.below(size / READ_BYTES as u64) * READ_BYTES as u64;
        let mut request = [0; 28];
        request[..4].copy_from_slice(&0x2560_9513_u32.to_be_bytes());
        request[8..16].copy_from_slice(&number.to_be_bytes());
        request[16..24].copy_from_slice(&offset.to_be_bytes());
        request[24..].copy_from_slice(&(READ_BYTES as u32).to_be_bytes());
        let began = Instant::now();
        stream.write_all(&request)?;
        stream.read_exact(&mut answer)?;
        times.push(began.elapsed().as_secs_f64() * 1e3);
        ensure!(answer[4..8] == [0; 4], "a read failed");
    }
    Ok(times)
}
