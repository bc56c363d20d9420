//! Output at a terminal. The terminal is made by `script` of util-linux; without it the test is skipped with
//! a message.

use crate::{
    disks::{Disk, MIB},
    harness::{House, PASSWORD},
};
use std::{
    ffi::OsStr,
    io::Write,
    process::{Command, Stdio},
};

/// Runs `copal` in a terminal; returns standard output and error together.
fn in_terminal(house: &House, words: &[&str]) -> Option<String> {
    typed_in_terminal(&house.command(words), "")
}

/// Runs `copal` in a terminal on which these lines are typed.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn typed_in_terminal(copal: &Command, lines: &str) -> Option<String> {
    let quoted = |word: &OsStr| format!("'{}'", word.to_str().unwrap());
    let line: Vec<String> =
        std::iter::once(copal.get_program()).chain(copal.get_args()).map(quoted).collect();
    let mut command = Command::new("script");
    command
        .args(["--quiet", "--return", "--command", &line.join(" "), "/dev/null"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for (name, value) in copal.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let Ok(mut running) = command.spawn() else {
        eprintln!("skipped: no terminal to be had here (`script` of util-linux makes one)");
        return None;
    };
    running.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let done = running.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.status.code(), Some(0), "{text}");
    Some(text)
}

#[test]
fn a_terminal_gets_a_bar_with_bytes_rate_and_eta_and_keeps_only_the_result() {
    let house = House::plain();
    Disk::create(&house.path("disk.raw"), 4 * MIB, 140);
    let image = house.word("disk.raw");
    let backup = ["backup", "--vm", "web", &image];
    let Some(text) = in_terminal(&house, &backup) else {
        return;
    };
    // Data without holes, of 4.19 MB.
    for part in ["%", " of web", "/794.62 kB", " B/s", "ETA "] {
        assert!(text.contains(part), "no {part:?} in {text:?}");
    }
    // The last progress line is erased; the result follows it.
    let wipe = "\r\u{1b}[2K";
    let kept = &text[text.rfind(wipe).unwrap() + wipe.len()..];
    assert!(kept.starts_with("snapshot "), "{text:?}");
    assert!(!kept.contains("ETA"), "{text:?}");

    let quiet: Vec<&str> = ["--quiet"].into_iter().chain(backup).collect();
    let text = in_terminal(&house, &quiet).unwrap();
    assert!(!text.contains('\u{1b}') && !text.contains("ETA"), "{text:?}");
    let json: Vec<&str> = ["--json"].into_iter().chain(backup).collect();
    let text = in_terminal(&house, &json).unwrap();
    assert!(text.lines().all(|line| line.starts_with('{')), "{text:?}");
}

/// The password that is typed opens both repositories of a copy.
#[test]
fn a_copy_asks_once_for_the_password() {
    let house = House::encrypted();
    let other = house.word("other");
    house.good(["init", "--size", "64MiB", "--repo", &other]);
    let mut copy = house.command(["copy", "--all", "--to", &other]);
    copy.env_remove("COPAL_PASSWORD_FILE");
    let Some(text) = typed_in_terminal(&copy, &format!("{PASSWORD}\n")) else {
        return;
    };
    assert_eq!(text.matches("password of the repository").count(), 1, "{text}");
    assert!(text.contains("0 snapshots copied"), "{text}");
}
