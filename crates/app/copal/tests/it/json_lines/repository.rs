//! Commands on a repository in a directory: all commands of a single host, damage, and commands that fail.

use super::{Ongoing, Record};
use crate::{
    changes::own_form,
    disks::{Disk, MIB},
    harness::{House, id},
};
use rustix::process::Signal;
use std::{fs, io::Write, path::Path};

#[test]
fn commands_on_a_repository_print_the_fields_of_the_golden_file() {
    let house = House::empty();
    let mut record = Record::new("repository", &house.path(""));
    record.run(&house, ["init", "--size", "64MiB"]);
    let mut disk = Disk::create(&house.path("disk.raw"), 4 * MIB, 230);
    let image = house.word("disk.raw");
    let words = ["backup", "--vm", "web", "--tag", "nightly", "--description", "by hand", &image];
    let first = id(&record.run(&house, words));
    disk.mutate(3);
    let second = id(&record.run(&house, ["backup", "--vm", "web", "--serial", "WD-1", &image]));
    let changes = disk.mutate(2);
    let list = own_form(4 * MIB, Some(&second), &changes).to_string();
    fs::write(house.path("changed.json"), list).unwrap();
    let words = [
        "backup",
        "--vm",
        "web",
        "--serial",
        "WD-1",
        &image,
        "--changed-extents",
        &house.word("changed.json"),
    ];
    record.run(&house, words);
    record.run(&house, ["snapshots"]);
    record.run(&house, ["snapshots", "--tag", "none"]);
    record.run(&house, ["ls", "latest"]);
    record.run(&house, ["stats"]);
    record.run(&house, ["vm", "ls"]);
    record.run(&house, ["restore", "latest", "--target", &house.word("out.raw")]);
    record.run(&house, ["verify", &first]);
    record.run(&house, ["check"]);
    record.run(&house, ["check", "--read-data"]);
    record.run(&house, ["check", "--read-data-subset", "1/2"]);
    record.run(&house, ["hold", &first]);
    record.run(&house, ["snapshots"]);
    record.run(&house, ["forget", &first]);
    record.run(&house, ["forget", &first, "--dry-run"]);
    record.run(&house, ["hold", &first, "--release"]);
    record.run(&house, ["hold", &second, "--for", "1d"]);
    fs::write(house.path("short.raw"), &disk.bytes[..3 * MIB as usize]).unwrap();
    let short = house.word("short.raw");
    record.run(&house, ["backup", "--vm", "web", &short]);
    let doubtful = id(&record.run(&house, ["backup", "--vm", "web", "--allow-smaller", &short]));
    record.run(&house, ["snapshots"]);
    record.run(&house, ["accept", &doubtful]);
    record.run(&house, ["forget", "--keep-last", "1", "--dry-run"]);
    record.run(&house, ["forget", &first]);
    record.run(&house, ["delete", "--dry-run"]);
    record.run(&house, ["delete"]);
    record.run(&house, ["prune", "--keep-last", "2", "--dry-run"]);
    record.run(&house, ["prune", "--keep-last", "2"]);
    record.run(&house, ["repair", "index"]);
    record.run(&house, ["sessions", "ls"]);
    record.run(&house, ["pds", "status"]);
    record.run(&house, ["repair", "store", "--to", &house.word("saved")]);
    record.run(&house, ["version"]);
    record.kinds_of_numbers();
    record.run(&house, ["check", "--read-data", "--coverage"]);
    record.compare();
}

#[test]
fn copies_print_the_fields_of_the_golden_file() {
    let house = House::empty();
    let mut record = Record::new("copy", &house.path(""));
    house.good(["init", "--size", "64MiB"]);
    let other = house.word("other");
    house.good(["init", "--size", "64MiB", "--repo", &other]);
    let mut disk = Disk::create(&house.path("disk.raw"), 4 * MIB, 232);
    let image = house.word("disk.raw");
    house.good(["backup", "--vm", "web", "--tag", "nightly", &image]);
    disk.mutate(3);
    let second = id(&house.summary(["backup", "--vm", "web", &image]));
    record.run(&house, ["copy", "--to", &other]);
    record.run(&house, ["copy", "--all", "--to", &house.word("repository")]);
    record.run(&house, ["copy", "--all", "--to", &house.word("none")]);
    record.run(&house, ["copy", "--all", "--to", &other, "--dry-run"]);
    record.run(&house, ["copy", &second, "--to", &other]);
    record.run(&house, ["copy", "--vm", "web", "--to", &other]);
    record.run(&house, ["snapshots", "--repo", &other]);
    record.compare();
}

#[test]
fn commands_that_fail_print_the_fields_of_the_golden_file() {
    let house = House::empty();
    let mut record = Record::new("failures", &house.path(""));
    record.run(&house, ["backup"]);
    record.run(&house, ["snapshots"]);
    house.good(["init", "--size", "64MiB"]);
    record.run(&house, ["init", "--size", "64MiB"]);
    record.run(&house, ["ls", "latest"]);
    record.run(&house, ["restore", "abcdef12", "--target", &house.word("out.raw")]);
    record.run(&house, ["forget"]);
    record.run(&house, ["backup", "--vm", "web", &house.word("none.raw")]);
    record.run(&house, ["stats", "--vm", "web"]);
    let mut locked = house.command(["--json", "snapshots"]);
    fs::write(house.path("other"), "not the password\n").unwrap();
    locked.env("COPAL_PASSWORD_FILE", house.path("other"));
    record.command(locked, "snapshots");

    // Progress, a store in use by another process, and an interruption.
    let mut owner = Ongoing::of(&house, &["backup", "--vm", "piped", "-"]);
    owner.until("status");
    record.kinds_of_numbers();
    record.run(&house, ["snapshots"]);
    record.has_progress = true;
    owner.signal(Signal::INT);
    owner.end(&mut record);
    let mut owner = Ongoing::of(&house, &["backup", "--vm", "piped", "-"]);
    owner.child.stdin.as_mut().unwrap().write_all(&[7; 100_000]).unwrap();
    owner.until("status");
    owner.end(&mut record);
    record.compare();
}

/// Flips a bit of the longest object whose beginning differs from the others of its kind.
fn flip_largest(objects: &Path) {
    let files = fs::read_dir(objects).unwrap().map(|entry| entry.unwrap().path());
    let largest = files.max_by_key(|path| (fs::metadata(path).unwrap().len(), path.clone())).unwrap();
    let mut bytes = fs::read(&largest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&largest, bytes).unwrap();
}

#[test]
fn damage_prints_the_fields_of_the_golden_file() {
    let house = House::of_files();
    let mut record = Record::new("damage", &house.path(""));
    fs::write(house.path("disk.raw"), copal_testkit::Random::new(231).bytes(4 << 20)).unwrap();
    let first = id(&house.backup("web", &house.path("disk.raw")));
    flip_largest(&house.repository().join("store.files/objects"));
    record.kinds_of_numbers();
    // The libraries report such faults in their own sentences.
    let mut quiet = |words: &[&str]| {
        let mut command = house.command(["--json"]);
        command.env("COPAL_LOG", "off").args(words);
        record.command(command, &words.join(" "));
    };
    quiet(&["check", "--read-data"]);
    quiet(&["verify", &first]);
    quiet(&["restore", &first, "--target", &house.word("out.raw")]);
    quiet(&["repair", "store", "--to", &house.word("saved")]);
    record.compare();
}
