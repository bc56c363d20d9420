//! A snapshot with a damaged manifest is listed as damaged, can be forgotten by its id, and hinders no
//! command; likewise a VM with a damaged log.

use crate::{
    disks::{Disk, MIB, assert_restored},
    harness::{House, Run, id},
};
use copal_data::LocalStore;
use copal_volume::{ReadOptions, VolumeStore};

/// Flips a bit of a file of the volumes, unnoticed by the layers below: of the last file whose name satisfies
/// `is_meant`.
fn damage(house: &House, is_meant: impl Fn(&str) -> bool) {
    let file = copal_device::FileOptions { allow_cow: true, unsafe_volatile: true, ..Default::default() };
    // The kernel releases the descriptors of a ring, and with them the lock, shortly after the process has
    // ended.
    let device = loop {
        match copal_device::open_file(&house.store(), &file) {
            Err(copal_device::DeviceOpenError::Locked { .. }) => std::thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    let (objects, _) = copal_object::Store::open(device, &Default::default()).unwrap();
    let kv = copal_kv::Store::open(objects.clone(), copal_kv::Options::default()).unwrap();
    let volumes = LocalStore::open(kv).unwrap();
    let mut meant = Vec::new();
    for (_, vid) in volumes.list_volumes("", None, 1000).unwrap() {
        let files = volumes
            .list(vid, b"", None, 1000, &ReadOptions::default())
            .unwrap()
            .into_iter()
            .filter(|(name, _)| is_meant(&String::from_utf8_lossy(name)));
        meant.extend(files.map(|(name, info)| (vid, name, info)));
    }
    let (vid, name, info) = meant.pop().unwrap();
    let mut body = volumes.get(vid, &name, 0..info.size, &Default::default()).unwrap().to_vec();
    let middle = body.len() / 2;
    body[middle] ^= 4;
    volumes.delete(vid, &name, info.fid).unwrap();
    volumes.put(vid, &name, body.into(), &Default::default()).unwrap();
    volumes.close().unwrap();
    objects.close().unwrap();
}

/// Symptom: after damage to one manifest, no command that names a snapshot worked any more, not even
/// `forget`.
/// Cause: every manifest was decoded to find one snapshot.
/// Fix: only the requested one is decoded; the list marks damaged ones, and ids suffice to forget them.
#[test]
fn a_damaged_snapshot_is_listed_and_forgotten_and_the_others_work() {
    let house = House::plain();
    let mut disk = Disk::create(&house.path("disk.raw"), MIB, 120);
    let image = house.path("disk.raw");
    let hurt = id(&house.backup("web", &image));
    let other = id(&house.backup("db", &image));
    damage(&house, |name| name == format!("m.{hurt}"));
    let listed = house.summary(["snapshots"]);
    let marks: Vec<bool> = listed["snapshots"]
        .as_array()
        .unwrap()
        .iter()
        .map(|snapshot| snapshot["damage"].is_string())
        .collect();
    assert_eq!(marks, [true, false], "{listed}");
    let text = String::from_utf8(house.good(["snapshots"]).stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with(&hurt[..8])).unwrap();
    assert!(line.ends_with("damaged"), "{text}");
    assert_restored(&house.restore(&other[..8], "out"), &disk.bytes);
    assert_eq!(house.summary(["stats"])["damaged_snapshots"], 1);
    let target = house.word("hurt");
    for words in [&["restore", &hurt, "--target", &target][..], &["verify", &hurt], &["prune"]] {
        let run = Run::of(house.command(words).output().unwrap());
        assert_eq!(run.code, Some(20), "{words:?}: {run:?}");
    }
    // It represents no day: the good snapshot of this day is kept beside it.
    disk.mutate(1);
    // The library's warning about the base that it skips.
    let mut backup = house.command(["--json", "backup", "--vm", "web"]);
    let backup = backup.arg(&image).env("COPAL_LOG", "off").output().unwrap();
    let next = id(&Run::of(backup).summary());
    let judged = house.summary(["forget", "--keep-last", "1", "--dry-run"]);
    assert_eq!(judged["forgotten"], 0, "{judged}");
    house.good(["forget", &hurt[..8]]);
    house.good(["prune"]);
    house.check();
    assert_eq!(house.snapshots(), [other, next]);
}

/// Symptom: `prune --dry-run` of a repository with a damaged snapshot printed nothing and exited with 20. So
/// did `delete --dry-run` of the damaged one itself, which the real command deletes.
/// Cause: a dry run decoded every snapshot, also those that would be removed, and failed with their errors.
/// Fix: it skips those, and lists an obstacle of the real command as a refusal.
#[test]
fn a_dry_run_beside_a_damaged_snapshot_lists_it_as_a_refusal() {
    let house = House::plain();
    Disk::create(&house.path("disk.raw"), MIB, 121);
    let hurt = id(&house.backup("web", &house.path("disk.raw")));
    Disk::create(&house.path("other.raw"), MIB, 122);
    let other = id(&house.backup("db", &house.path("other.raw")));
    damage(&house, |name| name == format!("m.{hurt}"));
    for words in [&["prune", "--dry-run"][..], &["delete", "--dry-run"], &["delete", &other, "--dry-run"]] {
        let dry = house.summary(words);
        let refused = dry["refused"].to_string();
        assert!(refused.contains(&format!("copal forget {}", &hurt[..8])), "{words:?}: {dry}");
    }
    let text = String::from_utf8(house.good(["prune", "--dry-run"]).stdout).unwrap();
    assert!(text.contains("would be refused: ") && !text.contains("freed"), "{text}");
    let dry = house.summary(["delete", &hurt, "--dry-run"]);
    assert_eq!(dry["refused"], serde_json::json!([]), "{dry}");
    let real = house.summary(["delete", &hurt]);
    assert_eq!(dry["freed_bytes"], real["freed_bytes"], "{dry} {real}");
    assert_eq!(house.snapshots(), [other]);
    house.check();
}

/// Symptom: after damage to one record in the log of one VM, `snapshots` printed nothing, and no snapshot of
/// another VM could be restored by its id, with `--vm` or without.
/// Cause: the first unreadable log ended every search.
/// Fix: the others are searched, listed and restored; the damaged one is named, with exit code 20.
#[test]
fn a_damaged_log_of_one_vm_is_named_and_the_others_are_listed_and_restored() {
    let house = House::plain();
    let disk = Disk::create(&house.path("disk.raw"), MIB, 121);
    let image = house.path("disk.raw");
    let hidden = house.backup("db", &image);
    let other = id(&house.backup("web", &image));
    let vm = hidden["vm"]["uuid"].as_str().unwrap().replace('-', "");
    damage(&house, |name| name.starts_with(&format!("v.{vm}.")));

    let run = Run::of(house.command(["--json", "snapshots"]).output().unwrap());
    assert_eq!(run.code, Some(20), "{run:?}");
    let mut lines = run.lines().into_iter();
    let summary = lines.find(|line| line["message_type"] == "summary").unwrap();
    assert_eq!(summary["damaged_vms"], serde_json::json!(["db"]));
    let listed = summary["snapshots"].as_array().unwrap();
    assert_eq!(listed.len(), 1, "{summary}");
    let text = house.run(["snapshots"]);
    assert!(text.stderr.contains("the snapshots of db cannot be listed"), "{text:?}");
    for words in [&["restore", &other[..8]][..], &["restore", "latest", "--vm", "web"]] {
        let target = house.word("out");
        house.good(words.iter().chain(&["--target", &target]));
        assert_restored(&house.path("out"), &disk.bytes);
        std::fs::remove_file(&target).unwrap();
    }
    let target = house.word("hidden");
    let run = house.run(["restore", &id(&hidden), "--target", &target]);
    assert_eq!(run.code, Some(20), "{run:?}");
    house.good(["forget", &other]);
}
