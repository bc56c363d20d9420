//! Racks of servers, usage of disks, and the explanation of degraded groups: the output for an operator.

use crate::cluster::Served;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
};

/// A restarted server of the cluster, until the end of the test.
pub(crate) struct Again(Child);

impl Again {
    pub(crate) fn start(cluster: &Served, name: &str, more: &[&str]) -> Again {
        let dir = cluster.scratch.path().join("c").join(name);
        let words = ["data", "--dir", dir.to_str().unwrap()];
        let mut process = cluster.command(&[&words, more].concat()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("ready"), "{line}");
        Again(process)
    }
}

impl Drop for Again {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg(self.0.id().to_string()).status();
        let _ = self.0.wait();
    }
}

/// An element of a list, by its name.
fn named(told: &Value, list: &str, name: &str) -> Value {
    let found = told[list].as_array().unwrap().iter().find(|one| one["name"] == name);
    found.unwrap().clone()
}

#[test]
fn a_rack_is_kept_for_later_starts_and_shown_and_may_be_changed() {
    let cluster = Served::start(&[]);
    assert_eq!(named(&cluster.reply(&["node", "ls"]), "nodes", "data2")["rack"], "");
    let at = |cluster: &Served| {
        let node = named(&cluster.reply(&["node", "ls"]), "nodes", "data2");
        let text = |field: &str| node[field].as_str().unwrap().to_owned();
        (text("zone"), text("rack"))
    };
    let told = |zone: &str, rack: &str| (zone.to_owned(), rack.to_owned());
    cluster.signal("data2", "-KILL");
    for (more, expected) in [
        (&["--rack", "r7", "--zone", "north"][..], told("north", "r7")),
        (&[], told("north", "r7")),
        (&["--rack", "r8"], told("north", "r8")),
        (&["--rack", "", "--zone", ""], told("", "")),
    ] {
        let again = Again::start(&cluster, "data2", more);
        cluster.good(&["status", "--wait", "healthy"]);
        assert_eq!(at(&cluster), expected, "{more:?}");
        if expected.1 == "r8" {
            let listed = cluster.good(&["node", "ls"]);
            assert!(listed.contains("north/r8"), "{listed}");
            let disk = named(&cluster.reply(&["disk", "ls"]), "disks", "data2");
            assert_eq!((&disk["zone"], &disk["rack"]), (&"north".into(), &"r8".into()));
        }
        drop(again);
    }
    let refused = cluster.bad(2, &["data", "--dir", "c/data2", "--rack", "a/b"]);
    assert!(refused.contains("no slashes"), "{refused}");
}

#[test]
fn a_disk_shows_its_used_and_its_available_bytes() {
    let cluster = Served::start(&["--limit", "1G"]);
    let told = cluster.reply(&["disk", "ls"]);
    assert_eq!(told["disks"].as_array().unwrap().len(), 3);
    let disk = named(&told, "disks", "data1");
    assert_eq!((&disk["groups"], &disk["state"]), (&64.into(), &"up".into()), "{disk}");
    let bytes = |field: &str| disk[field].as_u64().unwrap();
    assert!(bytes("used_bytes") > 0 && bytes("capacity_bytes") == 1_000_000_000, "{disk}");
    assert_eq!(bytes("copies_take_bytes") + bytes("used_bytes"), 800_000_000, "{disk}");
    // Up to the mark, or to the reserve of the engine on a small disk.
    let with_files = bytes("files_take_bytes") + bytes("used_bytes");
    assert!((800_000_000..=950_000_000).contains(&with_files), "{disk}");
    assert_eq!(disk["full"], false, "{disk}");
    let listed = cluster.good(&["disk", "ls"]);
    assert!(listed.lines().next().unwrap().contains("Server") && listed.contains("data3"), "{listed}");
}

#[test]
fn why_degraded_explains_a_missing_copy() {
    let cluster = Served::start(&[]);
    assert_eq!(cluster.good(&["group", "why-degraded", "7"]), "group 7 is in sync\n");
    let missing = cluster.bad(40, &["group", "why-degraded", "999"]);
    assert!(missing.contains("there is no group 999"), "{missing}");
    cluster.signal("data2", "-KILL");
    cluster.good(&["status", "--wait", "degraded"]);
    let story = cluster.good(&["group", "why-degraded", "7"]);
    for part in [
        "group 7 has 2 of 3 copies in sync",
        "it is taken for failed, since ",
        "next: the group waits for data2, 30 min more",
        "what happened:",
    ] {
        assert!(story.contains(part), "{part}\n{story}");
    }
    let told = cluster.reply(&["group", "why-degraded", "7"]);
    assert_eq!((&told["whole"], &told["whole_copies"]), (&false.into(), &2.into()));
    assert!(named(&told, "members", "data2")["since_ms"].is_u64(), "{told}");
}
