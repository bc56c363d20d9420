//! An engine in its own process, as the suite controls it.
//!
//! Invariants
//! - The process is under its cap before the engine opens its store, and the page cache holds no page of its
//!   files then.
//! - The end of a process before its answer is a result too: `Fallen`, most often a kill at the cap.

use crate::{
    memory_cap::{MemoryCap, Traffic, forget_pages},
    protocol::{Answer, Filters, Kind, Request, Spec},
};
use anyhow::{Context, Result, bail};
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

/// First argument of the binary in an engine's process.
pub(crate) const CHILD: &str = "engine-process";

/// The process ended without an answer.
#[derive(Debug)]
pub(crate) struct Fallen(pub(crate) String);

impl std::fmt::Display for Fallen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ended without an answer, most likely at its memory cap", self.0)
    }
}

impl std::error::Error for Fallen {}

/// One engine at work.
pub(crate) struct Peer {
    pub(crate) spec: Spec,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    memory_cap: MemoryCap,
    pub(crate) version: String,
    pub(crate) options: String,
}

/// Result of a request, and the kernel's counts during it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) answer: Answer,
    pub(crate) traffic: Traffic,
    pub(crate) peak_bytes: u64,
    pub(crate) anonymous_bytes: u64,
}

impl Outcome {
    pub(crate) fn reads_per_op(&self) -> f64 {
        self.traffic.reads as f64 / (self.answer.ops as f64).max(1.0)
    }
}

impl Peer {
    /// Starts the process in a new control group, caps it, opens the engine.
    pub(crate) fn open(spec: &Spec, cap_bytes: Option<u64>) -> Result<Peer> {
        std::fs::create_dir_all(&spec.directory)?;
        forget_pages(&spec.directory)?;
        let memory_cap = MemoryCap::make(&spec.name, &device_of(&spec.directory)?)?;
        let mut command = Command::new(std::env::current_exe()?);
        if (spec.kind, spec.filters) == (Kind::Rocksdb, Filters::Tuned) {
            // One thread reads RocksDB's blocks and another frees them. glibc keeps the freed memory of each
            // arena, so the process would grow to two and a half times its cache. RocksDB's manual recommends
            // another allocator.
            command.env("MALLOC_ARENA_MAX", "1");
        }
        let mut child = command
            .arg(CHILD)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting an engine's process")?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = BufReader::new(output.context("a pipe from the engine")?);
        let mut peer = Peer {
            spec: spec.clone(),
            child,
            input,
            output,
            memory_cap,
            version: String::new(),
            options: String::new(),
        };
        peer.memory_cap.enter(peer.child.id())?;
        peer.memory_cap.set(cap_bytes)?;
        let opened = peer.ask(&Request::Open(spec.clone()))?.answer;
        peer.version = opened.version;
        peer.options = opened.options;
        Ok(peer)
    }

    /// Sends a request to the engine. Blocks until it is done.
    pub(crate) fn ask(&mut self, request: &Request) -> Result<Outcome> {
        let pid = self.child.id();
        let before = self.memory_cap.traffic(pid)?;
        self.memory_cap.take_peak()?;
        let fallen = || Fallen(self.spec.name.clone());
        let input = self.input.as_mut().with_context(fallen)?;
        let mut line = serde_json::to_string(request)?;
        line.push('\n');
        if input.write_all(line.as_bytes()).is_err() {
            bail!(fallen());
        }
        let mut line = String::new();
        if self.output.read_line(&mut line)? == 0 {
            bail!(fallen());
        }
        let answer: Answer =
            serde_json::from_str(&line).with_context(|| format!("{} answered {line}", self.spec.name))?;
        if let Some(error) = &answer.error {
            bail!("{}: {error}", self.spec.name);
        }
        Ok(Outcome {
            answer,
            traffic: self.memory_cap.traffic(pid)? - before,
            peak_bytes: self.memory_cap.take_peak()?,
            anonymous_bytes: self.memory_cap.anonymous()?,
        })
    }

    /// Closes the engine and waits for the end of its process.
    pub(crate) fn close(mut self) -> Result<()> {
        self.memory_cap.set(None)?;
        self.ask(&Request::Close)?;
        self.input = None;
        let status = self.child.wait()?;
        if !status.success() {
            bail!("{} ended with {status}", self.spec.name);
        }
        Ok(())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Without effect after `close`; after an error the process must not outlive the suite.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether the error is the unexpected end of a process.
pub(crate) fn is_fallen(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Fallen>().is_some()
}

/// `major:minor` of the disk below the directory. A partition counts as its disk, as in the kernel's
/// statistics.
fn device_of(directory: &Path) -> Result<String> {
    let device = std::fs::metadata(directory)?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let own = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
    if own.join("partition").exists() {
        let whole = std::fs::canonicalize(&own)?;
        let disk = whole.parent().context("a partition lies on a disk")?.join("dev");
        return Ok(std::fs::read_to_string(disk)?.trim().to_owned());
    }
    Ok(format!("{major}:{minor}"))
}
