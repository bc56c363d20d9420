//! The main function: restored disks equal the backed-up ones.

use crate::{
    disks::{Disk, MIB, Random, assert_restored, log_lines},
    harness::{House, Run, count, id},
};
use std::{io::Write, process::Stdio};

#[test]
fn a_disk_comes_back_byte_for_byte_and_sparse() {
    let house = House::encrypted();
    let mut disk = Disk::create(&house.path("disk.raw"), 40 * MIB, 1);
    let first_day = disk.bytes.clone();
    let first = house.backup("web", &house.path("disk.raw"));
    assert_eq!(first["disks"][0]["mode"], "full");
    assert_eq!(count(&first, "logical_bytes"), 40 * MIB);
    assert!(count(&first, "stored_bytes") < count(&first, "data_bytes"), "{first}");

    disk.mutate(12);
    let second = house.backup("web", &house.path("disk.raw"));
    assert_eq!(second["disks"][0]["mode"], "rescan");
    assert_eq!(second["base"], first["snapshot"]);
    assert!(count(&second, "new_bytes") < count(&first, "new_bytes") / 2, "{second}");

    let third = house.backup("web", &house.path("disk.raw"));
    assert_eq!(count(&third, "new_bytes"), 0, "{third}");

    assert_eq!(house.snapshots(), [id(&first), id(&second), id(&third)]);
    assert_restored(&house.restore(&id(&first), "first.raw"), &first_day);
    assert_restored(&house.restore(&id(&second), "second.raw"), &disk.bytes);
    // By the beginning of the id, and by `latest`.
    assert_restored(&house.restore(&id(&first)[..12], "again.raw"), &first_day);
    let latest = house.path("latest.raw");
    house.good(["restore", "latest", "--vm", "web", "--target", latest.to_str().unwrap()]);
    assert_restored(&latest, &disk.bytes);
    house.check();
    house.good(["verify", "latest", "--vm", "web"]);
}

#[test]
fn several_disks_and_vms_share_equal_chunks() {
    let house = House::plain();
    let a = Disk::create(&house.path("a.raw"), 16 * MIB, 2);
    let b = Disk::create(&house.path("b.raw"), 8 * MIB + 512, 3);
    let words = |vm: &str| {
        let disks = [format!("sda={}", house.word("a.raw")), format!("data={}", house.word("b.raw"))];
        let [sda, data] = disks;
        ["backup".into(), "--vm".into(), vm.to_owned(), "--disk".into(), sda, "--disk".into(), data]
    };
    let one = house.summary(words("one"));
    assert_eq!(one["disks"].as_array().unwrap().len(), 2);
    let two = house.summary(words("two"));
    assert_eq!(count(&two, "new_bytes"), 0, "{two}");
    assert!(count(&two, "cross_dup_bytes") > 0, "{two}");

    let refused = house.run(["restore", &id(&two), "--target", &house.word("out")]);
    assert_eq!(refused.code, Some(2));
    assert!(refused.sentence().contains("--disk"), "{refused:?}");
    for (name, disk) in [("sda", &a), ("data", &b)] {
        let target = house.path(name);
        house.good(["restore", &id(&two), "--disk", name, "--target", target.to_str().unwrap()]);
        assert_restored(&target, &disk.bytes);
    }
    // One VM is removed, the other stays intact.
    house.good(["delete", &id(&one)]);
    house.check();
    let target = house.path("after");
    house.good(["restore", &id(&two), "--disk", "sda", "--target", target.to_str().unwrap()]);
    assert_restored(&target, &a.bytes);
}

#[test]
fn a_pipe_in_and_a_pipe_out() {
    let house = House::plain();
    let mut bytes = log_lines(&mut Random::new(4), 5_000_001);
    bytes[1_000_000..3_000_000].fill(0);
    let mut command = house.command(["--json", "backup", "--vm", "piped", "-"]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let run = Run::of(child.wait_with_output().unwrap());
    assert_eq!(run.code, Some(0), "{run:?}");
    let summary = run.summary();
    assert_eq!(count(&summary, "logical_bytes"), 5_000_001);

    let out = house.good(["restore", &id(&summary), "--target", "-"]);
    assert!(out.stdout == bytes, "{} bytes came back", out.stdout.len());
    assert!(out.stderr.contains("restored sda"), "{}", out.stderr);
    let refused = house.run(["--json", "restore", &id(&summary), "--target", "-"]);
    assert_eq!(refused.code, Some(2));
}

#[test]
fn disks_of_odd_shapes() {
    let house = House::plain();
    let mut random = Random::new(5);
    let shapes: [(&str, Vec<u8>); 5] = [
        ("byte", vec![7]),
        ("zeroes", vec![0; 3 << 20]),
        ("block", random.bytes(4096)),
        ("segment and a bit", log_lines(&mut random, (2 << 20) + 1)),
        ("data only at the end", [vec![0; (5 << 20) - 3], vec![1; 3]].concat()),
    ];
    for (name, bytes) in shapes {
        let image = house.path(&format!("{name}.raw"));
        std::fs::write(&image, &bytes).unwrap();
        let summary = house.backup(name, &image);
        assert_restored(&house.restore(&id(&summary), &format!("{name}.out")), &bytes);
    }
    house.check();
}

#[test]
fn an_existing_target_is_refused_then_overwritten() {
    let house = House::plain();
    let disk = Disk::create(&house.path("disk.raw"), 6 * MIB, 6);
    let snapshot = id(&house.backup("web", &house.path("disk.raw")));
    let target = house.path("old.raw");
    std::fs::write(&target, vec![9; 7 << 20]).unwrap();
    let refused = house.run(["restore", &snapshot, "--target", target.to_str().unwrap()]);
    assert_eq!(refused.code, Some(21));
    assert!(refused.sentence().contains("--force"), "{refused:?}");
    assert_eq!(std::fs::read(&target).unwrap(), vec![9; 7 << 20]);
    house.good(["restore", &snapshot, "--target", target.to_str().unwrap(), "--force"]);
    assert_restored(&target, &disk.bytes);
}

#[test]
fn every_way_to_cut_disks_and_the_fallback_io() {
    for chunking in ["paper", "clone"] {
        let house = House::empty();
        house.good(["init", "--chunking", chunking, "--size", "64MiB"]);
        let mut disk = Disk::create(&house.path("disk.raw"), 12 * MIB, 7);
        let first_day = disk.bytes.clone();
        let first = house.summary(["backup", "--no-io-uring", "--vm", "web", &house.word("disk.raw")]);
        disk.mutate(5);
        let second = house.backup("web", &house.path("disk.raw"));
        let target = house.path("first.out");
        house.good(["--no-io-uring", "restore", &id(&first), "--target", target.to_str().unwrap()]);
        assert_restored(&target, &first_day);
        assert_restored(&house.restore(&id(&second), "second.out"), &disk.bytes);
        house.check();
    }
}

/// Symptom: no test made a full backup of a disk with snapshots. Fix: it reads everything, stores nothing
/// twice, and remains after the others are removed.
#[test]
fn a_full_backup_reads_everything_and_outlives_earlier_snapshots() {
    let house = House::plain();
    let mut disk = Disk::create(&house.path("disk.raw"), 8 * MIB, 19);
    disk.write(0, 8 * MIB);
    let first = house.backup("web", &house.path("disk.raw"));
    let image = house.word("disk.raw");
    let full = house.summary(["backup", "--vm", "web", "--full", &image]);
    assert_eq!(full["disks"][0]["mode"], "full", "{full}");
    assert_eq!((count(&full, "read_bytes"), count(&full, "new_bytes")), (8 * MIB, 0));
    house.good(["forget", &id(&first)]);
    house.good(["prune"]);
    house.check();
    assert_restored(&house.restore(&id(&full), "out"), &disk.bytes);
    for other in ["--strict-incremental", "--bitmap=b", "--changed-extents=l"] {
        let refused = house.run(["backup", "--vm", "web", "--full", other, &image]);
        assert_eq!(refused.code, Some(2), "{other}: {refused:?}");
    }
}
