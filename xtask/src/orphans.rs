//! Ends the processes that a command left running.
//!
//! A test that fails half-way may leave a program that holds the output of the whole run open. A terminal or a CI
//! that waits for the end of that output would then wait for ever. This process therefore becomes the parent of all
//! orphans below it (`PR_SET_CHILD_SUBREAPER`), and ends those that remain when the command has ended.

use anyhow::{Context, Result};
use rustix::process::{
    Pid, Signal, WaitOptions, WaitStatus, getpid, kill_process, set_child_subreaper, wait, waitpid,
};
use std::fs;

/// From now on orphans below this process become its children.
/// # Errors
/// The system refuses.
pub(crate) fn adopt() -> Result<()> {
    set_child_subreaper(Some(getpid())).context("becoming the parent of orphans")
}

/// Waits for the end of any child, orphans included. Blocks.
/// # Errors
/// There is no child.
pub(crate) fn wait_for_any() -> Result<(Pid, WaitStatus)> {
    wait(WaitOptions::empty()).context("waiting for a child")?.context("no child ended")
}

/// Kills all children of this process, and answers their command lines. Blocks.
pub(crate) fn end_all() -> Vec<String> {
    let mut ended = Vec::new();
    // The children of a killed orphan become ours: until there is none.
    loop {
        let orphans = children();
        for orphan in &orphans {
            ended.push(command_line(*orphan));
            let _ = kill_process(*orphan, Signal::KILL);
            let _ = waitpid(Some(*orphan), WaitOptions::empty());
        }
        if orphans.is_empty() {
            return ended;
        }
    }
}

/// The children of this process that have not ended.
fn children() -> Vec<Pid> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    let words = lists.flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
    words.filter_map(|word| Pid::from_raw(word.parse().ok()?)).filter(|pid| !is_ended(*pid)).collect()
}

fn is_ended(pid: Pid) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}

fn command_line(pid: Pid) -> String {
    let words = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
    String::from_utf8_lossy(&words).trim_end_matches('\0').replace('\0', " ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    // Symptom: a test failed and left a program running; CI waited 90 minutes for the end of its output.
    // Cause: the run read the inherited pipe to its end. Fix: orphans end with the run.
    #[test]
    #[expect(clippy::zombie_processes, reason = "the tested function waits for it")]
    fn an_orphan_is_named_and_ends_with_the_run() {
        // In a process of its own: it waits for any child, also those of other tests.
        const ALONE: &str = "COPAL_XTASK_ORPHANS_ALONE";
        if std::env::var_os(ALONE).is_none() {
            let name = "orphans::tests::an_orphan_is_named_and_ends_with_the_run";
            let itself = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name])
                .env(ALONE, "1")
                .status();
            assert!(itself.unwrap().success());
            return;
        }
        adopt().unwrap();
        // Symptom: one orphan was missing on a busy machine. Cause: the shell ended before it had forked.
        // Fix: it ends when the inner orphan runs.
        let scratch = tempfile::tempdir().unwrap();
        let inner = "echo > started; read line < never";
        let script = format!("mkfifo started never; (sh -c '{inner}'; true) & read line < started; exit 3");
        let mut child = Command::new("sh")
            .args(["-c", &script])
            .current_dir(&scratch)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = child.stdout.take().unwrap();
        let status = loop {
            let (pid, status) = wait_for_any().unwrap();
            if pid == Pid::from_child(&child) {
                break status;
            }
        };
        assert_eq!(status.exit_status(), Some(3));
        let mut outlived = end_all();
        outlived.sort();
        assert_eq!(outlived, [format!("sh -c {inner}"), format!("sh -c {script}")]);
        assert_eq!(std::io::copy(&mut output, &mut std::io::sink()).unwrap(), 0);
    }
}
