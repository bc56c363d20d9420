//! Runs the tests and lists the slowest of them, by the test harness's own clock.
//!
//! The harness reports times only where unstable options are allowed. `cargo` therefore starts each test
//! program with `RUSTC_BOOTSTRAP`; no compilation sees that variable.

use anyhow::{Context, Result, bail};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

/// Number of tests listed.
const LISTED: usize = 20;

/// One test and its wall time in seconds.
#[derive(Debug, PartialEq)]
struct TestTime {
    name: String,
    seconds: f64,
}

/// Runs the unit and integration tests of the workspace, prints their output, then the slowest of them.
/// # Errors
/// A test failed, or cargo cannot be started.
pub(crate) fn run(root: &Path) -> Result<()> {
    // Some tests sleep: one thread more than cores keeps the cores busy without starving any test.
    let threads = 1 + std::thread::available_parallelism().map_or(1, usize::from);
    crate::orphans::adopt()?;
    let mut child = Command::new("cargo")
        .args(["test", "--workspace", "--locked", "--no-fail-fast", "--lib", "--bins", "--tests"])
        .args(["--", "-Zunstable-options", "--report-time"])
        .arg(format!("--test-threads={threads}"))
        .env(runner_variable(), "env RUSTC_BOOTSTRAP=1")
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting cargo")?;
    let stdout = child.stdout.take().context("no standard output")?;
    // Read beside the wait: a program that a test left running would hold this pipe open.
    let reading = std::thread::Builder::new().spawn(move || -> std::io::Result<Vec<TestTime>> {
        let mut times = Vec::new();
        for line in BufReader::new(stdout).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            println!("{line}");
            times.extend(time_of(&line));
        }
        Ok(times)
    })?;
    let (status, outlived) = crate::orphans::wait_and_end_orphans(&child)?;
    let mut times = reading.join().map_err(|_| anyhow::anyhow!("the reader of the output panicked"))??;
    times.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    println!("ci: the {LISTED} slowest of {} tests, seconds", times.len());
    for time in times.iter().take(LISTED) {
        println!("{:8.1}  {}", time.seconds, time.name);
    }
    for command in &outlived {
        println!("ci: left running by a test, killed: {command}");
    }
    if status.exit_status() != Some(0) {
        bail!("`cargo test` failed ({status:?})");
    }
    Ok(())
}

/// The variable that sets cargo's runner of programs of this machine's target.
fn runner_variable() -> String {
    let arch = std::env::consts::ARCH.to_uppercase();
    format!("CARGO_TARGET_{arch}_UNKNOWN_LINUX_GNU_RUNNER")
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
}
