//! Runs a program to its end and reports its cost: processor time, wall time, peak memory.
//!
//! The numbers are the kernel's for the process and the children it waited for (`wait4`). Peak memory is that
//! of the largest single process; reads are those of the program itself (`/proc/PID/io`). The kernel counts
//! the memory of the starting process into the program's peak, so callers keep their own small (tens of MB at
//! most).
//!
//! Not here: comparisons of the numbers (`report`).

#![allow(clippy::disallowed_methods, reason = "a test without threads fails")]
#![expect(unsafe_code, reason = "wait4 has no safe binding among our dependencies")]

use anyhow::{Context, Result, bail};
use std::{
    io::Read,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Cost and output of one run of a program.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Exit code; 128 + signal when a signal ended it.
    pub code: i32,
    /// User and system time together.
    pub cpu: Duration,
    /// From start to end.
    pub wall: Duration,
    /// Largest resident set of one process.
    pub peak_bytes: u64,
    /// Bytes written to block devices, or dirtied in the page cache of files on them.
    pub written_bytes: u64,
    /// Bytes returned by `read` and related calls, also from caches and pipes. Reads through an io_uring are
    /// not included.
    pub read_bytes: u64,
    /// Number of these calls.
    pub read_calls: u64,
    /// Standard output, captured whole.
    pub stdout: String,
    /// Standard error, captured whole.
    pub stderr: String,
}

impl Run {
    /// The run, if the program exited with 0.
    ///
    /// # Errors
    /// Names the program, its exit code and the end of its standard error.
    pub fn success(self, what: &str) -> Result<Run> {
        if self.code == 0 {
            return Ok(self);
        }
        let output = if self.stderr.trim().is_empty() { &self.stdout } else { &self.stderr };
        let lines: Vec<&str> = output.trim().lines().collect();
        let end = lines[lines.len().saturating_sub(15)..].join("\n");
        bail!("{what} failed with exit code {}:\n{end}", self.code)
    }
}

/// Runs `command` without standard input and captures its output.
/// Blocks until the program and all processes that inherited its output have ended.
///
/// # Errors
/// The program cannot be started. A failing program is `Ok` with its code.
pub fn run(command: &mut Command) -> Result<Run> {
    run_watched(command, |_| ())
}

/// Like [`run`]; calls `watch` with the process id once the program has started.
///
/// # Errors
/// The program cannot be started. A failing program is `Ok` with its code.
pub fn run_watched(command: &mut Command, watch: impl FnOnce(u32)) -> Result<Run> {
    let program = command.get_program().to_string_lossy().into_owned();
    let started = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting {program}"))?;
    watch(child.id());
    let stdout = collect(child.stdout.take());
    let stderr = collect(child.stderr.take());
    let reads = reads_at_its_end(&child);
    let (status, usage) = wait(&child).with_context(|| format!("waiting for {program}"))?;
    let wall = started.elapsed();
    let text = |reader: thread::JoinHandle<Vec<u8>>| {
        reader.join().map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    };
    Ok(Run {
        code: exit_code(status),
        cpu: time(usage.ru_utime) + time(usage.ru_stime),
        wall,
        peak_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0) * 1024,
        // The kernel counts these in units of 512 bytes.
        written_bytes: u64::try_from(usage.ru_oublock).unwrap_or(0) * 512,
        read_bytes: reads.0,
        read_calls: reads.1,
        stdout: text(stdout),
        stderr: text(stderr),
    })
}

/// Bytes and calls of all its reads; zeros where the kernel has no numbers. Blocks until the program has
/// ended, and leaves it to be waited for.
fn reads_at_its_end(child: &Child) -> (u64, u64) {
    // SAFETY: an all-zero `siginfo_t` is a valid value of a struct of integers.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is a live local of the type that the call writes, and the process is our own child.
    while unsafe { libc::waitid(libc::P_PID, child.id(), &raw mut info, libc::WEXITED | libc::WNOWAIT) } != 0
    {
        if std::io::Error::last_os_error().kind() != std::io::ErrorKind::Interrupted {
            return (0, 0);
        }
    }
    let said = std::fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap_or_default();
    let number = |name: &str| {
        let mut lines = said.lines();
        let number = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")?.parse().ok());
        number.unwrap_or(0)
    };
    (number("rchar"), number("syscr"))
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> thread::JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // A broken pipe ends the text; the exit code tells the result.
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn wait(child: &Child) -> Result<(libc::c_int, libc::rusage)> {
    let pid = libc::pid_t::try_from(child.id()).context("a process id that does not fit")?;
    let mut status = 0;
    // SAFETY: an all-zero `rusage` is a valid value of a struct of integers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    loop {
        // SAFETY: both pointers are to live locals of the types the call writes; `pid` is our own child,
        // which no other thread waits for because `Child` is neither waited on nor dropped meanwhile.
        let answer = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
        if answer == pid {
            return Ok((status, usage));
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error).context("wait4");
        }
    }
}

fn exit_code(status: libc::c_int) -> i32 {
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 128 + libc::WTERMSIG(status) }
}

fn time(value: libc::timeval) -> Duration {
    let seconds = u64::try_from(value.tv_sec).unwrap_or(0);
    let micros = u32::try_from(value.tv_usec).unwrap_or(0);
    Duration::new(seconds, micros * 1000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_program_is_measured_and_its_output_captured() {
        let run = run(Command::new("sh").args(["-c", "echo out; echo err >&2; exit 3"])).expect("sh runs");
        assert_eq!((run.code, run.stdout.as_str(), run.stderr.as_str()), (3, "out\n", "err\n"));
        assert!(run.peak_bytes > 100_000, "a shell occupies memory: {}", run.peak_bytes);
        assert!(run.success("sh").is_err());
    }

    #[test]
    fn bytes_written_by_a_program_are_counted() {
        // Below the target directory: writes to a file system in memory are not counted.
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        std::fs::create_dir_all(&directory).expect("a directory for it");
        let file = tempfile::NamedTempFile::new_in(directory).expect("a file below target");
        let script = "head -c 3000000 /dev/zero > \"$1\"";
        let run = run(Command::new("sh").args(["-c", script, "sh"]).arg(file.path())).expect("sh runs");
        assert!((3_000_000..4_000_000).contains(&run.written_bytes), "{}", run.written_bytes);
    }

    #[test]
    fn bytes_read_by_a_program_are_counted() {
        let run = run(Command::new("head").args(["-c", "3000000", "/dev/zero"])).expect("head runs");
        assert!((3_000_000..4_000_000).contains(&run.read_bytes), "{}", run.read_bytes);
        assert!(run.read_calls > 1, "{}", run.read_calls);
    }

    #[test]
    fn a_killed_program_reports_its_signal() {
        let run = run(Command::new("sh").args(["-c", "kill -9 $$"])).expect("sh runs");
        assert_eq!(run.code, 128 + 9);
    }

    #[test]
    fn a_missing_program_is_an_error_that_names_it() {
        let error = run(&mut Command::new("no-such-program-anywhere")).expect_err("it is missing");
        assert!(format!("{error:#}").contains("no-such-program-anywhere"));
    }
}
