//! The words: JSON lines that keep their promise, help that teaches, text for people.

use crate::{
    disks::{Disk, MIB},
    harness::{House, Run, id},
};
use serde_json::Value;

/// Every line is versioned and typed; the summary has these fields.
fn promised(house: &House, words: &[&str], fields: &[&str]) -> Value {
    let run = Run::of(house.command(["--json"]).args(words).output().unwrap());
    assert_eq!(run.code, Some(0), "{words:?}: {run:?}");
    for line in run.lines() {
        assert_eq!(line["v"], 1, "{line}");
        let kind = line["message_type"].as_str().unwrap();
        assert!(
            ["status", "verbose", "summary", "error"].contains(&kind),
            "{line}"
        );
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
    promised(
        &house,
        &["init", "--size", "64MiB"],
        &["repository", "domain", "encrypted", "created_ms"],
    );
    Disk::create(&house.path("disk.raw"), 4 * MIB, 30);
    let image = house.word("disk.raw");
    let backup = promised(
        &house,
        &[
            "backup",
            "--vm",
            "web",
            "--tag",
            "nightly",
            "--description",
            "by hand",
            &image,
        ],
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
    let snapshot = id(&backup);
    let listed = promised(
        &house,
        &["snapshots"],
        &[
            "snapshots.0.id",
            "snapshots.0.vm.name",
            "snapshots.0.time",
            "snapshots.0.disks.0.size_bytes",
        ],
    );
    assert_eq!(listed["snapshots"][0]["tags"][0], "nightly");
    assert_eq!(listed["snapshots"][0]["description"], "by hand");
    promised(
        &house,
        &["ls", &snapshot],
        &[
            "snapshot.id",
            "disks.0.data_bytes",
            "disks.0.hole_bytes",
            "disks.0.mode",
        ],
    );
    let target = house.word("out");
    let restored = [
        "snapshot",
        "disk",
        "size_bytes",
        "written_bytes",
        "hole_bytes",
        "fetched_bytes",
        "seconds",
    ];
    promised(&house, &["restore", &snapshot, "--target", &target], &restored);
    promised(
        &house,
        &["verify", &snapshot],
        &["clean", "damages", "decoded_bytes", "snapshot.id"],
    );
    promised(
        &house,
        &["check", "--read-data"],
        &[
            "clean",
            "damages",
            "packs",
            "references",
            "decoded_bytes",
            "leftovers",
            "leftover_bytes",
        ],
    );
    promised(&house, &["check", "--read-data-subset", "1/2"], &["clean"]);
    promised(
        &house,
        &["stats"],
        &[
            "snapshots",
            "logical_bytes",
            "chunk_pack_bytes",
            "store.live_bytes",
        ],
    );
    let dry = ["forget", "--keep-last", "1", "--dry-run"];
    promised(
        &house,
        &dry,
        &[
            "dry_run",
            "forgotten",
            "kept",
            "snapshots.0.reason",
            "snapshots.0.action",
        ],
    );
    promised(&house, &["forget", &snapshot], &["forgotten", "snapshots.0.id"]);
    promised(
        &house,
        &["delete"],
        &["removed_packs", "freed_bytes", "after_bytes"],
    );
    promised(
        &house,
        &["prune"],
        &[
            "removed_packs",
            "rewritten_packs",
            "freed_bytes",
            "store_live_bytes",
        ],
    );
    promised(&house, &["version"], &["version"]);
}

#[test]
fn text_for_people_names_what_matters() {
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
    // Quiet: results, nothing else.
    let run = house.good(["--quiet", "backup", "--vm", "web", &image]);
    assert!(run.stderr.is_empty(), "{run:?}");
}

#[test]
fn help_teaches_and_completions_complete() {
    let house = House::empty();
    let help = String::from_utf8(house.good(["--help"]).stdout).unwrap();
    for words in [
        "Exit codes:",
        "COPAL_PASSWORD_FILE",
        "copal restore latest",
        "130",
    ] {
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
        assert!(
            help.contains(&format!("  {command} ")),
            "{command} is not in {help}"
        );
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
    assert_eq!(
        (&line["message_type"], &line["exit_code"]),
        (&"exit_error".into(), &2.into()),
        "{line}"
    );
    // Symptom: "the following required arguments were not provided:", and not a word of which.
    // Cause: only the first line of what the parser says was taken. Fix: all of it before the usage.
    let message = line["message"].as_str().unwrap();
    assert!(message.contains("not provided: --vm <NAME>"), "{message}");
    assert!(!message.contains("Usage"), "{message}");
    assert_eq!(house.run(["no-such-command"]).code, Some(2));
}
