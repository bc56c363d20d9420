//! Tests of this binary in processes of their own.

use copal_testkit::MemoryCap;
use std::process::{Command, Output};

/// Runs one test of this binary in a process of its own, under `cap` if given.
pub(crate) fn run_alone(test: &str, cap: Option<&MemoryCap>, variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).envs(variables.iter().copied());
    match cap {
        Some(cap) => cap.around(&command).output().unwrap(),
        None => command.output().unwrap(),
    }
}
