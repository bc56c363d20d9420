//! `copal device probe`: its figures, its refusals, and its traces on the disk (none).

use crate::{
    disks::MIB,
    harness::{House, Run, Running},
    loop_device::{FreezableMount, LoopDevice},
};
use rustix::process::Signal;
use std::{fs::File, io::Write, os::unix::fs::PermissionsExt, path::Path, process::Command};

/// Names in a directory.
fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn file_of(path: &Path, bytes: u64) {
    File::create(path).unwrap().set_len(bytes).unwrap();
}

/// A scratch directory with a file to probe beside.
fn with_file() -> (House, String) {
    let house = House::empty();
    std::fs::create_dir(house.path("disk")).unwrap();
    file_of(&house.path("disk/file"), 64 * MIB);
    let file = house.word("disk/file");
    (house, file)
}

/// Symptom: a probe that was killed left its file, and one on a wrong path destroyed data. This is the whole of
/// its contract with the disk: figures and a reason, and nothing left.
#[test]
fn a_probe_prints_figures_and_leaves_nothing_behind() {
    let (house, file) = with_file();
    let summary = house.summary(["device", "probe", &file, "--out", &house.word("profile")]);
    for name in ["read_iops", "write_iops", "read_bytes_per_s", "write_bytes_per_s", "gap_bytes", "read_ns"] {
        assert!(summary[name].as_u64().unwrap() > 0, "{name}: {summary}");
    }
    assert!(["cow", "log"].contains(&summary["backend"].as_str().unwrap()), "{summary}");
    assert!(!summary["reason"].as_str().unwrap().is_empty() && summary["plp"] == false, "{summary}");
    assert_eq!(names(&house.path("disk")), ["file"]);
    let profile = std::fs::read_to_string(house.path("profile")).unwrap();
    let parsed: copal_device::probe::DeviceProfile = profile.parse().unwrap();
    assert_eq!(parsed.reason, summary["reason"].as_str().unwrap());
    // The file of a profile is new.
    for taken in [house.word("profile"), house.word("disk")] {
        let again = house.run(["device", "probe", &file, "--out", &taken]);
        assert_eq!(again.code, Some(2), "{again:?}");
        assert!(again.sentence().contains("exists"), "{again:?}");
    }
}

#[test]
fn an_interrupted_or_killed_probe_leaves_nothing_behind() {
    for (signal, code) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
        let (house, file) = with_file();
        let out = house.word("profile");
        let mut running = Running::start(&house, ["device", "probe", &file, "--out", &out]);
        running.wait_for("status");
        running.signal(signal);
        let run = running.end();
        assert_eq!(run.code, code, "{run:?}");
        assert_eq!(names(&house.path("disk")), ["file"]);
        assert_eq!(house.path("profile").exists(), signal == Signal::KILL);
    }
}

#[test]
fn a_probe_refuses_all_that_is_no_file_on_a_disk() {
    let house = House::plain();
    file_of(&house.path("empty"), 0);
    file_of(&house.path("small"), MIB);
    file_of(&house.path("read_only"), 64 * MIB);
    std::fs::set_permissions(house.path("read_only"), PermissionsExt::from_mode(0o444)).unwrap();
    assert!(Command::new("mkfifo").arg(house.path("pipe")).status().unwrap().success());
    // A store in use: its process waits for data.
    let mut running = Running::start(&house, ["backup", "--vm", "slow", "-"]);
    running.child.stdin.as_mut().unwrap().write_all(&[1; 100_000]).unwrap();
    running.wait_for("status");
    let before = names(&house.path("."));
    for (path, part) in [
        (house.word("none"), "does not exist"),
        (house.word("."), "a directory"),
        ("/dev/null".to_owned(), "a character device"),
        (house.word("empty"), "0 B"),
        (house.word("small"), "1.05 MB"),
        (house.word("read_only"), "read-only"),
        (house.word("pipe"), "a pipe"),
        ("copal://127.0.0.1:1/vms".to_owned(), "a path of this machine"),
        (house.store().to_str().unwrap().to_owned(), "in use"),
    ] {
        let refused = house.run(["device", "probe", &path]);
        assert_eq!(refused.code, Some(2), "{path}: {refused:?}");
        assert!(refused.sentence().contains(part), "{path}: {refused:?}");
    }
    assert_eq!(names(&house.path(".")), before);
    running.child.kill().unwrap();
    running.child.wait().unwrap();
}

#[test]
fn a_probe_overwrites_a_block_device_only_when_told() {
    let scratch = House::empty();
    let Some(device) = LoopDevice::attach(&scratch.path("disk"), 96 * MIB) else { return };
    let refused = |words: &[&str], part: &str| {
        let run: Run = scratch.run(["device", "probe"].iter().chain(words));
        assert_eq!(run.code, Some(2), "{words:?}: {run:?}");
        assert!(run.sentence().contains(part), "{words:?}: {run:?}");
    };
    refused(&[device.word()], "--force");
    assert!(std::fs::read(scratch.path("disk")).unwrap().iter().all(|byte| *byte == 0));
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&device.path).status();
    if made.is_ok_and(|made| made.success()) {
        let mount = FreezableMount::over(&device, &scratch.path("mount"));
        refused(&[device.word(), "--force"], "mounted");
        drop(mount);
    }
    // A read-only one, and one below the least length.
    let read_only = LoopDevice::attach_read_only(&scratch.path("disk")).unwrap();
    refused(&[read_only.word(), "--force"], "read-only");
    let small = LoopDevice::attach(&scratch.path("small"), MIB).unwrap();
    refused(&[small.word(), "--force"], "1.05 MB");
    // A file system without a store is given up with --force.
    let free = LoopDevice::attach(&scratch.path("free"), 96 * MIB).unwrap();
    let summary = scratch.summary(["device", "probe", free.word(), "--force"]);
    assert_eq!(summary["kind"], "block", "{summary}");
}

/// Symptom: an interrupted probe of a block device said that it left nothing behind; the same `init --backend auto`
/// then found data there.
/// Cause: the sentence was that of a probe in a file of its own. Fix: a probe that overwrites a device says so, and that
/// the next command takes --force.
#[test]
fn an_interrupted_probe_of_a_device_says_that_it_has_overwritten_parts_of_it() {
    let scratch = House::empty();
    let Some(device) = LoopDevice::attach(&scratch.path("disk"), 96 * MIB) else { return };
    let house = House::elsewhere(&device.path).without_ring();
    for words in [&["init", "--backend", "auto"][..], &["device", "probe", device.word(), "--force"]] {
        let mut running = Running::start(&house, words);
        while running.wait_for("status")["number"] != 3 {}
        running.signal(Signal::INT);
        let run = running.end();
        assert_eq!(run.code, Some(130), "{run:?}");
        let sentence = run.sentence();
        assert!(sentence.contains(device.word()) && sentence.contains("has overwritten"), "{sentence}");
        assert!(
            sentence.contains("again with --force") && !sentence.contains("nothing behind"),
            "{sentence}"
        );
    }
    let refused = house.run(["init", "--backend", "auto"]);
    assert_eq!(refused.code, Some(21), "{refused:?}");
    house.good(["init", "--force"]);
    house.check();
}

/// Two programs that keep both processors busy: low confidence, and no failure.
#[test]
fn a_busy_machine_lowers_the_confidence() {
    let (house, file) = with_file();
    let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let count = 2 * std::thread::available_parallelism().unwrap().get();
    let mut busy: Vec<_> = (0..count).map(|_| spin()).collect();
    let summary = std::panic::catch_unwind(|| house.summary(["device", "probe", &file]));
    for child in &mut busy {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert_eq!(summary.unwrap()["confidence"], "low");
}

/// A store on a block device, with one snapshot.
fn with_store(scratch: &House, backend: &str) -> Option<(LoopDevice, House)> {
    let device = LoopDevice::attach(&scratch.path("disk"), 288 * MIB)?;
    let house = House::elsewhere(&device.path).without_ring();
    house.good(["init", "--backend", backend]);
    std::fs::write(house.path("image"), copal_testkit::Random::new(1).bytes(3_000_000)).unwrap();
    house.good(["backup", "--vm", "web", &house.word("image")]);
    Some((device, house))
}

fn free_bytes(house: &House, device: &LoopDevice) -> u64 {
    let df = house.summary(["device", "df", device.word()]);
    df["free_bytes"].as_u64().unwrap_or_else(|| panic!("{df}"))
}

fn assert_intact(house: &House, device: &LoopDevice) {
    house.good(["device", "fsck", device.word(), "--read-data"]);
    let restored = house.word("restored");
    house.good(["restore", "--vm", "web", "latest", "--target", &restored]);
    assert!(std::fs::read(&restored).unwrap() == std::fs::read(house.path("image")).unwrap());
    std::fs::remove_file(&restored).unwrap();
}

/// Symptom: a disk could be probed before a store was made on it only. A probe beside a store must keep to free
/// space, also if it is killed, and must leave that space free.
#[test]
fn a_probe_of_a_device_with_a_store_keeps_to_its_free_space() {
    for backend in ["cow", "log"] {
        let scratch = House::empty();
        let Some((device, house)) = with_store(&scratch, backend) else { return };
        let before = free_bytes(&house, &device);
        let summary = scratch.summary(["device", "probe", device.word()]);
        assert_eq!((&summary["kind"], summary["reason"].is_string()), (&"block".into(), true), "{summary}");
        assert_intact(&house, &device);
        for (signal, code) in [(Signal::INT, Some(130)), (Signal::KILL, None)] {
            let mut running = Running::start(&scratch, ["device", "probe", device.word(), "--force"]);
            while running.wait_for("status")["number"] != 3 {}
            running.signal(signal);
            assert_eq!(running.end().code, code);
            assert_intact(&house, &device);
        }
        assert_eq!(free_bytes(&house, &device), before, "{backend}");
    }
}

#[test]
fn a_probe_refuses_a_store_that_is_in_use_or_full() {
    let scratch = House::empty();
    let Some((device, house)) = with_store(&scratch, "cow") else { return };
    let mut running = Running::start(&house, ["backup", "--vm", "slow", "-"]);
    running.child.stdin.as_mut().unwrap().write_all(&[1; 100_000]).unwrap();
    running.wait_for("status");
    let refused = |part: &str| {
        let run = scratch.run(["device", "probe", device.word(), "--force"]);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.sentence().contains(part), "{run:?}");
    };
    refused("in use");
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    let free = free_bytes(&house, &device);
    let filling = copal_testkit::Random::new(2).bytes((free - 24 * MIB) as usize);
    std::fs::write(house.path("large"), filling).unwrap();
    house.good(["backup", "--vm", "large", &house.word("large")]);
    refused("34MiB of free space");
    assert_intact(&house, &device);
}
