//! Concurrent `copal init`: they create one repository, and lose none.

use crate::{
    disks::{Disk, MIB, assert_restored},
    harness::{House, PASSWORD, Run, id},
    loop_device::LoopDevice,
};
use std::{
    collections::BTreeSet,
    fs::File,
    io::Write,
    os::unix::fs::symlink,
    process::{Command, Stdio},
};

/// Symptom: an `init` that waited for its password replaced the repository that another `init` created
/// meanwhile, with all backups in it, and exited with 0.
/// Cause: it checked for a repository only once, before the password, and the final rename replaced an
/// existing name.
/// Fix: it checks again after the password, under a lock; the rename replaces nothing.
#[test]
fn a_late_init_leaves_the_repository_of_another_alone() {
    for backend in ["cow", "hostfs"] {
        let house = House::empty();
        let pipe = house.path("pipe");
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let words = ["init", "--backend", backend, "--password-file"];
        let mut late = house.command(words);
        late.arg(&pipe).stdout(Stdio::piped()).stderr(Stdio::piped());
        let late = late.spawn().unwrap();
        // Opens once the late one has reached its password.
        let mut password = File::options().write(true).open(&pipe).unwrap();
        house.good(["init"]);
        let disk = Disk::create(&house.path("disk.raw"), MIB, 100);
        let snapshot = id(&house.backup("web", &house.path("disk.raw")));
        writeln!(password, "{PASSWORD}").unwrap();
        drop(password);
        let late = Run::of(late.wait_with_output().unwrap());
        assert_eq!(late.code, Some(1), "{late:?}");
        assert!(late.sentence().contains("exists"), "{late:?}");
        assert_eq!(house.snapshots(), std::slice::from_ref(&snapshot));
        assert_restored(&house.restore(&snapshot, "out"), &disk.bytes);
        assert_eq!(std::fs::read_dir(house.repository()).unwrap().count(), 1);
    }
}

/// Symptom: `init --repo FILE --backend auto` measured the disk for half a minute, and only then said that it cannot
/// create the file, with exit code 1. For `/dev/null` it advised to use --allow-volatile.
/// Cause: only a store in the named directory was looked for beforehand, not that it can be a directory.
/// Fix: a place that can be none is refused first, with exit code 2 and its kind.
#[test]
fn a_place_that_can_be_no_directory_is_refused_before_anything_is_done() {
    let house = House::empty();
    std::fs::write(house.path("file"), b"data").unwrap();
    assert!(Command::new("mkfifo").arg(house.path("pipe")).status().unwrap().success());
    symlink(house.path("none"), house.path("dangling")).unwrap();
    symlink(house.path("circle"), house.path("circle")).unwrap();
    let names = || {
        let entries = std::fs::read_dir(house.path("")).unwrap();
        entries.map(|entry| entry.unwrap().file_name()).collect::<BTreeSet<_>>()
    };
    let before = names();
    for (place, part) in [
        (house.word("file"), "exists and is a regular file"),
        (house.word("pipe"), "is a pipe"),
        (house.word("dangling"), "is a link that leads nowhere"),
        (house.word("circle"), "is a link that leads nowhere"),
        ("/dev/null".to_owned(), "is a character device"),
        (house.word("file/below"), "file is a regular file"),
    ] {
        for backend in ["auto", "cow", "log", "hostfs"] {
            let run = house.run(["init", "--repo", &place, "--backend", backend]);
            assert_eq!(run.code, Some(2), "{place} {backend}: {run:?}");
            let sentence = run.sentence();
            assert!(sentence.contains(part) && sentence.contains("give another path"), "{sentence}");
            assert!(!sentence.contains("os error"), "{sentence}");
        }
    }
    assert_eq!(names(), before);
    assert_eq!(std::fs::read(house.path("file")).unwrap(), b"data");
}

/// Symptom: `init --size 1GiB` on a block device and with --backend hostfs succeeded, and nothing had that size.
/// Cause: only a store file has a size to begin with, and the option was ignored elsewhere.
/// Fix: there it is refused, and the sentence names the limit that a store of files can have.
#[test]
fn a_size_is_refused_where_no_file_takes_it() {
    let house = House::without_password();
    let run = house.run(["init", "--backend", "hostfs", "--size", "1GiB"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.sentence().contains("--store-limit"), "{run:?}");
    assert!(!house.repository().exists());
    house.good(["--store-limit", "1GiB", "init", "--backend", "hostfs"]);
    let Some(device) = LoopDevice::attach(&house.path("disk"), 96 * MIB) else { return };
    let house = House::elsewhere(&device.path).without_ring();
    for backend in ["cow", "auto"] {
        let run = house.run(["init", "--size", "64MiB", "--backend", backend]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.sentence().contains("all of the block device"), "{run:?}");
    }
    house.good(["init"]);
}

/// Symptom: of two concurrent `init`, each removed the files of the other.
/// Cause: both used the same unfinished name without a lock.
/// Fix: one `init` at a time works in a directory; the other must wait.
#[test]
fn a_second_init_is_told_to_wait() {
    let house = House::empty();
    std::fs::create_dir(house.repository()).unwrap();
    let unfinished = house.repository().join("store.copal.unfinished");
    std::fs::write(&unfinished, "somebody's work").unwrap();
    let lock = File::create(house.repository().join("init.lock")).unwrap();
    lock.lock().unwrap();
    let second = house.run(["init"]);
    assert_eq!(second.code, Some(11), "{second:?}");
    assert!(second.sentence().contains("wait"), "{second:?}");
    assert_eq!(std::fs::read(&unfinished).unwrap(), b"somebody's work");
    // Its owner was killed: its files do not hinder a new one.
    drop(lock);
    house.good(["init"]);
    house.check();
    assert_eq!(std::fs::read_dir(house.repository()).unwrap().count(), 1);
}
