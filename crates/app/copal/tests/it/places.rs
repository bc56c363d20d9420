//! Locations of a repository, and allowed sources and targets: files of a directory, block devices; and a
//! store whose last writes are damaged.

use crate::{
    disks::{Disk, MIB, Random, assert_restored},
    harness::{House, Run, Running, id},
    loop_device::{FreezableMount, LoopDevice},
};
use std::{
    fs::File,
    io::Write,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
    process::Command,
};

/// Two backups, both restored, one deleted, the other restored again.
fn lives(house: &House) {
    let mut disk = Disk::create(&house.path("disk.raw"), 3 * MIB, 90);
    let first = id(&house.backup("web", &house.path("disk.raw")));
    let before = disk.bytes.clone();
    disk.mutate(8);
    let second = id(&house.backup("web", &house.path("disk.raw")));
    assert_restored(&house.restore(&first, "first"), &before);
    assert_restored(&house.restore(&second, "second"), &disk.bytes);
    house.check();
    house.good(["delete", &first]);
    assert_restored(&house.restore("latest", "latest"), &disk.bytes);
    house.check();
    assert_eq!(house.snapshots(), [second]);
}

#[test]
fn a_repository_of_files_behaves_like_one_in_a_file() {
    let house = House::of_files();
    assert!(!house.store().exists());
    // Symptom: a store file of 18447 PB. Cause: the end of all addresses was taken for a size. Fix: it has no
    // size.
    let stats = house.summary(["stats"]);
    assert_eq!(stats["store"]["size_bytes"], serde_json::Value::Null, "{stats}");
    assert!(stats["store"]["live_bytes"].is_u64(), "{stats}");
    let text = String::from_utf8(house.good(["stats"]).stdout).unwrap();
    assert!(!text.contains(" PB"), "{text}");
    assert!(house.repository().join("store.files").is_dir());
    lives(&house);
    let again = house.run(["init", "--backend", "hostfs"]);
    assert!(again.sentence().contains("already"), "{again:?}");
    // A second writer waits a moment and is refused.
    let mut running = Running::start(&house, ["backup", "--vm", "slow", "-"]);
    let mut stdin = running.child.stdin.take().unwrap();
    stdin.write_all(&[1; 100_000]).unwrap();
    running.wait_for("status");
    let image = house.word("disk.raw");
    let refused = house.run(["backup", "--vm", "web", &image]);
    assert_eq!(refused.code, Some(11), "{refused:?}");
    // Symptom: --coverage was refused after the whole check had run. Cause: it was checked afterwards.
    // Fix: refused before anything is opened, so also while another process has the store.
    let listed = house.run(["check", "--read-data", "--coverage"]);
    assert_eq!(listed.code, Some(2), "{listed:?}");
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    house.check();
}

#[test]
fn a_bit_flipped_in_a_repository_of_files_is_reported() {
    let house = House::of_files();
    let disk = Disk::create(&house.path("disk.raw"), MIB, 91);
    let snapshot = id(&house.backup("web", &house.path("disk.raw")));
    let mut random = Random::new(92);
    let mut reported = 0;
    for entry in std::fs::read_dir(house.repository().join("store.files/objects")).unwrap() {
        let path = entry.unwrap().path();
        let pristine = std::fs::read(&path).unwrap();
        if pristine.is_empty() {
            continue;
        }
        // Pages with data: after a stream's last frame a file holds no data.
        let used = pristine.chunks(4096).position(|page| page.iter().any(|&byte| byte != 0));
        let Some(used) = used else { continue };
        let mut flipped = pristine.clone();
        let at = (used * 4096 + random.below(64) as usize).min(pristine.len() - 1);
        flipped[at] ^= 1 << random.below(8);
        std::fs::write(&path, flipped).unwrap();
        let mut check = house.command(["check", "--read-data"]);
        // The libraries report such faults in their own sentences.
        let check = Run::of(check.env("COPAL_LOG", "off").output().unwrap());
        assert_eq!(check.code, Some(20), "{}: {check:?}", path.display());
        reported += 1;
        std::fs::write(&path, pristine).unwrap();
    }
    assert!(reported >= 3, "{reported} files were hit");
    assert_restored(&house.restore(&snapshot, "out"), &disk.bytes);
}

#[test]
fn a_block_device_is_source_store_and_target() {
    let scratch = House::empty();
    let attach = |name: &str, size| LoopDevice::attach(&scratch.path(name), size);
    let mut disk = Disk::create(&scratch.path("source.raw"), 8 * MIB, 93);
    let Some(store) = attach("store.raw", 96 * MIB) else {
        return;
    };
    let (Some(source), Some(target)) = (attach("source.raw", 8 * MIB), attach("target.raw", 8 * MIB)) else {
        panic!("there was one loop device and there are no more");
    };
    File::options().write(true).open(&store.path).unwrap().write_all_at(b"somebody's data", 5000).unwrap();
    let house = House::elsewhere(&store.path);
    let refused = house.run(["init"]);
    assert_eq!(refused.code, Some(21), "{refused:?}");
    assert!(refused.sentence().contains("--force"), "{refused:?}");
    house.good(["init", "--force"]);
    let first = id(&house.backup("web", &source.path));
    let before = disk.bytes.clone();
    disk.mutate(20);
    // The device caches the content of its file.
    let dropped = Command::new("blockdev").arg("--flushbufs").arg(&source.path).status();
    assert!(dropped.unwrap().success());
    let second = id(&house.backup("web", &source.path));
    let is_there = |bytes: &[u8]| {
        let found = std::fs::read(&target.path).unwrap();
        assert!(found == bytes, "the restored device differs");
    };
    let onto = ["--target", target.word()];
    let refused = house.run([&["restore", first.as_str()][..], &onto].concat());
    assert!(refused.code != Some(0) && refused.sentence().contains("--force"), "{refused:?}");
    // The earlier content of a device must be overwritten where the disk has holes.
    std::fs::write(scratch.path("target.raw"), vec![0xaa; 8 * MIB as usize]).unwrap();
    for (snapshot, bytes) in [(&first, &before), (&second, &disk.bytes)] {
        house.good([&["restore", snapshot.as_str(), "--force"][..], &onto].concat());
        is_there(bytes);
    }
    house.check();
    let listed = house.summary(["check", "--read-data", "--coverage"]);
    assert_eq!(listed["coverage"]["neither"], serde_json::json!([]));
    assert_eq!(listed["coverage"]["device_bytes"], 96 * MIB);
    house.good(["delete", &first]);
    assert_restored(&house.restore(&second, "out"), &disk.bytes);
    let small = attach("small.raw", 4 * MIB).unwrap();
    let refused = house.run(["restore", &second, "--force", "--target", small.word()]);
    assert!(refused.code != Some(0), "a disk of 8 MiB does not fit: {refused:?}");
}

/// Symptom: a restore with --force onto the store of the repository destroyed the repository.
/// Cause: there was no check whether the file was in use.
/// Fix: the target must give its lock; a store of files refuses targets inside it.
#[test]
fn a_restore_onto_its_own_repository_is_refused() {
    for house in [House::plain(), House::of_files()] {
        let disk = Disk::create(&house.path("disk.raw"), MIB, 96);
        let snapshot = id(&house.backup("web", &house.path("disk.raw")));
        let mut targets = vec![house.store()];
        if !house.store().exists() {
            let objects = std::fs::read_dir(house.repository().join("store.files/objects")).unwrap();
            targets = objects.map(|entry| entry.unwrap().path()).collect();
        }
        for target in targets {
            let before = std::fs::read(&target).unwrap();
            let words = ["restore", &snapshot, "--force", "--target", target.to_str().unwrap()];
            let refused = house.run(words);
            assert_eq!(refused.code, Some(1), "{refused:?}");
            assert!(refused.sentence().contains("another file"), "{refused:?}");
            assert!(std::fs::read(&target).unwrap() == before);
        }
        assert_restored(&house.restore(&snapshot, "out"), &disk.bytes);
        house.check();
    }
}

/// Symptom: a restore to a new file wrote it into the directory of a repository's objects.
/// Cause: a missing file has no real path to compare. Fix: the path of its directory is compared.
#[test]
fn a_restore_to_a_new_file_inside_its_own_repository_is_refused() {
    let house = House::of_files();
    Disk::create(&house.path("disk.raw"), MIB, 100);
    let snapshot = id(&house.backup("web", &house.path("disk.raw")));
    let objects = house.repository().join("store.files/objects");
    let link = house.path("link");
    std::os::unix::fs::symlink(&objects, &link).unwrap();
    for target in [objects.join("new"), link.join("new")] {
        let refused = house.run(["restore", &snapshot, "--target", target.to_str().unwrap()]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.sentence().contains("another file"), "{refused:?}");
        assert!(!target.exists());
    }
    house.check();
}

/// Symptom: a restore with --force onto the block device of the repository destroyed the repository.
/// Cause: a store that is only read does not lock its device exclusively, and its lock was not checked.
/// Fix: the target must give its lock, and a repository recognizes its device under any name.
#[test]
fn a_restore_onto_the_device_of_a_repository_is_refused() {
    let scratch = House::empty();
    let Some(store) = LoopDevice::attach(&scratch.path("store.raw"), 96 * MIB) else {
        return;
    };
    let house = House::elsewhere(&store.path);
    house.good(["init"]);
    let disk = Disk::create(&house.path("disk.raw"), MIB, 97);
    let snapshot = id(&house.backup("web", &house.path("disk.raw")));
    let refused = |target: &str, why: &str| {
        let refused = house.run(["restore", &snapshot, "--force", "--target", target]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.sentence().contains(why), "{refused:?}");
    };
    refused(store.word(), "the repository itself");
    // The same device under another name, which has another lock.
    let node = std::fs::metadata(&store.path).unwrap().rdev();
    let alias = scratch.word("alias");
    let made = Command::new("mknod")
        .arg(&alias)
        .arg("b")
        .args([node >> 8 & 0xfff, node & 0xff].map(|number| number.to_string()))
        .status();
    assert!(made.unwrap().success());
    refused(&alias, "the repository itself");
    // The device of another store, which a process reads.
    let other = LoopDevice::attach(&scratch.path("other.raw"), 2 * MIB).unwrap();
    let reader = File::open(&other.path).unwrap();
    reader.lock_shared().unwrap();
    refused(other.word(), "in use");
    drop(reader);
    house.good(["restore", &snapshot, "--force", "--target", other.word()]);
    assert_restored(&house.restore(&snapshot, "out"), &disk.bytes);
    house.check();
}

/// Symptom: a restore with --force onto a disk destroyed the repository in one of its partitions, and one
/// onto a partition the repository on the whole disk. A restore onto the device below a loop device destroyed
/// the repository on the loop device.
/// Cause: only the repository's own device was refused.
/// Fix: all devices that share bytes with it, by the kernel's list, are refused.
#[test]
fn a_restore_onto_a_target_that_shares_bytes_with_the_repository_is_refused() {
    let scratch = House::empty();
    let Some(mut store) = LoopDevice::attach(&scratch.path("store.raw"), 100 * MIB) else {
        return;
    };
    let part = store.divide(98 * MIB);
    let upper = LoopDevice::attach_over(&store.path);
    let in_use = |repository: &Path, target: &Path| {
        let house = House::elsewhere(repository).without_ring();
        house.good(["init", "--force"]);
        let disk = Disk::create(&house.path("disk.raw"), MIB, 98);
        let snapshot = id(&house.backup("web", &house.path("disk.raw")));
        let target = target.to_str().unwrap();
        let refused = house.run(["restore", &snapshot, "--force", "--target", target]);
        assert_eq!(refused.code, Some(1), "{target}: {refused:?}");
        assert!(refused.sentence().contains("the repository itself"), "{refused:?}");
        assert_restored(&house.restore(&snapshot, "out"), &disk.bytes);
        house.check();
    };
    in_use(&part, &store.path);
    in_use(&store.path, &part);
    in_use(&upper.path, &store.path);
    in_use(&upper.path, &scratch.path("store.raw"));
    // Another store in a partition of the target, which a process reads.
    let house = House::plain();
    Disk::create(&house.path("disk.raw"), MIB, 99);
    let snapshot = id(&house.backup("web", &house.path("disk.raw")));
    let reader = File::open(&part).unwrap();
    reader.lock_shared().unwrap();
    let words = ["restore", &snapshot, "--force", "--target", store.word()];
    let refused = house.run(words);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.sentence().contains("is in use"), "{refused:?}");
    drop(reader);
    house.good(words);
}

/// Symptom: `copal init --force` on a disk replaced a store in one of its partitions that was being read.
/// Cause: a reader's lock is on the node of its own device, and the other nodes were not checked.
/// Fix: an opening of a device for writing checks the locks of all devices that share bytes with it.
#[test]
fn a_store_is_not_made_on_a_device_that_shares_bytes_with_one_in_use() {
    let scratch = House::empty();
    let Some(mut whole) = LoopDevice::attach(&scratch.path("whole.raw"), 100 * MIB) else {
        return;
    };
    let part = whole.divide(98 * MIB);
    // A lock on an unrelated device does not matter.
    let other = LoopDevice::attach(&scratch.path("other.raw"), MIB).unwrap();
    let elsewhere = File::open(&other.path).unwrap();
    elsewhere.lock_shared().unwrap();
    for (read, made) in [(&part, &whole.path), (&whole.path, &part)] {
        let house = House::elsewhere(made).without_ring();
        let reader = File::open(read).unwrap();
        reader.lock_shared().unwrap();
        let refused = house.run(["init", "--force"]);
        assert_eq!(refused.code, Some(11), "{refused:?}");
        assert!(refused.sentence().contains("wait"), "{refused:?}");
        drop(reader);
        house.good(["init", "--force"]);
        house.check();
    }
}

/// Symptom: `copal init --force` destroyed a mounted file system and an open store on a second loop device over the same
/// file, and asked to wait for the end of a process where a device was mounted.
/// Cause: each loop device has locks and claims of its own.
/// Fix: loop devices over the same bytes count as neighbours, and the mount point is named.
#[test]
fn a_store_is_not_made_over_bytes_that_another_loop_device_uses() {
    let scratch = House::empty();
    let file = scratch.path("disk");
    let Some(device) = LoopDevice::attach(&file, 96 * MIB) else { return };
    let second = LoopDevice::attach(&file, 96 * MIB).unwrap();
    let refused = |path: &Path| {
        let house = House::elsewhere(path).without_ring();
        let run = house.run(["init", "--force"]);
        assert_eq!(run.code, Some(11), "{run:?}");
        run
    };
    let made = Command::new("mkfs.ext4").args(["-q", "-F"]).arg(&second.path).status();
    if made.is_ok_and(|made| made.success()) {
        let directory = scratch.path("mount");
        let mount = FreezableMount::over(&second, &directory);
        std::fs::write(directory.join("kept"), "data").unwrap();
        for path in [&second.path, &device.path] {
            let run = refused(path);
            let at = format!("is mounted at {}; unmount it first", directory.display());
            assert!(run.sentence().contains(&at) && !run.sentence().contains("wait"), "{run:?}");
        }
        assert_eq!(std::fs::read(directory.join("kept")).unwrap(), b"data");
        drop(mount);
    }
    let house = House::elsewhere(&second.path).without_ring();
    house.good(["init", "--force"]);
    let mut running = Running::start(&house, ["backup", "--vm", "slow", "-"]);
    running.child.stdin.as_mut().unwrap().write_all(&[1; 100_000]).unwrap();
    running.wait_for("status");
    refused(&device.path);
    let probed = scratch.run(["device", "probe", device.word()]);
    assert_eq!(probed.code, Some(2), "{probed:?}");
    assert!(probed.sentence().contains("in use"), "{probed:?}");
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    house.check();
}

/// Records of the journal, as places in the store file, oldest first.
fn records(house: &House) -> Vec<u64> {
    let run = Run::of(house.command(["--json", "check", "--read-data", "--coverage"]).output().unwrap());
    let mut records: Vec<u64> = run
        .lines()
        .iter()
        .filter(|line| line["coverage"]["what"] == "journal record")
        .map(|line| line["coverage"]["from"].as_u64().unwrap())
        .collect();
    records.sort_unstable();
    records
}

#[test]
fn damaged_last_writes_stop_the_store_until_they_are_given_up() {
    let house = House::plain();
    let disk = Disk::create(&house.path("disk.raw"), 2 * MIB, 94);
    let snapshot = id(&house.backup("web", &house.path("disk.raw")));
    // A backup that is killed after its first packs: no checkpoint follows their records.
    let mut running = Running::start(&house, ["backup", "--vm", "late", "-"]);
    let mut stdin = running.child.stdin.take().unwrap();
    stdin.write_all(&Random::new(95).bytes(40 * MIB as usize)).unwrap();
    running.wait_for("status");
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    drop(stdin);
    let records = records(&house);
    assert!(records.len() >= 3, "{records:?}");
    let store = File::options().read(true).write(true).open(house.store()).unwrap();
    // The first of them: later ones show that it was durable.
    let mut byte = [0];
    store.read_exact_at(&mut byte, records[0] + 33).unwrap();
    store.write_all_at(&[byte[0] ^ 4], records[0] + 33).unwrap();
    for words in [&["check"][..], &["snapshots"], &["prune"]] {
        let refused = house.run(words);
        assert_eq!(refused.code, Some(20), "{refused:?}");
        assert!(refused.sentence().contains("--accept-tail-loss"), "{refused:?}");
    }
    // A read-only opening without the lost writes changes nothing; a command that writes drops them for good.
    let out = house.word("out");
    let restored = house.good(["restore", &snapshot, "--target", &out, "--accept-tail-loss"]);
    assert!(restored.stderr.contains("are lost: journal record"), "{restored:?}");
    assert_restored(&house.path("out"), &disk.bytes);
    assert_eq!(house.run(["snapshots"]).code, Some(20));
    house.good(["prune", "--accept-tail-loss"]);
    house.check();
    assert_eq!(house.snapshots(), std::slice::from_ref(&snapshot));
    assert_restored(&house.restore(&snapshot, "again"), &disk.bytes);
}

/// Symptom: `copal backup` of the repository's own store file, which grows during the read, was started.
/// Cause: the two were not compared. Fix: the store under any of its names is refused, and so are devices
/// that share bytes with it.
#[test]
fn the_repository_itself_is_no_source() {
    let refused = |house: &House, image: &Path| {
        let run = house.run(["backup", "--vm", "web", "--format", "raw", image.to_str().unwrap()]);
        assert_eq!(run.code, Some(3), "{run:?}");
        assert!(run.sentence().contains("belongs to the repository itself"), "{run:?}");
        assert!(house.snapshots().is_empty());
    };
    let house = House::plain();
    let (hard, soft) = (house.path("hard"), house.path("soft"));
    std::fs::hard_link(house.store(), &hard).unwrap();
    std::os::unix::fs::symlink(house.store(), &soft).unwrap();
    for image in [house.store(), hard, soft] {
        refused(&house, &image);
    }
    let size = house.store().metadata().unwrap().len();
    if let Some(device) = LoopDevice::attach(&house.store(), size) {
        refused(&house, &device.path);
    }
    let house = House::of_files();
    let files = house.repository().join("store.files");
    let file = std::fs::read_dir(&files).unwrap().flatten().find(|entry| entry.metadata().unwrap().is_file());
    refused(&house, &file.unwrap().path());
}
