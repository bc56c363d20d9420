//! The layout fleet on one machine: separate VMs, deletion by vectors, removal of a VM.

use crate::{
    disks::{Disk, MIB, assert_restored},
    harness::{House, id},
};
use serde_json::Value;

/// A number of a summary.
fn count(summary: &Value, name: &str) -> u64 {
    let number = summary[name].as_u64();
    number.unwrap_or_else(|| panic!("no {name} in {summary}"))
}

#[test]
fn vms_of_a_fleet_are_apart_and_deleted_by_vectors() {
    let house = House::empty();
    let made = house.summary(["init", "--size", "64MiB", "--layout", "fleet", "--pds-fraction", "30%"]);
    assert_eq!((&made["layout"], &made["pds_fraction"]), (&"fleet".into(), &0.3.into()));
    let mut disk = Disk::create(&house.path("disk.raw"), 16 * MIB, 80);
    let db = house.backup("db", &house.path("disk.raw"));
    let db_bytes = disk.bytes.clone();
    let mut days = Vec::new();
    for _ in 0..4 {
        let summary = house.backup("web", &house.path("disk.raw"));
        days.push((id(&summary), disk.bytes.clone()));
        disk.mutate(20);
    }
    // A VM does not share the data of the other.
    let web = house.summary(["stats", "--vm", "web"]);
    assert_eq!(count(&web, "snapshots"), 4);
    assert!(
        count(&web, "chunk_pack_bytes") >= count(&house.summary(["stats", "--vm", "db"]), "chunk_pack_bytes")
    );

    // Estimated, then done: by vectors, with figures.
    let (gone, _) = days.remove(1);
    let dry = house.summary(["delete", &gone, "--dry-run"]);
    let freed = house.summary(["delete", &gone]);
    assert_eq!(freed["mode"], "summary", "{freed}");
    for name in ["candidates", "dead", "kept", "freed_bytes", "read_bytes", "peak_bytes"] {
        assert!(count(&freed, name) > 0, "{name}: {freed}");
    }
    assert_eq!(count(&freed, "candidates"), count(&freed, "dead") + count(&freed, "kept"));
    assert_eq!(count(&dry, "dead"), count(&freed, "dead"), "{dry}");
    assert!(freed["seconds"].is_number() && freed["leak_estimate_bytes"].is_number(), "{freed}");
    let (gone, _) = days.remove(1);
    let exact = house.summary(["delete", &gone, "--exact"]);
    assert_eq!(exact["mode"], "exact", "{exact}");
    house.check();
    let repaired = house.summary(["repair", "leak", "--vm", "web"]);
    assert!(count(&repaired, "live_frames") > 0, "{repaired}");
    for (day, (snapshot, bytes)) in days.iter().enumerate() {
        assert_restored(&house.restore(snapshot, &format!("{day}.out")), bytes);
    }

    // A VM is removed with all its data, if that was confirmed.
    let listed = house.summary(["vm", "ls"]);
    assert_eq!(listed["vms"].as_array().unwrap().len(), 2, "{listed}");
    let refused = house.run(["vm", "rm", "web"]);
    assert_eq!(refused.code, Some(21));
    assert!(refused.sentence().contains("--force"), "{}", refused.sentence());
    house.good(["vm", "rm", "web", "--force"]);
    assert_eq!(house.snapshots(), [id(&db)]);
    house.check();
    assert_restored(&house.restore(&id(&db), "db.out"), &db_bytes);
    let unknown = house.run(["vm", "rm", "web"]);
    assert_eq!(unknown.code, Some(1));
}

#[test]
fn fleet_commands_are_refused_in_the_layout_solo() {
    let house = House::plain();
    let disk = house.path("disk.raw");
    Disk::create(&disk, MIB, 81);
    house.backup("web", &disk);
    for words in
        [&["stats", "--vm", "web"][..], &["vm", "rm", "web", "--force"], &["repair", "leak", "--vm", "web"]]
    {
        let refused = house.run(words);
        assert_eq!(refused.code, Some(21), "{words:?}");
        assert!(refused.sentence().contains("solo"), "{}", refused.sentence());
    }
    let elsewhere = House::empty();
    for (words, part) in [
        (&["init", "--pds-fraction", "4%"][..], "--layout fleet"),
        (&["init", "--layout", "fleet", "--pds-fraction", "101%"], "101%"),
        (&["init", "--layout", "fleet", "--pds-fraction", "some"], "some"),
    ] {
        let refused = elsewhere.run(words);
        assert_eq!(refused.code, Some(2), "{words:?}");
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
    assert!(!elsewhere.repository().exists(), "nothing was made");
}
