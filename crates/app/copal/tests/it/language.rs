//! Output of commands: stable JSON lines, help with examples, text for people.

use crate::{
    disks::{Disk, MIB},
    harness::{House, Run, id},
};
use serde_json::Value;

/// Checks that every line has version and type, and that the summary has these fields.
fn promised(house: &House, words: &[&str], fields: &[&str]) -> Value {
    let run = Run::of(house.command(["--json"]).args(words).output().unwrap());
    assert_eq!(run.code, Some(0), "{words:?}: {run:?}");
    for line in run.lines() {
        assert_eq!(line["v"], 1, "{line}");
        let kind = line["message_type"].as_str().unwrap();
        assert!(["status", "verbose", "summary", "error"].contains(&kind), "{line}");
    }
    let summary = run.summary();
    assert_eq!(summary["command"], words[0]);
    for field in fields {
        let pointer = format!("/{}", field.replace('.', "/"));
        assert!(
            summary.pointer(&pointer).is_some_and(|v| !v.is_null()),
            "{words:?}: no {field} in {summary}"
        );
    }
    summary
}

#[test]
fn each_command_speaks_json() {
    let house = House::empty();
    promised(&house, &["init", "--size", "64MiB"], &["repository", "domain", "encrypted", "created_ms"]);
    let snapshot = a_backup_speaks_json(&house);
    questions_speak_json(&house, &snapshot);
    changes_speak_json(&house, &snapshot);
    promised(&house, &["version"], &["version"]);
}

/// Makes a backup with JSON lines; returns the snapshot.
fn a_backup_speaks_json(house: &House) -> String {
    Disk::create(&house.path("disk.raw"), 4 * MIB, 30);
    let image = house.word("disk.raw");
    let backup = promised(
        house,
        &["backup", "--vm", "web", "--tag", "nightly", "--description", "by hand", &image],
        &[
            "snapshot",
            "short_id",
            "vm.uuid",
            "vm.name",
            "time",
            "created_ms",
            "disks.0.name",
            "disks.0.mode",
            "disks.0.reason",
            "disks.0.size_bytes",
            "counts.logical_bytes",
            "counts.dirty_bytes",
            "counts.read_bytes",
            "counts.data_bytes",
            "counts.inner_dup_bytes",
            "counts.cross_dup_bytes",
            "counts.new_bytes",
            "counts.stored_bytes",
            "counts.chunks",
            "seconds",
            "peak_memory_bytes",
        ],
    );
    id(&backup)
}

fn questions_speak_json(house: &House, snapshot: &str) {
    let listed = promised(
        house,
        &["snapshots"],
        &["snapshots.0.id", "snapshots.0.vm.name", "snapshots.0.time", "snapshots.0.disks.0.size_bytes"],
    );
    assert_eq!(listed["snapshots"][0]["tags"][0], "nightly");
    assert_eq!(listed["snapshots"][0]["description"], "by hand");
    promised(
        house,
        &["ls", snapshot],
        &["snapshot.id", "disks.0.data_bytes", "disks.0.hole_bytes", "disks.0.mode"],
    );
    let target = house.word("out");
    let restored =
        ["snapshot", "disk", "size_bytes", "written_bytes", "hole_bytes", "fetched_bytes", "seconds"];
    promised(house, &["restore", snapshot, "--target", &target], &restored);
    promised(house, &["verify", snapshot], &["clean", "damages", "decoded_bytes", "snapshot.id"]);
    promised(
        house,
        &["check", "--read-data"],
        &["clean", "damages", "packs", "references", "decoded_bytes", "leftovers", "leftover_bytes"],
    );
    promised(house, &["check", "--read-data-subset", "1/2"], &["clean"]);
    promised(
        house,
        &["stats"],
        &[
            "snapshots",
            "logical_bytes",
            "chunk_pack_bytes",
            "store.live_bytes",
            "store.allocated_bytes",
            "store.given_back_bytes",
        ],
    );
}

fn changes_speak_json(house: &House, snapshot: &str) {
    let dry = ["forget", "--keep-last", "1", "--dry-run"];
    promised(house, &dry, &["dry_run", "forgotten", "kept", "snapshots.0.reason", "snapshots.0.action"]);
    promised(house, &["forget", snapshot], &["forgotten", "snapshots.0.id"]);
    promised(house, &["delete"], &["removed_packs", "freed_bytes", "after_bytes"]);
    promised(
        house,
        &["prune"],
        &[
            "removed_packs",
            "rewritten_packs",
            "freed_bytes",
            "store_live_bytes",
            "store_allocated_bytes",
            "given_back_bytes",
        ],
    );
}

#[test]
fn text_for_people_has_the_important_words() {
    let house = House::plain();
    Disk::create(&house.path("disk.raw"), 4 * MIB, 31);
    let said = |words: &[&str]| {
        let run = house.good(words);
        String::from_utf8(run.stdout).unwrap()
    };
    let image = house.word("disk.raw");
    let backup = said(&["backup", "--vm", "web", &image]);
    assert!(
        backup.starts_with("snapshot ") && backup.contains("full (the VM has no snapshot yet)"),
        "{backup}"
    );
    let short = backup.split(' ').nth(1).unwrap().to_owned();
    assert!(said(&["snapshots"]).contains(&short));
    assert!(said(&["ls", &short]).contains("sda"));
    assert!(said(&["stats"]).contains("Snapshots            1"));
    assert!(said(&["check"]).contains("no damage found"));
    assert!(said(&["forget", &short, "--dry-run"]).contains("would forget"));
    assert!(said(&["version"]).starts_with("copal "));
}

/// Symptom: a quiet cron job sent a mail every day.
/// Cause: --quiet left out progress and notices, and printed the result. Fix: success prints nothing but
/// requested data; failures and warnings are still printed.
#[test]
fn quiet_success_prints_nothing() {
    let house = House::plain();
    Disk::create(&house.path("disk.raw"), MIB, 32);
    let (image, out) = (house.word("disk.raw"), house.word("out"));
    for words in [
        &["backup", "--vm", "web", &image][..],
        &["backup", "--vm", "web", &image],
        &["verify", "latest"],
        &["check", "--read-data"],
        &["restore", "latest", "--target", &out],
        &["hold", "latest"],
        &["hold", "latest", "--release"],
        &["forget", "--keep-last", "1"],
        &["delete"],
        &["prune", "--keep-daily", "7"],
        &["repair", "index"],
        &["kv", "verify"],
    ] {
        let run = house.good([&["--quiet"], words].concat());
        assert!(run.stdout.is_empty() && run.stderr.is_empty(), "{words:?}: {run:?}");
    }
    for words in [
        &["snapshots"][..],
        &["ls", "latest"],
        &["stats"],
        &["prune", "--dry-run"],
        &["restore", "latest", "--target", "-"],
        &["version"],
    ] {
        let run = house.good([&["--quiet"], words].concat());
        assert!(!run.stdout.is_empty() && run.stderr.is_empty(), "{words:?}: {run:?}");
    }
    let failed = house.run(["--quiet", "verify", "latest", "--vm", "none"]);
    assert!(failed.sentence().contains("none"), "{failed:?}");
}

/// Runs with standard output redirected by the shell.
fn with_stdout(house: &House, words: &[&str], stdout: &str) -> Run {
    let copal = house.command(words);
    let mut command = std::process::Command::new("bash");
    let script = format!("set -o pipefail; \"$@\" {stdout}");
    command.args(["-c", &script, "bash"]).arg(copal.get_program()).args(copal.get_args());
    for (name, value) in copal.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Run::of(command.output().unwrap())
}

/// Symptom: `copal snapshots` into a full file system, or without standard output, ended with exit code 0; a
/// restore into a closed standard output reported success.
/// Cause: the results of the writes were ignored; the system library opens /dev/null in place of a closed
/// descriptor.
/// Fix: a result that could not be written is exit code 1.
#[test]
fn a_result_that_cannot_be_written_is_no_success() {
    let house = House::plain();
    Disk::create(&house.path("disk.raw"), MIB, 33);
    house.backup("web", &house.path("disk.raw"));
    for stdout in ["> /dev/full", ">&-", "| true"] {
        for words in [
            &["snapshots"][..],
            &["--json", "stats"],
            &["restore", "latest", "--target", "-"],
            &["completions", "bash"],
            &["help"],
            &["--version"],
        ] {
            let run = with_stdout(&house, words, stdout);
            // A short output may fit into the pipe before its reader ends.
            if stdout != "| true" || words[0] == "restore" {
                assert_eq!(run.code, Some(1), "{words:?} {stdout}: {run:?}");
                assert!(run.sentence().contains("standard output"), "{words:?} {stdout}: {run:?}");
            }
        }
        // A command without output succeeds.
        assert_eq!(with_stdout(&house, &["--quiet", "verify", "latest"], stdout).code, Some(0));
    }
}

/// Symptom: `copal backup` with its repository and password in the environment reported --repo and
/// --password-file as missing, too. The help of each command listed 45 lines of common options.
/// Cause: each command listed the common options, and options from the environment counted as given.
/// Fix: only `copal --help` lists them, and a usage error names the missing options alone.
#[test]
fn common_options_are_in_the_help_once_and_optional() {
    let house = House::encrypted();
    let run = house.run(["backup"]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("--vm <NAME>"), "{run:?}");
    for part in ["--repo", "--password-file"] {
        assert!(!run.stderr.contains(part), "{part}: {run:?}");
    }
    let said = |words: &[&str]| String::from_utf8(house.good(words).stdout).unwrap();
    for words in [&["--help"][..], &["-h"]] {
        assert!(said(words).contains("--allow-volatile"), "{words:?}");
    }
    for words in [
        &["backup", "--help"][..],
        &["stats", "-h"],
        &["kv", "--help"],
        &["kv", "dump", "--help"],
        &["help", "prune"],
    ] {
        let text = said(words);
        assert!(!text.contains("--allow-volatile"), "{words:?}: {text}");
        assert!(text.contains("`copal --help` lists them"), "{words:?}: {text}");
    }
    assert!(said(&["kv", "dump", "--help"]).contains("--store"));
    assert!(said(&["stats", "--help"]).lines().count() < 25);
    // A command still accepts them.
    house.good(["stats", "--memory", "100M", "--json"]);
    assert!(said(&["completions", "bash"]).contains("--allow-volatile"));
}

/// Symptom: a description was stored with a snapshot and never shown; tags could not be queried; `stored` of
/// the summary differed from that of `snapshots` for the same backup; `stats` counted holes as disk.
/// Cause: the manifest was written before its own size was known; the other fields were never read.
/// Fix: all of it is shown, and both description and tags select snapshots.
#[test]
fn description_and_tags_of_a_backup_are_shown_and_select_it() {
    let house = House::plain();
    let disk = Disk::create(&house.path("disk.raw"), 4 * MIB, 34);
    let image = house.word("disk.raw");
    let said = |words: &[&str]| String::from_utf8(house.good(words).stdout).unwrap();
    house.good(["backup", "--vm", "web", &image]);
    assert!(!said(&["snapshots"]).contains("Description"));
    let words = ["backup", "--vm", "web", "--tag", "nightly", "--tag", "kernel"];
    let words = [&words[..], &["--description", "before the upgrade", &image]].concat();
    let made = house.summary(words);
    let listed = house.summary(["snapshots"]);
    assert_eq!(listed["snapshots"][1]["counts"], made["counts"], "{listed}");
    for words in [&["snapshots"][..], &["ls", "latest"]] {
        let text = said(words);
        assert!(text.contains("before the upgrade") && text.contains("nightly kernel"), "{text}");
    }
    let count = |words: &[&str]| {
        let found = house.summary([&["snapshots"], words].concat());
        found["snapshots"].as_array().unwrap().len()
    };
    assert_eq!(count(&[]), 2);
    assert_eq!(count(&["--tag", "nightly", "--tag", "kernel"]), 1);
    assert_eq!(count(&["--tag", "nightly", "--tag", "other"]), 0);
    assert_eq!(count(&["--description", "upgrade"]), 1);
    assert_eq!(count(&["--vm", "web", "--description", "none"]), 0);
    let stats = house.summary(["stats"]);
    let holes = stats["logical_bytes"].as_u64().unwrap() - 2 * made["counts"]["data_bytes"].as_u64().unwrap();
    assert_eq!(stats["hole_bytes"], holes, "{stats}");
    assert!(holes > 0 && disk.bytes.len() as u64 * 2 > holes);
    assert!(said(&["stats"]).contains("of it holes"));
    // Symptom: a verify of many packs reported `0 packs`. Cause: only `check` counted them. Fix: packs that
    // were read count.
    let verified = house.summary(["verify", "latest"]);
    assert!(verified["packs"].as_u64().unwrap() > 0, "{verified}");
}

#[test]
fn help_teaches_and_completions_complete() {
    let house = House::empty();
    let help = String::from_utf8(house.good(["--help"]).stdout).unwrap();
    for words in ["Exit codes:", "COPAL_PASSWORD_FILE", "copal restore latest", "130"] {
        assert!(help.contains(words), "{words} is not in {help}");
    }
    for command in [
        "init",
        "backup",
        "snapshots",
        "ls",
        "restore",
        "verify",
        "check",
        "forget",
        "delete",
        "prune",
        "stats",
        "version",
        "completions",
    ] {
        assert!(help.contains(&format!("  {command} ")), "{command} is not in {help}");
        let own = String::from_utf8(house.good([command, "--help"]).stdout).unwrap();
        assert!(own.contains("Usage:"), "{own}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(house.good(["completions", shell]).stdout).unwrap();
        assert!(script.contains("copal") && script.contains("changed-extents"));
    }
}

#[test]
fn words_that_make_no_sense_are_code_2_in_json_too() {
    let house = House::empty();
    let run = house.run(["--json", "backup"]);
    assert_eq!(run.code, Some(2));
    let line = run.lines().pop().unwrap();
    assert_eq!((&line["message_type"], &line["exit_code"]), (&"exit_error".into(), &2.into()), "{line}");
    // Symptom: "the following required arguments were not provided:", without the arguments.
    // Cause: only the first line of the parser's message was taken. Fix: all text before the usage.
    let message = line["message"].as_str().unwrap();
    assert!(message.contains("not provided: --vm <NAME>"), "{message}");
    assert!(!message.contains("Usage"), "{message}");
    assert_eq!(house.run(["no-such-command"]).code, Some(2));
}
