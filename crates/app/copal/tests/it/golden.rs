//! Repositories of older builds are opened, checked, restored and written to.

use crate::{disks::Disk, harness::House};
use std::{path::Path, process::Command};

/// SHA-256 of the first image and of the second.
const DAYS: [&str; 2] = [
    "840a8e562acbe8b15daf05c55213a28c0b93be487271c99cbc12a817e6201fce",
    "ecd4bf9f1570482dcc26a204085effb5f4648fa0cdaf4c00c061ec7bf1ea3c0b",
];

fn unpack(archive: &str, house: &House) {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(archive);
    let status = Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(house.path("")).status();
    assert!(status.unwrap().success());
}

fn sha256(path: &Path) -> String {
    let output = Command::new("sha256sum").arg(path).output().unwrap();
    String::from_utf8(output.stdout).unwrap()[..64].to_owned()
}

fn reads(archive: &str, unfinished: u64) {
    let house = House::empty();
    unpack(archive, &house);
    house.check();
    assert_eq!(house.summary(["stats"])["unfinished_sessions"], unfinished);
    let snapshots = house.snapshots();
    assert_eq!(snapshots.len(), 3);
    for (at, (snapshot, day)) in snapshots.iter().zip([0, 1, 0]).enumerate() {
        let restored = house.restore(snapshot, &format!("restored-{at}"));
        assert_eq!(sha256(&restored), DAYS[day], "{archive}, snapshot {at}");
    }
    // Existing data is found again, new data is added, and prune keeps both.
    let again = house.backup("web", &house.path("restored-1"));
    assert_eq!(again["counts"]["new_chunks"], 0, "{again}");
    Disk::create(&house.path("new.raw"), 3 << 20, 5);
    house.backup("new", &house.path("new.raw"));
    house.good(["forget", &snapshots[0]]);
    house.good(["prune"]);
    house.check();
    assert_eq!(sha256(&house.restore(&snapshots[1], "at-last")), DAYS[1]);
}

#[test]
fn a_repository_in_a_file_that_was_written_before_is_read() {
    reads("closed.tar.gz", 0);
}

#[test]
fn one_that_a_kill_left_is_read() {
    reads("killed.tar.gz", 1);
}

#[test]
fn one_in_a_directory_is_read() {
    reads("files.tar.gz", 0);
}
