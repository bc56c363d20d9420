//! Read-only storage: read commands work, the others fail with their exit code.

use crate::{
    disks::{Disk, MIB, assert_restored},
    harness::{House, Run, id},
    loop_device::LoopDevice,
};
use std::process::Command;

/// The command that gives a process a read-only view of a directory here; `None` if this user cannot mount.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn mounter() -> Option<&'static [&'static str]> {
    let ways: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];
    let works = |way: &&[&str]| {
        let tried = Command::new("unshare").args(*way).args(["mount", "--bind", "/", "/"]).output();
        tried.is_ok_and(|tried| tried.status.success())
    };
    let way = ways.into_iter().find(works);
    if way.is_none() {
        eprintln!("skipped: mounting needs root or unshare");
    }
    way
}

/// Runs `copal` with the repository's directory mounted read-only.
fn on_read_only(house: &House, mounter: &[&str], words: &[&str]) -> Run {
    let copal = house.command(words);
    let script = "mount --bind \"$0\" \"$0\" && mount -o remount,ro,bind \"$0\" && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(mounter).args(["sh", "-c", script]).arg(house.repository());
    command.arg(copal.get_program()).args(copal.get_args());
    for (name, value) in copal.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Run::of(command.output().unwrap())
}

/// Symptom: on a read-only file system a command that writes ended with exit code 1 instead of 21. It advised
/// to open the store read-only, for which there is no option; a store of files reported that a flush of 0
/// bytes failed.
/// Cause: the refusal was expected among plain I/O errors, and is a separate case.
/// Fix: these cases are handled at every operation that the system refuses.
#[test]
fn a_read_only_file_system_serves_and_does_not_take() {
    let Some(mounter) = mounter() else { return };
    for house in [House::plain(), House::of_files()] {
        let disk = Disk::create(&house.path("disk.raw"), 2 * MIB, 110);
        let snapshot = id(&house.backup("web", &house.path("disk.raw")));
        let image = house.word("disk.raw");
        for words in [&["backup", "--vm", "web", &image][..], &["forget", &snapshot], &["prune"]] {
            let run = on_read_only(&house, mounter, words);
            assert_eq!(run.code, Some(21), "{run:?}");
            let sentence = run.sentence();
            assert!(sentence.contains("read-only"), "{sentence}");
            assert!(sentence.contains("nothing was changed"), "{sentence}");
            assert!(!sentence.contains("flush") && !sentence.contains("open it"), "{sentence}");
        }
        let out = house.word("out");
        for words in
            [&["snapshots"][..], &["check", "--read-data"], &["restore", &snapshot, "--target", &out]]
        {
            let run = on_read_only(&house, mounter, words);
            assert_eq!(run.code, Some(0), "{run:?}");
        }
        assert_restored(&house.path("out"), &disk.bytes);
        assert_eq!(house.snapshots(), [snapshot]);
        house.check();
    }
    let house = House::empty();
    std::fs::create_dir(house.repository()).unwrap();
    let run = on_read_only(&house, mounter, &["init"]);
    assert_eq!(run.code, Some(21), "{run:?}");
}

/// Symptom: on a read-only block device, `init --force` and `device scrub` advised to change permissions; the scrub
/// also logged an error of the engine.
/// Cause: the system opens such a device for writing, and refuses each write for lack of a permission.
/// Fix: whether the device takes writes is read from it before it is opened for writing.
#[test]
fn a_read_only_block_device_is_called_so() {
    let scratch = House::empty();
    let disk = scratch.path("disk");
    let Some(device) = LoopDevice::attach(&disk, 96 * MIB) else { return };
    let house = House::elsewhere(&device.path).without_ring();
    house.good(["init"]);
    drop(device);
    let Some(device) = LoopDevice::attach_read_only(&disk) else { return };
    let house = House::elsewhere(&device.path).without_ring();
    let before = std::fs::read(&disk).unwrap();
    let commands: [(&[&str], i32); 7] = [
        (&["init"], 2),
        (&["init", "--force"], 2),
        (&["init", "--force", "--backend", "auto"], 2),
        (&["device", "scrub", device.word()], 2),
        (&["device", "scrub", device.word(), "--bytes-per-second", "0"], 2),
        (&["device", "probe", device.word(), "--force"], 2),
        (&["prune"], 21),
    ];
    for (words, code) in commands {
        let run = house.run(words);
        assert_eq!(run.code, Some(code), "{words:?}: {run:?}");
        let sentence = run.sentence();
        assert!(sentence.contains("read-only") && sentence.contains("nothing was changed"), "{sentence}");
        assert!(!sentence.contains("permission"), "{sentence}");
    }
    house.good(["snapshots"]);
    house.good(["device", "fsck", device.word()]);
    assert!(std::fs::read(&disk).unwrap() == before);
}
