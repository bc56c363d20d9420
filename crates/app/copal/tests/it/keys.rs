//! Role keys: each holder's key file, and the commands that it allows.

use crate::{
    cluster::Served,
    disks::{Disk, MIB, assert_restored},
    harness::{House, Run, id},
};
use copal_testkit::Random;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;

/// Runs with a key in place of the password.
fn with_key(house: &House, key: &str, words: &[&str]) -> Run {
    let mut command = house.command(["--json"]);
    command.env_remove("COPAL_PASSWORD_FILE").env("COPAL_KEY_FILE", house.path(key)).args(words);
    Run::of(command.output().unwrap())
}

fn good(house: &House, key: &str, words: &[&str]) -> Value {
    let run = with_key(house, key, words);
    assert_eq!(run.code, Some(0), "{words:?}: {run:?}");
    run.summary()
}

/// Expects a refusal with this exit code, in a sentence and as JSON with the same text.
fn bad(house: &House, key: &str, code: i32, words: &[&str]) -> String {
    let run = with_key(house, key, words);
    assert_eq!(run.code, Some(code), "{words:?}: {run:?}");
    let told = run.lines().pop().unwrap();
    assert_eq!((&told["message_type"], &told["exit_code"]), (&"exit_error".into(), &code.into()));
    assert_eq!(told["message"], run.sentence());
    run.sentence().to_owned()
}

fn add(house: &House, role: &str, file: &str) -> Value {
    house.summary(["key", "add", "--role", role, "--out", &house.word(file)])
}

#[test]
fn a_backup_key_backs_up_and_a_delete_key_takes_away() {
    for house in [House::encrypted(), House::fleet()] {
        let mut disk = Disk::create(&house.path("disk.raw"), 4 * MIB, 90);
        let image = house.word("disk.raw");
        let before = house.backup("web", &house.path("disk.raw"));
        let before_bytes = disk.bytes.clone();
        let made = add(&house, "backup", "backup.key");
        assert_eq!((&made["role"], &made["command"]), (&"backup".into(), &"key add".into()));
        add(&house, "delete", "delete.key");
        add(&house, "admin", "admin.key");
        // The file is readable by its owner alone, and its content appears nowhere else.
        let mode = std::fs::metadata(house.path("backup.key")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read_to_string(house.path("backup.key")).unwrap();
        let secret = text.split_whitespace().nth(4).unwrap();
        assert!(secret.len() == 64 && !made.to_string().contains(secret));

        disk.mutate(91);
        let after = good(&house, "backup.key", &["backup", "--vm", "web", &image]);
        let (before, after) = (id(&before), id(&after));
        let target = house.word("by-key.out");
        good(&house, "backup.key", &["restore", &before, "--target", &target]);
        assert_restored(&house.path("by-key.out"), &before_bytes);
        good(&house, "backup.key", &["check", "--read-data"]);
        good(&house, "backup.key", &["snapshots"]);
        good(&house, "backup.key", &["forget", &before, "--dry-run"]);
        for words in [
            &["forget", &before][..],
            &["hold", &before],
            &["delete", &before],
            &["delete"],
            &["prune"],
            &["prune", "--keep-last", "1"],
            &["vm", "rm", "web", "--force"],
            &["repair", "leak", "--vm", "web"],
            &["key", "add", "--role", "backup", "--out", &house.word("more.key")],
            &["key", "rm", "0"],
        ] {
            let sentence = bad(&house, "backup.key", 21, words);
            assert!(sentence.contains("is for backup"), "{words:?}: {sentence}");
        }
        assert!(!house.path("more.key").exists(), "a key that opens nothing");
        assert_eq!(house.snapshots(), [before.clone(), after.clone()]);
        // A verification is a read; only a key with more rights may record it.
        let verified = with_key(&house, "backup.key", &["verify", &after]);
        assert_eq!(verified.code, Some(0), "{verified:?}");
        let sentence = bad(&house, "delete.key", 21, &["key", "rm", "0"]);
        assert!(sentence.contains("is for delete"), "{sentence}");

        good(&house, "delete.key", &["forget", &before]);
        good(&house, "delete.key", &["prune"]);
        assert_eq!(house.snapshots(), std::slice::from_ref(&after));
        good(&house, "backup.key", &["backup", "--vm", "web", &image]);
        house.check();
        assert_restored(&house.restore(&after, "after.out"), &disk.bytes);
    }
}

#[test]
fn keys_are_listed_and_removed_but_for_the_last_that_opens_everything() {
    let house = House::encrypted();
    let made = add(&house, "backup", "backup.key");
    add(&house, "admin", "admin.key");
    let listed = house.summary(["key", "ls"]);
    let keys = listed["keys"].as_array().unwrap();
    assert_eq!(keys.len(), 3, "{listed}");
    assert_eq!(
        (&keys[0]["id"], &keys[0]["opened_by"], &keys[0]["is_own"]),
        (&"0".into(), &"password".into(), &true.into())
    );
    assert!(keys.iter().all(|key| key["is_genuine"] == true), "{listed}");
    let text = String::from_utf8(house.good(["key", "ls"]).stdout).unwrap();
    for part in ["backup", "admin", "password", made["id"].as_str().unwrap()] {
        assert!(text.contains(part), "{part}: {text}");
    }

    let backup = made["id"].as_str().unwrap();
    let removed = good(&house, "admin.key", &["key", "rm", &backup[..8]]);
    assert_eq!(removed["id"], backup, "{removed}");
    let sentence = bad(&house, "backup.key", 12, &["snapshots"]);
    assert!(sentence.contains("wrong key"), "{sentence}");
    good(&house, "admin.key", &["key", "rm", "0"]);
    // The password no longer opens the repository, and the last key stays.
    assert_eq!(house.run(["snapshots"]).code, Some(12));
    let listed = good(&house, "admin.key", &["key", "ls"]);
    let last = listed["keys"][0]["id"].as_str().unwrap();
    let sentence = bad(&house, "admin.key", 21, &["key", "rm", last]);
    assert!(sentence.contains("copal key add --role admin"), "{sentence}");
    assert_eq!(with_key(&house, "admin.key", &["key", "rm", "ffff"]).code, Some(1));
}

#[test]
fn wrong_key_arguments_are_refused_in_a_sentence() {
    let house = House::encrypted();
    // An existing file is not changed.
    std::fs::write(house.path("taken"), "mine").unwrap();
    let refused = house.run(["key", "add", "--role", "backup", "--out", &house.word("taken")]);
    assert_eq!(refused.code, Some(21), "{refused:?}");
    assert_eq!(std::fs::read(house.path("taken")).unwrap(), b"mine");
    assert_eq!(house.summary(["key", "ls"])["keys"].as_array().unwrap().len(), 1);
    for (words, code, part) in [
        (&["key", "add", "--role", "king", "--out", "x"][..], 2, "king"),
        (&["key", "add", "--role", "backup"], 2, "--out"),
        (&["key", "add", "--role", "backup", "--out", "/no/such/dir/key"], 1, "no key was added"),
        (&["key", "rm", "77"], 1, "no key named 77"),
        (&["--key", "/no/such/key", "snapshots"], 12, "--key"),
    ] {
        let refused = house.run(words);
        assert_eq!(refused.code, Some(code), "{words:?}: {refused:?}");
        assert!(refused.stderr.contains(part), "{words:?}: {refused:?}");
    }
    let taken = bad(&house, "taken", 12, &["snapshots"]);
    assert!(taken.contains("no key file of Copal"), "{taken}");

    // A repository without encryption has no roles, and none begins with a key.
    let plain = House::plain();
    let refused = plain.run(["key", "add", "--role", "backup", "--out", &plain.word("key")]);
    assert_eq!(refused.code, Some(21), "{refused:?}");
    assert!(!plain.path("key").exists());
    add(&house, "backup", "backup.key");
    let refused = plain.run(["--key", &house.word("backup.key"), "snapshots"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    let empty = House::empty();
    let refused = empty.run(["--key", &house.word("backup.key"), "init"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(!empty.repository().exists());
}

/// A correctly configured host of a fleet: a client with the rights read and create, and a backup key. Each
/// alone leaves a way to remove snapshots.
#[test]
fn a_host_in_a_cluster_with_a_backup_key_and_no_right_to_delete_takes_nothing_away() {
    let cluster = Served::start(&[]);
    let password = cluster.file("pw", b"secret\n");
    let repo = format!("copal://127.0.0.1:{}/vms", cluster.port);
    let mut bytes = vec![0; 3 << 20];
    Random::new(7).text(&mut bytes);
    let disk = cluster.file("disk", &bytes);
    let path = |name: &str| cluster.scratch.path().join(name).to_str().unwrap().to_owned();
    let (host, key, pruner) = (path("host.json"), path("host.key"), path("prune.key"));
    let admin = |words: &[&str]| {
        let common = ["--repo", &repo, "--password-file", &password];
        cluster.good(&[&common, words].concat())
    };
    admin(&["init"]);
    admin(&["backup", "--vm", "web", &disk]);
    admin(&["key", "add", "--role", "backup", "--out", &key]);
    admin(&["key", "add", "--role", "delete", "--out", &pruner]);
    cluster.good(&["client", "add", "host", "--path", "vms", "--rights", "read,create", "--out", &host]);
    let common = ["--repo", &repo, "--cluster", &host, "--key", &key];
    let good = |words: &[&str]| cluster.good(&[&common, words].concat());
    let denied = |words: &[&str]| cluster.bad(21, &[&common, words].concat());
    for _ in 0..2 {
        good(&["backup", "--vm", "web", &disk]);
    }
    let told: Value = serde_json::from_str(&good(&["snapshots", "--json"])).unwrap();
    let snapshots = told["snapshots"].as_array().unwrap();
    assert_eq!(snapshots.len(), 3, "{told}");
    let oldest = snapshots[0]["id"].as_str().unwrap();
    denied(&["forget", oldest]);
    denied(&["prune", "--keep-last", "1"]);
    denied(&["vm", "rm", "web", "--force"]);
    denied(&["key", "rm", "0"]);
    let target = path("restored");
    good(&["restore", oldest, "--target", &target]);
    assert!(std::fs::read(&target).unwrap() == bytes);
    // The host that prunes has another key, and the right delete.
    cluster.good(&["--repo", &repo, "--key", &pruner, "prune", "--keep-last", "1"]);
    good(&["backup", "--vm", "web", &disk]);
    good(&["check", "--read-data"]);
}
