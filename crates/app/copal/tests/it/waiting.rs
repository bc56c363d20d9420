//! A store in use by another process: its holder, and waiting for it.

use crate::{
    disks::{Disk, MIB},
    harness::{House, Run, Running},
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, Stdio},
};

/// Starts a backup from standard input, which holds the store until the pipe ends.
fn owner(house: &House) -> Running {
    let mut owner = Running::start(house, ["backup", "--vm", "piped", "-"]);
    owner.wait_for("status");
    owner
}

/// Lets the owner finish.
fn release(mut owner: Running) {
    owner.child.stdin.as_mut().unwrap().write_all(b"a disk").unwrap();
    let run = owner.end();
    assert_eq!(run.code, Some(0), "{run:?}");
}

/// Starts a command that waits, and reads its message.
fn waiting(mut command: std::process::Command) -> (Child, String) {
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    // Progress lines may follow; a full pipe must not block the command.
    std::thread::spawn(move || stderr.read_to_end(&mut Vec::new()));
    (child, line)
}

/// Symptom: exit code 11 reported only `another process`.
/// Cause: the kernel was not asked for the holder. Fix: command, process and age are in the sentence and in
/// the JSON line.
#[test]
fn a_busy_repository_names_its_holder() {
    for house in [House::plain(), House::of_files()] {
        let owner = owner(&house);
        let pid = owner.child.id();
        let run = house.run(["snapshots"]);
        assert_eq!(run.code, Some(11), "{run:?}");
        let sentence = run.sentence();
        for part in ["\"copal ", "backup --vm piped -\"", &format!("process {pid}"), " ago", "--wait"] {
            assert!(sentence.contains(part), "{part:?} is not in {sentence:?}");
        }
        let run = Run::of(house.command(["--json", "snapshots"]).output().unwrap());
        let error = run.lines().pop().unwrap();
        assert_eq!(error["holders"][0]["pid"], pid, "{error}");
        assert!(error["holders"][0]["age_seconds"].is_u64(), "{error}");
        release(owner);
    }
}

/// Symptom: a backup that met the last minutes of another one was lost for the day.
/// Cause: two seconds, then exit code 11. Fix: `--wait` and `COPAL_WAIT`, for readers and writers.
#[test]
fn a_command_that_may_wait_does_its_work_afterwards() {
    let house = House::plain();
    Disk::create(&house.path("disk.raw"), MIB, 190);
    let image = house.word("disk.raw");
    let first = owner(&house);
    let reader = house.command(["--wait", "1h", "snapshots"]);
    let mut writer = house.command(["backup", "--vm", "web", &image]);
    writer.env("COPAL_WAIT", "1h");
    let mut engine = house.command(["kv", "stats"]);
    engine.env("COPAL_WAIT", "1h");
    let started: Vec<_> = [reader, writer, engine].map(waiting).into();
    for (_, said) in &started {
        assert!(said.starts_with("waiting up to 1h00m for \"copal "), "{said}");
    }
    release(first);
    for (child, _) in started {
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(house.snapshots().len(), 2);
    house.check();
}

#[test]
fn ctrl_c_ends_the_waiting() {
    let house = House::plain();
    let first = owner(&house);
    let (mut child, _) = waiting(house.command(["--wait", "1h", "prune"]));
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    release(first);
    let run = house.run(["--wait", "soon", "prune"]);
    assert_eq!(run.code, Some(2), "{run:?}");
}
