//! `--backend`: a store in segments behaves like any other, and impossible ones are refused with a sentence.

use crate::{
    cluster::Served,
    disks::{Disk, MIB, assert_restored},
    harness::{House, Run, id},
    loop_device::LoopDevice,
};
use std::{fs::File, os::unix::fs::FileExt, path::Path};

/// Number of the backend in the first copy of a store's superblock.
const COW: u8 = 1;
const LOG: u8 = 2;

fn backend_of(store: &Path) -> u8 {
    let mut byte = [0];
    File::open(store).unwrap().read_exact_at(&mut byte, 56).unwrap();
    byte[0]
}

/// Backups, deletions and a prune on a repository, and the engine's commands on its store.
fn lives(house: &House) {
    let mut disk = Disk::create(&house.path("disk.raw"), 12 * MIB, 170);
    let mut days = Vec::new();
    for _ in 0..3 {
        days.push((id(&house.backup("web", &house.path("disk.raw"))), disk.bytes.clone()));
        disk.mutate(40);
    }
    house.check();
    house.good(["delete", &days.remove(0).0]);
    house.good(["prune", "--keep-last", "2", "--max-unused", "0"]);
    house.check();
    for (day, (snapshot, bytes)) in days.iter().enumerate() {
        assert_restored(&house.restore(snapshot, &format!("{day}.out")), bytes);
    }
    house.good(["kv", "stats"]);
    house.good(["kv", "verify", "--deep"]);
    house.good(["kv", "dump"]);
}

#[test]
fn a_repository_in_segments_behaves_like_any_other() {
    let house = House::without_password();
    house.good(["init", "--backend", "log"]);
    assert_eq!(backend_of(&house.store()), LOG);
    assert_eq!(house.store().metadata().unwrap().len(), 256 * MIB);
    lives(&house);
    // A repaired store is of the same kind, unless another one is named.
    for (name, more, expected) in [("same", &[][..], LOG), ("other", &["--backend", "cow"], COW)] {
        let new = house.word(name);
        let words = ["repair", "store", "--to", &new];
        house.good(words.iter().chain(more));
        assert_eq!(backend_of(&house.path(name).join("store.copal")), expected, "{name}");
    }
    let same = House::elsewhere(&house.path("same"));
    assert_eq!(same.snapshots(), house.snapshots());
    same.check();
}

#[test]
fn a_block_device_takes_segments_unless_it_is_too_small() {
    let scratch = House::empty();
    let Some(device) = LoopDevice::attach(&scratch.path("disk"), 256 * MIB) else { return };
    let house = House::elsewhere(&device.path).without_ring();
    house.good(["init", "--backend", "log"]);
    assert_eq!(backend_of(&device.path), LOG);
    lives(&house);
    let Some(device) = LoopDevice::attach(&scratch.path("small"), 255 * MIB) else { return };
    let house = House::elsewhere(&device.path).without_ring();
    let refused = house.run(["init", "--backend", "log"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.sentence().contains("256MiB") && refused.sentence().contains("--backend cow"));
    assert_eq!(backend_of(&device.path), 0, "nothing was written");
}

#[test]
fn impossible_backends_are_refused_before_anything_is_made() {
    let house = House::empty();
    let refused = house.run(["init", "--backend", "log", "--size", "255MiB"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.sentence().contains("256MiB") && refused.sentence().contains("--backend cow"));
    assert!(!house.repository().exists());
    let refused = house.run(["--repo", "copal://127.0.0.1:1/vms", "init", "--backend", "log"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.sentence().contains("--backend"), "{refused:?}");
    // The files of an agent on a local repository hold no store.
    let house = House::fleet();
    std::fs::write(house.path("plan.json"), r#"{"v":1,"vms":[]}"#).unwrap();
    let (state, plan) = (house.word("state"), house.word("plan.json"));
    let words = ["agent", "--name", "h1", "--once", "--state", &state, "--plan", &plan, "--backend", "log"];
    let refused = house.run(words);
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.sentence().contains("leave it out"), "{refused:?}");
}

/// The choice is printed with its reason, and the store keeps the profile that led to it.
#[test]
fn auto_measures_the_disk_and_says_what_suits_it() {
    let house = House::without_password();
    let mut init = house.command(["--json"]);
    let run = Run::of(init.args(["init", "--backend", "auto"]).output().unwrap());
    assert_eq!(run.code, Some(0), "{run:?}");
    let lines = run.lines();
    let said = lines.iter().find(|line| line["message_type"] == "backend").unwrap();
    // On a disk that suits segments too, only a person chooses them.
    assert_eq!((&said["backend"], backend_of(&house.store())), (&"cow".into(), COW), "{said}");
    assert!(said["suits"] == "cow" || said["suits"] == "log", "{said}");
    assert!(!said["reason"].as_str().unwrap().is_empty());
    let entries: Vec<_> = std::fs::read_dir(house.path(".")).unwrap().collect();
    assert_eq!(entries.len(), 2, "the password and the repository: {entries:?}");
    lives(&house);
    let repository = house.repository();
    let word = repository.to_str().unwrap();
    let held = house.summary(["device", "profile", "--store", word]);
    assert_eq!(held["profile"]["reason"], said["reason"], "{held}");
    assert_eq!(held["store_gap_bytes"], held["profile"]["gap_bytes"], "{held}");
    let refused = house.run(["--repo", "copal://127.0.0.1:1/vms", "init", "--backend", "auto"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");
}

#[test]
fn a_person_gives_a_store_another_profile() {
    let house = House::plain();
    let store = house.word("repository");
    let none = house.summary(["device", "profile", "--store", &store]);
    assert!(none["profile"].is_null() && none["store_depth"] == 64, "{none}");
    let page = include_str!("../../../../../docs/formats/device-profile.md");
    let text = page.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let text = text.replace("plp no", "plp yes");
    std::fs::write(house.path("profile"), &text).unwrap();
    let file = house.word("profile");
    house.good(["device", "profile", "--store", &store, "--set", &file]);
    let shown = house.good(["device", "profile", "--store", house.store().to_str().unwrap()]);
    assert_eq!(String::from_utf8(shown.stdout).unwrap(), text);
    let held = house.summary(["device", "profile", "--store", &store]);
    assert_eq!(
        (&held["profile"]["plp"], &held["store_gap_bytes"]),
        (&true.into(), &2_375_680.into()),
        "{held}"
    );
    house.check();
    // Mistakes change nothing.
    for (text, part) in [("", "no profile"), (&text.replace("kind block", "kind x"), "line 2")] {
        std::fs::write(house.path("profile"), text).unwrap();
        let refused = house.run(["device", "profile", "--store", &store, "--set", &file]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.sentence().contains(part), "{refused:?}");
    }
    std::fs::write(house.path("profile"), vec![b'x'; 10 << 20]).unwrap();
    assert_eq!(house.run(["device", "profile", "--store", &store, "--set", &file]).code, Some(2));
    let none = house.run(["device", "profile", "--store", &house.word("nothing")]);
    assert_eq!(none.code, Some(10), "{none:?}");
}

/// Data servers in segments, and an agent whose cache lies in segments.
#[test]
fn servers_and_caches_take_segments() {
    let cluster = Served::start(&["--backend", "log"]);
    let directory = cluster.scratch.path().join("c/data1");
    assert_eq!(backend_of(&directory.join("store.copal")), LOG);
    let body = cluster.file("body", &[7; 100_000]);
    cluster.good(&["fs", "mkdir", "mail"]);
    cluster.good(&["fs", "put", "mail", "m1", &body]);
    let out = cluster.scratch.path().join("out");
    cluster.good(&["fs", "get", "mail", "m1", out.to_str().unwrap()]);
    assert_eq!(std::fs::read(out).unwrap(), [7; 100_000]);

    let repo = format!("copal://127.0.0.1:{}/vms", cluster.port);
    let password = cluster.file("pw", b"secret\n");
    let common = ["--repo", &repo, "--password-file", &password];
    let with = |words: &[&str]| cluster.good(&common.iter().chain(words).copied().collect::<Vec<_>>());
    with(&["init"]);
    let plan = cluster.file("plan.json", br#"{"v":1,"vms":[]}"#);
    let state = cluster.scratch.path().join("state");
    let state_word = state.to_str().unwrap();
    with(&["agent", "--name", "h1", "--once", "--state", state_word, "--plan", &plan, "--backend", "log"]);
    assert_eq!(backend_of(&state.join("cache/store.copal")), LOG);
}
