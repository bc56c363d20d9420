//! Every documented failure: one sentence with the remedy, its exit code, nothing lost.

use crate::{
    disks::{Disk, MIB, Random, assert_restored, log_lines},
    harness::{House, Run, Running, id},
    qemu::have_qemu,
};
use serde_json::Value;
use std::{
    ffi::{OsStr, OsString},
    fs::OpenOptions,
    io::Write,
    os::unix::{
        ffi::{OsStrExt, OsStringExt},
        fs::PermissionsExt,
    },
    process::{Command, Stdio},
};

/// The same command with `--json`: the sentence arrives as an `exit_error` too.
fn exit_error(house: &House, words: &[&str]) -> Value {
    let run = Run::of(house.command(["--json"]).args(words).output().unwrap());
    let last = run.lines().pop().unwrap_or_else(|| panic!("no lines: {run:?}"));
    assert_eq!(last["message_type"], "exit_error", "{run:?}");
    assert_eq!(last["exit_code"], run.code.unwrap(), "{run:?}");
    assert!(last["code"].as_str().unwrap().len() > 2);
    last
}

/// Expects this exit code and all of these parts in the one sentence.
fn expect(house: &House, words: &[&str], code: i32, said: &[&str]) {
    let run = house.run(words);
    assert_eq!(run.code, Some(code), "{words:?}: {run:?}");
    assert!(run.stdout.is_empty(), "{run:?}");
    let sentence = run.sentence();
    for part in said {
        assert!(sentence.contains(part), "{words:?}: {part:?} is not in {sentence:?}");
    }
    let error = exit_error(house, words);
    assert_eq!(ageless(error["message"].as_str().unwrap()), ageless(sentence));
}

/// The sentence without the age of the holder, which changes with time.
fn ageless(sentence: &str) -> String {
    let Some((before, behind)) = sentence.split_once(", started ") else {
        return sentence.to_owned();
    };
    let behind = behind.split_once(" ago").map_or(behind, |(_, behind)| behind);
    format!("{before}{behind}")
}

#[test]
fn no_repository() {
    let house = House::empty();
    for words in
        [&["snapshots"][..], &["check"], &["stats"], &["prune"], &["restore", "latest", "--target", "x"]]
    {
        expect(&house, words, 10, &["no repository at", "copal init"]);
    }
    std::fs::write(house.repository(), "a file").unwrap();
    expect(&house, &["snapshots"], 10, &["not a repository"]);
    let run = Run::of(house.command(["stats"]).env_remove("COPAL_REPOSITORY").output().unwrap());
    assert_eq!(run.code, Some(2));
    assert!(run.sentence().contains("--repo"), "{run:?}");
}

#[test]
fn a_foreign_file_is_not_a_store() {
    let house = House::empty();
    std::fs::create_dir(house.repository()).unwrap();
    let mut random = Random::new(1);
    for bytes in [Vec::new(), vec![0; 1 << 20], random.bytes(1 << 20), log_lines(&mut random, 16 << 20)] {
        std::fs::write(house.store(), &bytes).unwrap();
        expect(&house, &["snapshots"], 10, &["not a Copal store"]);
        expect(&house, &["prune"], 10, &["not a Copal store"]);
        assert!(std::fs::read(house.store()).unwrap() == bytes, "the file was changed");
        expect(&house, &["init"], 1, &["exists"]);
    }
}

#[test]
fn wrong_and_missing_passwords() {
    let house = House::encrypted();
    Disk::create(&house.path("disk.raw"), 4 * MIB, 20);
    let snapshot = id(&house.backup("web", &house.path("disk.raw")));
    std::fs::write(house.path("wrong"), "not it\n").unwrap();
    std::fs::write(house.path("blank"), "\n").unwrap();
    let wrong = house.word("wrong");
    let target = house.word("out");
    for words in [
        &["snapshots"][..],
        &["restore", &snapshot, "--target", &target],
        &["backup", "--vm", "web", &target],
        &["prune", "--keep-last", "1"],
    ] {
        if words[0] == "backup" {
            std::fs::write(&target, b"image").unwrap();
        }
        let words = [&["--password-file", &wrong], words].concat();
        expect(&house, &words, 12, &["password", "check"]);
    }
    expect(&house, &["--password-file", &house.word("blank"), "stats"], 12, &["empty"]);
    expect(&house, &["--password-file", &house.word("none"), "stats"], 12, &["cannot read the password"]);
    expect(&house, &["--insecure-no-password", "stats"], 12, &["encrypted"]);
    let run = Run::of(house.command(["stats"]).env_remove("COPAL_PASSWORD_FILE").output().unwrap());
    assert_eq!(run.code, Some(12));
    assert!(run.sentence().contains("COPAL_PASSWORD_FILE"), "{run:?}");
    let mut given = house.command(["stats"]);
    given.env_remove("COPAL_PASSWORD_FILE").env("COPAL_PASSWORD", crate::harness::PASSWORD);
    assert_eq!(Run::of(given.output().unwrap()).code, Some(0));
    assert_eq!(house.snapshots(), [snapshot]);

    // A password for a repository without encryption suggests an exchanged store.
    let open = House::plain();
    let words = ["--password-file", &wrong, "stats"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_copal"));
    command.args(words).arg("--repo").arg(open.repository()).args(["--allow-cow", "--allow-volatile"]);
    let run = Run::of(command.env_remove("COPAL_PASSWORD_FILE").output().unwrap());
    assert_eq!(run.code, Some(12), "{run:?}");
    assert!(run.sentence().contains("not encrypted"), "{run:?}");
}

#[test]
fn init_wants_a_password_or_a_clear_no() {
    let house = House::empty();
    let run = Run::of(house.command(["init"]).env_remove("COPAL_PASSWORD_FILE").output().unwrap());
    assert_eq!(run.code, Some(12), "{run:?}");
    assert!(run.sentence().contains("--insecure-no-password"), "{run:?}");
    assert!(!house.repository().exists());
    house.good(["init", "--size", "64MiB"]);
    let before = std::fs::read(house.store()).unwrap();
    expect(&house, &["init"], 1, &["exists", "nothing was changed"]);
    assert!(std::fs::read(house.store()).unwrap() == before);
}

#[test]
fn an_init_with_too_small_a_store_says_how_large_it_has_to_be() {
    let house = House::empty();
    expect(&house, &["init", "--size", "1M"], 2, &["1.00 MB", "64MiB"]);
    assert!(!house.repository().exists());
}

/// Symptom: a name of 256 bytes was answered with the system's error, a directory that is no store with `does
/// not exist`.
/// Cause: neither case had a sentence. Fix: both have.
#[test]
fn names_that_are_too_long_and_directories_that_are_no_store() {
    let house = House::plain();
    Disk::create(&house.path("disk.raw"), MIB, 35);
    let snapshot = id(&house.backup("web", &house.path("disk.raw")));
    let long = house.word(&"x".repeat(256));
    for words in [
        &["--repo", &long, "init"][..],
        &["--repo", &long, "init", "--backend", "hostfs"],
        &["--repo", &long, "stats"],
        &["restore", &snapshot, "--target", &long],
        &["restore", &snapshot, "--target", &long[..long.len() - 3]],
    ] {
        expect(&house, words, 1, &["longer than its file system takes", "shorter"]);
    }
    let empty = house.path("empty");
    std::fs::create_dir_all(empty.join("store.files")).unwrap();
    let empty = empty.to_str().unwrap();
    expect(&house, &["--repo", empty, "stats"], 10, &["not a Copal store"]);
    expect(&house, &["kv", "stats", "--store", empty], 10, &["not a Copal store"]);
}

#[test]
fn an_init_that_was_killed_leaves_room_for_the_next() {
    let house = House::empty();
    std::fs::create_dir(house.repository()).unwrap();
    std::fs::write(house.repository().join("store.copal.unfinished"), vec![1; 1 << 20]).unwrap();
    expect(&house, &["stats"], 10, &["no repository"]);
    house.good(["init", "--size", "64MiB"]);
    house.check();
    assert_eq!(std::fs::read_dir(house.repository()).unwrap().count(), 1);
}

#[test]
fn missing_and_unreadable_sources() {
    let house = House::plain();
    let image = house.word("none.raw");
    expect(&house, &["backup", "--vm", "web", &image], 3, &["cannot open", "none.raw", "check the path"]);
    let dir = house.word(".");
    expect(&house, &["backup", "--vm", "web", &dir], 3, &["directory"]);
    expect(&house, &["backup", "--vm", "web", "nbd+unix:///x?socket=/nowhere"], 3, &["no NBD server"]);
    expect(&house, &["backup", "--vm", "web", "nbd+unix:///x"], 3, &["NBD address"]);
    std::fs::write(house.path("guest.raw"), b"QFI\xfb").unwrap();
    expect(&house, &["backup", "--vm", "web", &house.word("guest.raw")], 3, &["--format raw"]);
    std::fs::write(house.path("x.raw"), b"x").unwrap();
    let list = house.word("none.json");
    let words = ["backup", "--vm", "web", "--changed-extents", &list, &house.word("x.raw")];
    // Symptom: for a missing list, the error advised to look at a disk. Cause: the sentence for images was
    // used.
    // Fix: a separate sentence, which says how to make the list and how to do without.
    let advice = ["none.json", "nbdinfo --json", "leave --changed-extents out"];
    expect(&house, &words, 3, &advice);
    // Symptom: `zstdcat none.zst | copal backup --vm web -` published an empty disk as the newest snapshot.
    // Cause: the end of a pipe is the end of a disk, even after an error. Fix: a disk has at least a byte.
    expect(&house, &["backup", "--vm", "web", "-"], 3, &["is empty"]);
    assert!(house.snapshots().is_empty());
}

/// Symptom: sentences with the cause and without a remedy. Cause: they ended with the system's error.
/// Fix: a further clause: the place to look at, or the form of a snapshot's name.
#[test]
fn names_that_mean_nothing() {
    let house = House::plain();
    Disk::create(&house.path("disk.raw"), 2 * MIB, 21);
    let snapshot = id(&house.backup("web", &house.path("disk.raw")));
    let target = house.word("out");
    expect(
        &house,
        &["restore", "ffffffff", "--target", &target],
        1,
        &["no snapshot", "ffffffff", "copal snapshots"],
    );
    expect(&house, &["restore", "latest", "--vm", "db", "--target", &target], 1, &["db"]);
    expect(&house, &["restore", &snapshot, "--disk", "sdz", "--target", &target], 1, &["sdz", "sda"]);
    expect(&house, &["forget", "ffffffff"], 1, &["ffffffff"]);
    expect(&house, &["forget", "latest"], 2, &["ids"]);
    expect(&house, &["forget"], 2, &["--keep-last"]);
    expect(
        &house,
        &["restore", &snapshot, "--target", &house.word("no/such/dir/out")],
        1,
        &["cannot create", "check the path"],
    );
    expect(&house, &["restore", "zz", "--target", &target], 1, &["4 digits"]);
    expect(&house, &["--memory", "10M", "restore", &snapshot, "--target", &target], 2, &["too little"]);
    assert!(!house.path("out").exists());
}

#[test]
fn a_wrong_number_of_threads_is_refused() {
    let house = House::plain();
    house.good(["--threads", "1024", "check"]);
    for wrong in ["0", "four", "-1", "1025", "99999999999999999999"] {
        let by_option = house.command(["check", &format!("--threads={wrong}")]).output().unwrap();
        let by_variable = house.command(["check"]).env("COPAL_THREADS", wrong).output().unwrap();
        for run in [by_option, by_variable].map(Run::of) {
            assert_eq!(run.code, Some(2), "{run:?}");
            let sentence = format!("{wrong:?} is not a number of threads from 1 to 1024, such as 4");
            assert!(run.stderr.contains(&sentence) && run.stderr.contains("--threads"), "{run:?}");
        }
    }
    let run = Run::of(house.command(["check"]).env("COPAL_THREADS", "3").output().unwrap());
    assert_eq!(run.code, Some(0), "{run:?}");
}

/// Symptom: `copal restore latest` without --vm silently restored the snapshot of the VM that was backed up
/// last.
/// Cause: `latest` was looked for among all VMs.
/// Fix: with snapshots of several VMs it needs --vm.
#[test]
fn latest_needs_a_vm_once_there_are_several() {
    let house = House::plain();
    let disk = Disk::create(&house.path("disk.raw"), MIB, 23);
    house.backup("web", &house.path("disk.raw"));
    assert_restored(&house.restore("latest", "only"), &disk.bytes);
    let other = id(&house.backup("db", &house.path("disk.raw")));
    let out = house.word("out");
    for words in [&["restore", "latest", "--target", &out][..], &["ls", "latest"], &["verify", "latest"]] {
        expect(&house, words, 2, &["--vm", "db, web"]);
    }
    assert!(!house.path("out").exists());
    house.good(["ls", "latest", "--vm", "db"]);
    // All snapshots of one of them are removed: there is one VM again.
    house.good(["forget", &other]);
    house.good(["ls", "latest"]);
}

#[test]
fn a_second_process_is_told_to_wait() {
    let house = House::plain();
    let disk = Disk::create(&house.path("disk.raw"), 2 * MIB, 22);
    house.backup("web", &house.path("disk.raw"));
    let mut first = Running::start(&house, ["backup", "--vm", "piped", "-"]);
    first.wait_for("status");
    let image = house.word("disk.raw");
    for words in [&["backup", "--vm", "web", &image][..], &["snapshots"], &["prune"]] {
        expect(&house, words, 11, &["another process", "wait"]);
    }
    first.child.stdin.as_mut().unwrap().write_all(b"a disk").unwrap();
    let run = first.end();
    assert_eq!(run.code, Some(0), "{run:?}");
    // Readers do not exclude each other; no data of the first was lost.
    assert_eq!(house.snapshots().len(), 2);
    house.check();
    let latest = house.path("out");
    house.good(["restore", "latest", "--vm", "web", "--target", latest.to_str().unwrap()]);
    assert_restored(&latest, &disk.bytes);
}

#[test]
fn a_full_store_keeps_its_data() {
    let house = House::plain();
    let small = Disk::create(&house.path("small.raw"), 4 * MIB, 23);
    let kept = id(&house.backup("small", &house.path("small.raw")));
    std::fs::write(house.path("big.raw"), Random::new(24).bytes(160 << 20)).unwrap();
    let big = house.word("big.raw");
    // Quiet: a slow machine would show its progress beside the sentence.
    let words = ["--quiet", "--store-limit", "96MiB", "backup", "--vm", "big", &big];
    expect(&house, &words, 28, &["full", "copal prune"]);
    assert_eq!(house.snapshots(), std::slice::from_ref(&kept));
    assert_restored(&house.restore(&kept, "small.out"), &small.bytes);
    house.check();
    // Space again: after pruning the data of the failed backups, the store accepts new ones.
    house.good(["--store-limit", "96MiB", "prune"]);
    let again =
        house.summary(["--store-limit", "96MiB", "backup", "--vm", "small", &house.word("small.raw")]);
    assert_eq!(again["counts"]["new_bytes"], 0);
    // With more space, the large one fits.
    house.backup("big", &house.path("big.raw"));
    house.check();
}

#[test]
fn a_read_only_store_serves_and_does_not_take() {
    let house = House::plain();
    let disk = Disk::create(&house.path("disk.raw"), 4 * MIB, 25);
    let snapshot = id(&house.backup("web", &house.path("disk.raw")));
    let before = std::fs::read(house.store()).unwrap();
    std::fs::set_permissions(house.store(), PermissionsExt::from_mode(0o444)).unwrap();
    std::fs::set_permissions(house.repository(), PermissionsExt::from_mode(0o555)).unwrap();
    let image = house.word("disk.raw");
    for words in [
        &["backup", "--vm", "web", &image][..],
        &["forget", &snapshot],
        &["prune"],
        &["delete"],
        &["repair", "index"],
    ] {
        expect(&house, words, 21, &["read-only", "nothing was changed"]);
    }
    assert_eq!(house.snapshots(), std::slice::from_ref(&snapshot));
    assert_restored(&house.restore(&snapshot, "out"), &disk.bytes);
    house.good(["ls", &snapshot]);
    house.good(["stats"]);
    house.good(["verify", &snapshot]);
    house.check();
    assert!(std::fs::read(house.store()).unwrap() == before, "a reader changed the store");
    std::fs::set_permissions(house.repository(), PermissionsExt::from_mode(0o755)).unwrap();
}

/// Symptom: after a store file lost one byte, nothing in it could be read. Cause: any length but the recorded
/// one was refused.
/// Fix: a missing unused part does not matter; the next command that writes restores the length of the file.
#[test]
fn a_store_that_lost_a_byte_of_free_space_opens_with_a_warning() {
    let house = House::plain();
    Disk::create(&house.path("disk.raw"), 8 * MIB, 27);
    house.backup("web", &house.path("disk.raw"));
    let len = || std::fs::metadata(house.store()).unwrap().len();
    let whole = len();
    OpenOptions::new().write(true).open(house.store()).unwrap().set_len(whole - 1).unwrap();
    let listed = house.good(["snapshots"]);
    assert!(listed.stderr.contains("has lost its last"), "{listed:?}");
    assert_eq!(len(), whole - 1, "a reader changes nothing");
    house.backup("web", &house.path("disk.raw"));
    assert_eq!(len(), whole);
    house.check();
    assert!(!house.good(["snapshots"]).stderr.contains("has lost"));
}

#[test]
fn a_truncated_store_is_refused_and_left_alone() {
    let house = House::plain();
    Disk::create(&house.path("disk.raw"), 8 * MIB, 26);
    let snapshot = id(&house.backup("web", &house.path("disk.raw")));
    let whole = std::fs::read(house.store()).unwrap();
    let image = house.word("disk.raw");
    let target = house.word("out");
    for part in [whole.len() / 4 - 4096, 1 << 20, 8192, 4096] {
        OpenOptions::new().write(true).open(house.store()).unwrap().set_len(part as u64).unwrap();
        for words in [
            &["snapshots"][..],
            &["restore", &snapshot, "--target", &target],
            &["backup", "--vm", "web", &image],
        ] {
            expect(&house, words, 20, &["cut off"]);
        }
        assert!(!house.path("out").exists());
        assert!(std::fs::read(house.store()).unwrap() == whole[..part], "the file was changed");
        std::fs::write(house.store(), &whole).unwrap();
    }
    house.check();
}

/// A run with a limit of the shell's `ulimit`.
fn limited(house: &House, limit: &str, words: &[&str]) -> Run {
    let run = house.command(words);
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("ulimit {limit}; exec \"$@\"")).arg("sh");
    shell.arg(run.get_program()).args(run.get_args());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    Run::of(shell.stdin(Stdio::null()).output().unwrap())
}

/// Symptom: without free descriptors, an intact store was reported as damaged (20) or missing (10).
/// Cause: readers of superblocks and checkpoint took each error for damage. Fix: a transient read error is a
/// separate error with exit code 1.
#[test]
fn a_system_without_descriptors_is_no_damage() {
    for house in [House::of_files(), House::plain()] {
        Disk::create(&house.path("disk.raw"), MIB, 120);
        house.backup("web", &house.path("disk.raw"));
        let (image, out) = (house.word("disk.raw"), house.word("out"));
        let mut refused = 0;
        for descriptors in 6..16 {
            for words in [
                &["snapshots"][..],
                &["check"],
                &["backup", "--vm", "web", &image],
                &["restore", "latest", "--vm", "web", "--target", &out, "--force"],
            ] {
                let run = limited(&house, &format!("-n {descriptors}"), words);
                let code = run.code.unwrap_or(-1);
                assert!(![10, 20, 101, -1].contains(&code), "{descriptors} {words:?}: {run:?}");
                refused += u32::from(code == 1);
            }
        }
        assert!(refused > 0, "some of these runs find no descriptor");
        house.check();
    }
}

/// Symptom: a write beyond the file size limit of a process killed it. Cause: SIGXFSZ ends a process without
/// a handler. Fix: it is handled, and the write fails like on a full disk.
#[test]
fn a_limit_on_the_length_of_files_is_an_error() {
    let house = House::empty();
    let run = limited(&house, "-f 1000", &["init", "--size", "64MiB"]);
    assert_eq!(run.code, Some(28), "{run:?}");
    house.good(["init", "--size", "64MiB"]);
    let disk = Disk::create(&house.path("disk.raw"), 2 * MIB, 121);
    let snapshot = id(&house.backup("web", &house.path("disk.raw")));
    let out = house.word("out");
    let run = limited(&house, "-f 1000", &["restore", &snapshot, "--target", &out]);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(!house.path("out").exists(), "an unfinished restore has no name");
    assert_restored(&house.restore(&snapshot, "whole"), &disk.bytes);
}

#[test]
fn paths_need_not_be_utf_8() {
    let house = House::empty();
    let odd = |name: &[u8]| house.path("x").with_file_name(OsStr::from_bytes(name));
    let (repository, password, out) = (odd(b"r\xff"), odd(b"p\xfe"), odd(b"o\xfd"));
    std::fs::rename(house.path("password"), &password).unwrap();
    let disk = Disk::create(&house.path("disk.raw"), MIB, 122);
    let image = house.word("disk.raw");
    let run = |words: &[&str], last: &OsStr| {
        let mut command = house.command(words);
        command.env_remove("COPAL_PASSWORD_FILE");
        command.arg("--password-file").arg(&password).arg("--repo").arg(&repository).arg(last);
        Run::of(command.output().unwrap())
    };
    let good = |words: &[&str], last: &OsStr| {
        let run = run(words, last);
        assert_eq!(run.code, Some(0), "{words:?}: {run:?}");
    };
    good(&["init", "--size", "64MiB"], OsStr::new("--json"));
    good(&["backup", "--vm", "web", &image], OsStr::new("--json"));
    good(&["snapshots"], OsStr::new("--json"));
    for (force, json) in [(None, None), (Some("--force"), Some("--json"))] {
        let words = ["restore", "latest", "--vm", "web"].into_iter().chain(force).chain(json);
        let words: Vec<&str> = words.chain(["--target"]).collect();
        // The argument of --target comes last.
        let mut command = house.command(["--password-file"]);
        command.env_remove("COPAL_PASSWORD_FILE");
        command.arg(&password).arg("--repo").arg(&repository).args(&words).arg(&out);
        let run = Run::of(command.output().unwrap());
        assert_eq!(run.code, Some(0), "{run:?}");
        assert_restored(&out, &disk.bytes);
    }
    good(&["check"], OsStr::new("--json"));
    // Images as well, alone or as one of several disks.
    let image = odd(b"i\xfc.raw");
    std::fs::rename(house.path("disk.raw"), &image).unwrap();
    good(&["backup", "--vm", "web"], image.as_os_str());
    let named = OsString::from_vec([b"--disk=sda=", image.as_os_str().as_bytes()].concat());
    good(&["backup", "--vm", "web"], &named);
    if have_qemu() {
        let qcow2 = odd(b"i\xfc.qcow2");
        let mut convert = Command::new("qemu-img");
        convert.args(["convert", "-f", "raw", "-O", "qcow2"]);
        assert!(convert.arg(&image).arg(&qcow2).status().unwrap().success());
        good(&["backup", "--vm", "web"], qcow2.as_os_str());
    }
    let mut command = house.command(["--password-file"]);
    command.env_remove("COPAL_PASSWORD_FILE");
    command.arg(&password).arg("--repo").arg(&repository);
    command.args(["restore", "latest", "--vm", "web", "--force", "--target"]);
    let run = Run::of(command.arg(&out).output().unwrap());
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_restored(&out, &disk.bytes);
}

/// Symptom: `--repo s3://b/x` created a local directory and reported success, and so did a target. Cause: a
/// text without `copal://` was a path. Fix: a text with an unknown scheme is refused, with the list of
/// schemes. Object stores came later, so `s3://b/x` is an address now.
#[test]
fn an_address_of_another_kind_is_no_path() {
    let house = House::plain();
    Disk::create(&house.path("disk.raw"), MIB, 123);
    house.backup("web", &house.path("disk.raw"));
    for address in ["b2://b/x", "sftp://h/x", "copal:/x", "copal:x", "nbd:unix:/x", "COPAL://h:7400/v"] {
        expect(&house, &["init", "--repo", address], 2, &["copal://", address]);
        expect(&house, &["kv", "stats", "--repo", address], 2, &["copal://", address]);
        let words = ["restore", "latest", "--vm", "web", "--target", address];
        expect(&house, &words, 2, &["nbd://", address]);
    }
    expect(&house, &["kv", "stats", "--repo", "s3://b/x"], 2, &["object store", "--store DIR"]);
    expect(&house, &["init", "--repo", "s3://b"], 2, &["no prefix", "s3://BUCKET/PREFIX"]);
    let mut made = house.command(["init", "--size", "64MiB", "--repo", "./s3:/x"]);
    made.current_dir(house.path("."));
    let run = Run::of(made.output().unwrap());
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(house.path("s3:/x/store.copal").exists());
}
