//! Builds the test programs of the workspace, runs two of them at a time, and lists the slowest tests.
//!
//! `cargo test` runs one program after the other. A program whose last tests wait for timers then leaves the cores idle.
//!
//! The test harness reports times only where unstable options are allowed. The programs therefore run with
//! `RUSTC_BOOTSTRAP`; no compilation sees that variable.

use crate::orphans;
use anyhow::{Context, Result, bail, ensure};
use rustix::process::{Pid, Signal, WaitStatus, kill_process};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError, Sender},
    time::{Duration, Instant},
};
use tempfile::NamedTempFile;

/// Number of tests listed.
const LISTED: usize = 20;

/// Number of programs that run at a time.
const PROGRAMS: usize = 2;

/// Its tests start servers and guests, and wait for them.
const LONGEST_PROGRAM: &str = "crates/app/copal/tests/it/main.rs";

/// A program that runs longer hangs: the whole suite takes less.
const LONGEST_RUN: Duration = Duration::from_mins(45);

/// One test and its wall time in seconds.
#[derive(Debug, PartialEq)]
struct TestTime {
    name: String,
    seconds: f64,
}

/// One program of the test harness.
#[derive(Debug, PartialEq)]
struct TestProgram {
    /// The source file that it is built from, below the root of the workspace.
    name: String,
    executable: PathBuf,
    /// The directory of its package, in which cargo runs it too.
    directory: PathBuf,
}

/// A program between its start and its end.
struct RunningProgram {
    program: TestProgram,
    pid: Pid,
    /// Standard output and error. A file: an orphan of a test would keep a pipe open.
    output: NamedTempFile,
    started: Instant,
    /// Dropped at the end of the program.
    _watchdog: Sender<()>,
}

/// Builds and runs the unit and integration tests of the workspace. Prints the output of each program when it ends, then
/// the slowest tests. Blocks.
/// # Errors
/// A test failed, a program did not end, or cargo cannot be started.
pub(crate) fn run(root: &Path) -> Result<()> {
    let mut waiting = build(root)?;
    // Taken from the end: the program that lasts as long as all others, then large ones, then short ones for the gaps.
    waiting.sort_by_key(|program| {
        let bytes = fs::metadata(&program.executable).map_or(0, |metadata| metadata.len());
        (program.name == LONGEST_PROGRAM, bytes)
    });
    orphans::adopt()?;
    let (mut running, mut times, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    loop {
        while running.len() < PROGRAMS
            && let Some(program) = waiting.pop()
        {
            running.push(start(program)?);
        }
        if running.is_empty() {
            break;
        }
        let (pid, status) = orphans::wait_for_any()?;
        // Any other process is an orphan that ended by itself.
        if let Some(place) = running.iter().position(|program| program.pid == pid) {
            let ended = running.swap_remove(place);
            times.extend(print_output(&ended)?);
            if status.exit_status() != Some(0) {
                failed.push(describe_failure(&ended.program.name, status));
            }
        }
    }
    times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    println!("ci: the {LISTED} slowest of {} tests, seconds", times.len());
    for time in times.iter().take(LISTED) {
        println!("{:8.1}  {}", time.seconds, time.name);
    }
    for command in orphans::end_all() {
        println!("ci: left running by a test, killed: {command}");
    }
    ensure!(failed.is_empty(), "test programs failed: {}", failed.join(", "));
    Ok(())
}

/// Builds the test programs of the workspace. Blocks.
fn build(root: &Path) -> Result<Vec<TestProgram>> {
    let words =
        "test --workspace --locked --lib --bins --tests --no-run --message-format=json-render-diagnostics";
    let started = Instant::now();
    let built = Command::new("cargo")
        .args(words.split(' '))
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("starting cargo")?;
    ensure!(built.status.success(), "building the tests failed ({})", built.status);
    println!("ci: built in {:.1} s", started.elapsed().as_secs_f64());
    let messages = String::from_utf8(built.stdout).context("cargo's messages are not UTF-8")?;
    let programs: Vec<_> = messages.lines().filter_map(|line| program_of(line, root)).collect();
    if programs.is_empty() {
        bail!("cargo built no test program");
    }
    Ok(programs)
}

/// The test program that a message of cargo names; other messages name none.
fn program_of(message: &str, root: &Path) -> Option<TestProgram> {
    let message: Value = serde_json::from_str(message).ok()?;
    if !message["profile"]["test"].as_bool()? {
        return None;
    }
    let source = Path::new(message["target"]["src_path"].as_str()?);
    Some(TestProgram {
        name: source.strip_prefix(root).unwrap_or(source).display().to_string(),
        executable: message["executable"].as_str()?.into(),
        directory: Path::new(message["manifest_path"].as_str()?).parent()?.to_owned(),
    })
}

fn start(program: TestProgram) -> Result<RunningProgram> {
    // Some tests sleep: together the programs have two threads more than there are cores.
    let threads = 1 + std::thread::available_parallelism().map_or(1, usize::from).div_ceil(PROGRAMS);
    let output = NamedTempFile::new().context("making a file for the output of a test program")?;
    let file = output.reopen()?;
    println!("ci: running {}", program.name);
    let child = Command::new(&program.executable)
        .args(["-Zunstable-options", "--report-time", &format!("--test-threads={threads}")])
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_MANIFEST_DIR", &program.directory)
        .current_dir(&program.directory)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .with_context(|| format!("starting {}", program.executable.display()))?;
    let pid = Pid::from_child(&child);
    let (watchdog, ended) = mpsc::channel();
    std::thread::Builder::new().spawn(move || {
        if ended.recv_timeout(LONGEST_RUN) == Err(RecvTimeoutError::Timeout) {
            let _ = kill_process(pid, Signal::KILL);
        }
    })?;
    Ok(RunningProgram { program, pid, output, started: Instant::now(), _watchdog: watchdog })
}

/// Prints the output of a program, and answers the times of its tests.
fn print_output(ended: &RunningProgram) -> Result<Vec<TestTime>> {
    let output = fs::read(&ended.output).context("reading the output of a test program")?;
    let output = String::from_utf8_lossy(&output);
    let seconds = ended.started.elapsed().as_secs_f64();
    println!("ci: output of {}, {seconds:.1} s\n{output}", ended.program.name);
    Ok(output.lines().filter_map(time_of).collect())
}

/// Why a program is counted as failed.
fn describe_failure(name: &str, status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (_, Some(9)) => format!("{name} (killed: did it run for {} minutes?)", LONGEST_RUN.as_secs() / 60),
        (_, Some(signal)) => format!("{name} (ended by signal {signal})"),
        (code, None) => format!("{name} (exit code {})", code.unwrap_or(-1)),
    }
}

/// The test and its time in a line such as `test a::b ... ok <1.234s>`.
fn time_of(line: &str) -> Option<TestTime> {
    let (name, outcome) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let seconds = outcome.rsplit_once('<')?.1.strip_suffix("s>")?.parse().ok()?;
    Some(TestTime { name: name.to_owned(), seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_read_from_the_line_of_a_test_and_from_no_other() {
        let time = |name: &str, seconds| Some(TestTime { name: name.to_owned(), seconds });
        assert_eq!(time_of("test a::b ... ok <1.250s>"), time("a::b", 1.25));
        assert_eq!(time_of("test c ... FAILED <0.5s>"), time("c", 0.5));
        assert_eq!(time_of("test c ... ignored"), None);
        assert_eq!(time_of("test result: ok. 3 passed; finished in 0.10s"), None);
        assert_eq!(time_of("running 3 tests"), None);
    }

    #[test]
    fn programs_of_the_harness_are_found_in_the_messages_of_a_build() {
        let message = |test: bool, executable: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","target":{{"src_path":"/w/a/tests/it/main.rs"}},"profile":{{"test":{test}}},"executable":{executable}}}"#
            )
        };
        let program = TestProgram {
            name: "a/tests/it/main.rs".into(),
            executable: "/w/target/it".into(),
            directory: "/w/a".into(),
        };
        let root = Path::new("/w");
        assert_eq!(program_of(&message(true, r#""/w/target/it""#), root), Some(program));
        // Programs of the product, libraries, and other messages.
        assert_eq!(program_of(&message(false, r#""/w/target/copal""#), root), None);
        assert_eq!(program_of(&message(true, "null"), root), None);
        assert_eq!(program_of(r#"{"reason":"build-finished","success":true}"#, root), None);
        assert_eq!(program_of("no JSON", root), None);
    }
}
