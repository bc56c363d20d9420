//! Incremental backups from lists of changed extents.

use crate::{
    disks::{Change, Disk, MIB, assert_restored},
    harness::{House, count, id},
};
use serde_json::{Value, json};

pub(crate) fn own_form(size: u64, base: Option<&str>, changes: &[Change]) -> Value {
    let extents: Vec<Value> = changes
        .iter()
        .map(|change| json!({ "offset": change.offset, "length": change.length, "type": "dirty" }))
        .collect();
    json!({ "v": 1, "size": size, "base": base, "extents": extents })
}

/// A whole map at 64 KiB, as `nbdinfo --json --map=qemu:dirty-bitmap:NAME` prints it.
fn map_form(size: u64, changes: &[Change]) -> Value {
    const GRAIN: u64 = 64 << 10;
    let dirty = |grain: u64| {
        changes.iter().any(|c| c.offset < (grain + 1) * GRAIN && c.offset + c.length > grain * GRAIN)
    };
    let mut entries: Vec<Value> = Vec::new();
    for grain in 0..size.div_ceil(GRAIN) {
        let length = GRAIN.min(size - grain * GRAIN);
        let (kind, words) = if dirty(grain) { (1, "dirty") } else { (0, "clean") };
        match entries.last_mut() {
            Some(last) if last["type"] == kind => {
                last["length"] = (last["length"].as_u64().unwrap() + length).into();
            }
            _ => entries.push(
                json!({ "offset": grain * GRAIN, "length": length, "type": kind, "description": words }),
            ),
        }
    }
    entries.into()
}

#[test]
fn an_incremental_backup_reads_only_changed_ranges() {
    let house = House::plain();
    let size = 64 * MIB;
    let mut disk = Disk::create(&house.path("disk.raw"), size, 10);
    house.backup("web", &house.path("disk.raw"));
    for day in 0..4 {
        let base = house.snapshots().pop().unwrap();
        let changes = disk.mutate(8);
        let (list, named) = match day {
            0 => (own_form(size, Some(&base), &changes), None),
            1 => (own_form(size, None, &changes), Some(&base)),
            2 => (own_form(size, Some(&base[..8]), &changes), None),
            _ => (map_form(size, &changes), Some(&base)),
        };
        std::fs::write(house.path("list.json"), list.to_string()).unwrap();
        let list = house.word("list.json");
        let image = house.word("disk.raw");
        let mut words =
            vec!["backup", "--vm", "web", "--strict-incremental", "--changed-extents", &list, &image];
        words.extend(named.into_iter().flat_map(|base| ["--base", base]));
        let summary = house.summary(words);
        assert_eq!(summary["disks"][0]["mode"], "incremental", "{summary}");
        let (read, dirty) = (count(&summary, "read_bytes"), count(&summary, "dirty_bytes"));
        assert!(read < 12 * MIB && read <= dirty * 2 + 4 * MIB, "read {read} for {dirty} dirty bytes");
        // A full read finds no change that the list left out.
        let rescan = house.backup("web", &house.path("disk.raw"));
        assert_eq!(count(&rescan, "new_bytes"), 0, "day {day}: {rescan}");
        assert_restored(&house.restore(&id(&summary), &format!("{day}.out")), &disk.bytes);
    }
    house.check();
}

#[test]
fn zeroed_extents_become_holes_unread() {
    let house = House::plain();
    let mut disk = Disk::create(&house.path("disk.raw"), 8 * MIB, 11);
    disk.write(0, 8 * MIB);
    let base = id(&house.backup("web", &house.path("disk.raw")));
    let file = std::fs::File::options().write(true).open(house.path("disk.raw")).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0; 3 << 20], MIB).unwrap();
    disk.bytes[1 << 20..4 << 20].fill(0);
    let extents = json!([{ "offset": MIB, "length": 3 * MIB, "type": "zero" }]);
    let list = json!({ "v": 1, "size": 8 * MIB, "base": base, "extents": extents });
    std::fs::write(house.path("list.json"), list.to_string()).unwrap();
    let list = house.word("list.json");
    let summary =
        house.summary(["backup", "--vm", "web", "--changed-extents", &list, &house.word("disk.raw")]);
    assert_eq!(summary["disks"][0]["mode"], "incremental", "{summary}");
    assert!(count(&summary, "read_bytes") <= MIB, "{summary}");
    assert_restored(&house.restore(&id(&summary), "out"), &disk.bytes);
}

#[test]
fn a_list_that_does_not_fit_is_refused_or_read_in_full() {
    let house = House::plain();
    let mut disk = Disk::create(&house.path("disk.raw"), 8 * MIB, 12);
    let first = id(&house.backup("web", &house.path("disk.raw")));
    house.backup("web", &house.path("disk.raw"));
    let changes = disk.mutate(2);
    let attempt = |list: &Value, more: &[&str]| {
        std::fs::write(house.path("list.json"), list.to_string()).unwrap();
        let list = house.word("list.json");
        let image = house.word("disk.raw");
        let mut words = vec!["backup", "--vm", "web", "--changed-extents", &list, &image];
        words.extend(more);
        house.run(words)
    };
    let before = house.snapshots();
    let run = attempt(&own_form(9 * MIB, None, &changes), &[]);
    assert_eq!(run.code, Some(3), "{run:?}");
    assert!(run.sentence().contains("9437184 bytes"), "{run:?}");
    for base in [&first, "ffffffff"] {
        let list = own_form(8 * MIB, Some(base), &changes);
        let run = attempt(&list, &["--strict-incremental"]);
        assert_eq!(run.code, Some(22), "{run:?}");
        assert!(run.sentence().contains("newest snapshot"), "{run:?}");
    }
    for (text, code) in [("{\"v\":2}", 3), ("[{}]", 3), ("not JSON", 3)] {
        std::fs::write(house.path("list.json"), text).unwrap();
        let list = house.word("list.json");
        let run = house.run(["backup", "--vm", "web", "--changed-extents", &list, &house.word("disk.raw")]);
        assert_eq!(run.code, Some(code), "{run:?}");
        assert!(run.sentence().contains("changed extents"), "{run:?}");
    }
    assert_eq!(house.snapshots(), before);
    // Without --strict-incremental a list of another base costs time, not the backup.
    let run = attempt(&own_form(8 * MIB, Some(&first), &changes), &["--json"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    let summary = run.summary();
    assert_eq!(summary["disks"][0]["mode"], "rescan");
    assert!(summary["disks"][0]["reason"].as_str().unwrap().contains("newest snapshot"), "{summary}");
    assert_restored(&house.restore(&id(&summary), "out"), &disk.bytes);
}

/// Symptom: one digit of an id sufficed to match a list with the newest snapshot. A list without a base was
/// applied to the newest snapshot, with `--base latest` or without: after a failed backup, to an older one
/// than the base of the list.
/// Cause: the text was taken as the beginning of an id; a list without a base was taken to refer to the last
/// backup.
/// Fix: a base is looked up in the repository by at least 4 digits, and a list must have one.
#[test]
fn the_base_of_a_list_is_looked_up() {
    let house = House::plain();
    let mut disk = Disk::create(&house.path("disk.raw"), 8 * MIB, 17);
    let image = house.word("disk.raw");
    let list = house.word("list.json");
    let words = |base: &str| {
        let words = ["backup", "--vm", "web", &image, "--changed-extents", &list, "--base", base];
        words.map(str::to_owned)
    };
    // A VM without a snapshot has no base; that is reported, and is no failure.
    let changes = disk.mutate(2);
    std::fs::write(&list, own_form(8 * MIB, None, &changes).to_string()).unwrap();
    let first = house.summary(words("latest"));
    assert_eq!(first["disks"][0]["mode"], "full", "{first}");
    for form in ["latest", "id", "beginning"] {
        let newest = house.snapshots().pop().unwrap();
        let base = match form {
            "id" => newest,
            "beginning" => newest[..6].to_uppercase(),
            word => word.to_owned(),
        };
        let changes = disk.mutate(3);
        std::fs::write(&list, own_form(8 * MIB, None, &changes).to_string()).unwrap();
        let summary = house.summary(words(&base));
        let (mode, reason) = match form {
            "latest" => ("rescan", "name no snapshot"),
            _ => ("incremental", ""),
        };
        assert_eq!(summary["disks"][0]["mode"], mode, "{form}: {summary}");
        assert!(summary["disks"][0]["reason"].as_str().unwrap().contains(reason), "{summary}");
        assert_restored(&house.restore(&id(&summary), &format!("{form}.out")), &disk.bytes);
    }
    let newest = house.snapshots().pop().unwrap();
    let refused = house.run(words(&newest[..1]));
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.sentence().contains("4 digits"), "{refused:?}");
    // An older snapshot is no base for this list, and neither is an unknown one.
    for base in [&house.snapshots()[0], "ffffffffffffffff"] {
        let summary = house.summary(words(base));
        assert_eq!(summary["disks"][0]["mode"], "rescan", "{base}: {summary}");
    }
    // The list itself names its base.
    std::fs::write(&list, own_form(8 * MIB, Some(&newest), &[]).to_string()).unwrap();
    let refused = house.run(words("latest"));
    assert_eq!(refused.code, Some(2), "{refused:?}");
    // The newest snapshot is forgotten: no list contains the changes before it.
    let newest = house.snapshots().pop().unwrap();
    house.good(["forget", &newest]);
    std::fs::write(&list, own_form(8 * MIB, None, &disk.mutate(1)).to_string()).unwrap();
    let summary = house.summary(words(&newest));
    assert_eq!(summary["disks"][0]["mode"], "rescan", "{summary}");
    assert_restored(&house.restore(&id(&summary), "last.out"), &disk.bytes);
}

/// Symptom: a list that leaves out a change silently made a wrong snapshot.
/// Cause: there was no check. Fix: a spot check, whose cost the summary counts, and whose findings are
/// warnings.
#[test]
fn a_list_that_leaves_out_a_change_is_found_out() {
    let house = House::plain();
    let mut disk = Disk::create(&house.path("disk.raw"), 8 * MIB, 18);
    disk.write(0, 8 * MIB);
    let image = house.word("disk.raw");
    let base = id(&house.backup("web", &house.path("disk.raw")));
    let list = house.word("list.json");
    std::fs::write(&list, own_form(8 * MIB, Some(&base), &[]).to_string()).unwrap();
    let words = ["backup", "--vm", "web", "--changed-extents", &list, &image];
    let unchecked = house.run([&["--json"][..], &words, &["--spot-check", "0%"]].concat());
    assert_eq!(count(&unchecked.summary(), "spot_check_bytes"), 0);
    let base = id(&unchecked.summary());
    std::fs::write(&list, own_form(8 * MIB, Some(&base), &[]).to_string()).unwrap();
    disk.write(5 * MIB, 1);
    for share in ["1", "101%", "-1%", "x%"] {
        let share = format!("--spot-check={share}");
        assert_eq!(house.run([&words[..], &[&share]].concat()).code, Some(2), "{share}");
    }
    let summary = house.summary(words);
    assert_eq!(summary["disks"][0]["mode"], "rescan", "{summary}");
    assert!(count(&summary, "spot_check_bytes") > 0, "{summary}");
    assert!(summary["warnings"].to_string().contains("differ from the last snapshot"), "{summary}");
    assert_restored(&house.restore(&id(&summary), "out"), &disk.bytes);
}
