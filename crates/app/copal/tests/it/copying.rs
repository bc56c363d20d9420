//! `copal copy` between repositories with different passwords and places.

use crate::{
    cluster::Served,
    harness::{House, Run, Running, id},
};
use copal_testkit::{ObjectServer, Random};
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// A repository to copy from, and one with another password to copy to.
struct Pair {
    house: House,
    other: String,
    /// File of the other password.
    password: String,
}

impl Pair {
    fn of(house: House, layout: &str) -> Pair {
        std::fs::write(house.path("other-password"), "another secret\n").unwrap();
        let (other, password) = (house.word("other"), house.word("other-password"));
        let pair = Pair { house, other, password };
        pair.there(&["init", "--size", "64MiB", "--layout", layout]);
        pair
    }

    /// Words that name the other repository as the one to copy to.
    fn copy<'a>(&'a self, words: &[&'a str]) -> Vec<&'a str> {
        [&["copy"], words, &["--to", &self.other, "--to-password-file", &self.password]].concat()
    }

    /// Runs a command on the other repository.
    fn there(&self, words: &[&str]) -> Run {
        let mut command = Command::new(env!("CARGO_BIN_EXE_copal"));
        command.env_remove("COPAL_PASSWORD").args(["--allow-cow", "--allow-volatile"]).args(words);
        command.args(["--repo", &self.other, "--password-file", &self.password]);
        let run = Run::of(command.output().unwrap());
        assert_eq!(run.code, Some(0), "{words:?}: {run:?}");
        run
    }

    /// All snapshots of the other repository.
    fn snapshots(&self) -> Vec<serde_json::Value> {
        let summary = self.there(&["snapshots", "--json"]).summary();
        summary["snapshots"].as_array().unwrap().clone()
    }
}

/// An image of random bytes.
fn image(house: &House, name: &str, seed: u64, bytes: usize) -> PathBuf {
    let path = house.path(name);
    std::fs::write(&path, Random::new(seed).bytes(bytes)).unwrap();
    path
}

fn same(one: &Path, other: &Path) -> bool {
    std::fs::read(one).unwrap() == std::fs::read(other).unwrap()
}

fn bad(house: &House, words: &[&str], code: i32) -> String {
    let run = house.run(words);
    assert_eq!(run.code, Some(code), "{words:?}: {run:?}");
    run.sentence().to_owned()
}

#[test]
fn snapshots_go_to_a_repository_with_another_password() {
    let pair = Pair::of(House::encrypted(), "fleet");
    let house = &pair.house;
    let disk = image(house, "disk.raw", 301, 5 << 20);
    house.good(["backup", "--vm", "web", "--tag", "nightly", disk.to_str().unwrap()]);
    let held = id(&house.backup("mail", &image(house, "mail.raw", 302, 1 << 20)));
    house.good(["hold", &held]);

    let dry = house.summary(pair.copy(&["--all", "--dry-run"]));
    assert_eq!((&dry["copied"], &dry["logical_bytes"]), (&0.into(), &(6 << 20).into()), "{dry}");
    assert!(pair.snapshots().is_empty());
    let first = house.summary(pair.copy(&["--all"]));
    assert_eq!((&first["copied"], &first["present"]), (&2.into(), &0.into()), "{first}");
    assert!(first["peak_memory_bytes"].as_u64().unwrap() <= 100_000_000, "{first}");
    let again = house.summary(pair.copy(&["--all"]));
    assert_eq!((&again["copied"], &again["present"]), (&0.into(), &2.into()), "{again}");

    // A second backup: only the changes are read.
    let mut bytes = std::fs::read(&disk).unwrap();
    bytes[1 << 20..][..5000].fill(7);
    std::fs::write(&disk, bytes).unwrap();
    house.backup("web", &disk);
    let run = house.good(pair.copy(&["--vm", "web"]));
    let text = String::from_utf8(run.stdout).unwrap();
    assert!(text.contains("copied as") && text.contains("1 snapshot copied, 1 there before"), "{text}");
    let listed = pair.snapshots();
    assert_eq!(listed.len(), 3);
    let newest = listed.iter().rfind(|one| one["vm"]["name"] == "web").unwrap();
    assert_eq!(newest["disks"][0]["mode"], "incremental", "{newest}");
    assert!(newest["counts"]["read_bytes"].as_u64().unwrap() < 1 << 20, "{newest}");
    let mail = listed.iter().find(|one| one["vm"]["name"] == "mail").unwrap();
    assert_eq!((&mail["held_until"], &mail["copied_from"]["snapshot"]), (&"release".into(), &held.into()));
    let out = house.word("out.raw");
    pair.there(&["restore", "latest", "--vm", "web", "--target", &out]);
    assert!(same(&disk, Path::new(&out)));
    pair.there(&["check", "--read-data"]);
    let table = String::from_utf8(pair.there(&["snapshots"]).stdout).unwrap();
    assert_eq!(table.matches("copy of ").count(), 3, "{table}");
    let ls = String::from_utf8(pair.there(&["ls", "latest", "--vm", "web"]).stdout).unwrap();
    assert!(ls.contains("copy of: "), "{ls}");
}

#[test]
fn sentences_name_the_side_that_failed() {
    let pair = Pair::of(House::plain(), "solo");
    let house = &pair.house;
    let disk = image(house, "disk.raw", 303, 300_000);
    let first = id(&house.backup("web", &disk));
    house.backup("web", &disk);
    let usage = bad(house, &pair.copy(&[]), 2);
    assert!(usage.contains("--vm NAME") && usage.contains("--all"), "{usage}");
    for words in [&["--all", "--vm", "web"][..], &["--all", "abcd"], &["abcd", "--since", "3d"]] {
        assert_eq!(house.run(pair.copy(words)).code, Some(2), "{words:?}");
    }
    let itself = house.word("repository");
    assert!(bad(house, &["copy", "--all", "--to", &itself], 2).contains("is the one to copy from"));
    // The same repository under another name.
    std::fs::create_dir(house.path("twin")).unwrap();
    std::fs::copy(house.store(), house.path("twin/store.copal")).unwrap();
    assert!(
        bad(house, &["copy", "--all", "--to", &house.word("twin")], 2).contains("is the one to copy from")
    );
    let to = "the repository to copy to: ";
    let (none, wrong, other) = (house.word("none"), house.word("password"), pair.other.as_str());
    for (words, code, part) in [
        (&["copy", "--all", "--to", &none][..], 10, "there is no repository"),
        (&["copy", "--all", "--to", other], 12, "is encrypted"),
        (&["copy", "--all", "--to", other, "--to-password-file", &wrong], 12, "wrong password"),
        (&["copy", "--all", "--to", other, "--to-password-file", &none], 12, "cannot read the password"),
    ] {
        let sentence = bad(house, words, code);
        assert!(sentence.starts_with(to) && sentence.contains(part), "{sentence}");
    }
    let from = bad(house, &pair.copy(&["--all", "--repo", &none]), 10);
    assert!(from.starts_with("the repository to copy from: "), "{from}");
    let unknown = bad(house, &pair.copy(&["--vm", "none"]), 1);
    assert!(unknown.starts_with("the repository to copy from: no VM named none"), "{unknown}");
    // One that would be behind a newer one.
    house.good(pair.copy(&["latest"]));
    let older = bad(house, &pair.copy(&[&first]), 21);
    assert!(older.contains("older than the newest snapshot of web"), "{older}");
    let run = house.good(pair.copy(&["--all"]));
    assert!(run.stderr.contains("1 snapshot is older"), "{run:?}");
}

/// A damaged snapshot: the others are copied, and the exit code is 1.
#[test]
fn a_damaged_snapshot_does_not_stop_the_others() {
    let house = House::of_files();
    for (name, seed, bytes) in [("a", 304, 200_000), ("b", 305, 4 << 20), ("c", 306, 200_000)] {
        house.backup(name, &image(&house, name, seed, bytes));
    }
    let objects = house.repository().join("store.files/objects");
    let files = std::fs::read_dir(objects).unwrap().map(|entry| entry.unwrap().path());
    let largest = files.max_by_key(|path| (std::fs::metadata(path).unwrap().len(), path.clone())).unwrap();
    let mut bytes = std::fs::read(&largest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&largest, bytes).unwrap();
    let other = house.word("other");
    house.good(["init", "--size", "64MiB", "--repo", &other]);
    let mut command = house.command(["--json", "copy", "--all", "--to", &other]);
    command.env("COPAL_LOG", "off");
    let run = Run::of(command.output().unwrap());
    assert_eq!(run.code, Some(1), "{run:?}");
    let lines = run.lines();
    let of = |kind: &str| lines.iter().filter(|line| line["message_type"] == kind).collect::<Vec<_>>();
    assert_eq!(of("item").len(), 2, "{run:?}");
    let [error] = of("error")[..] else { panic!("{run:?}") };
    assert_eq!((&error["vm"], &error["code"]), (&"b".into(), &"damaged".into()));
    assert!(error["message"].as_str().unwrap().contains("the repository to copy from: "), "{error}");
    let summary = of("summary")[0];
    assert_eq!((&summary["copied"], &summary["failed"]), (&2.into(), &1.into()), "{summary}");
    house.good(["check", "--repo", &other]);
}

/// A copy that was killed is continued by the same command.
#[test]
fn a_killed_copy_goes_on() {
    let pair = Pair::of(House::plain(), "solo");
    let house = &pair.house;
    let (small, large) = (image(house, "a.raw", 307, 100_000), image(house, "b.raw", 308, 6 << 20));
    house.backup("a", &small);
    house.backup("b", &large);
    let mut running = Running::start(house, pair.copy(&["--all"]));
    let item = running.wait_for("item");
    assert_eq!(item["vm"]["name"], "a", "{item}");
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    let rest = house.summary(pair.copy(&["--all"]));
    assert_eq!(rest["copied"].as_u64().unwrap() + rest["present"].as_u64().unwrap(), 2, "{rest}");
    assert!(rest["present"].as_u64().unwrap() >= 1, "{rest}");
    let out = house.word("out.raw");
    pair.there(&["restore", "latest", "--vm", "b", "--target", &out]);
    assert!(same(&large, Path::new(&out)));
    pair.there(&["check", "--read-data"]);
}

fn with_credentials(mut command: Command) -> Run {
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    command.env("AWS_ACCESS_KEY_ID", "ak").env("AWS_SECRET_ACCESS_KEY", "sk");
    Run::of(command.output().unwrap())
}

#[test]
fn snapshots_go_to_an_object_store_and_back() {
    let server = ObjectServer::start();
    server.create_bucket("vms");
    let endpoint = format!("endpoint={}&region=us-east-1", server.url());
    let url = format!("s3://vms/office?{endpoint}");
    let house = House::plain();
    let run =
        |words: &[&str]| with_credentials(house.command([&["--retry-for", "0s", "--json"], words].concat()));
    let good = |words: &[&str]| {
        let run = run(words);
        assert_eq!(run.code, Some(0), "{words:?}: {run:?}");
        run.summary()
    };
    let disk = image(&house, "disk.raw", 309, 3 << 20);
    house.backup("web", &disk);
    let refused = "s3://vms/p?endpoint=http://127.0.0.1:1&region=x".to_owned();
    let missing = format!("s3://missing/p?{endpoint}");
    for (to, code, part) in [
        (&missing, 10, "there is no bucket `missing`"),
        (&refused, 42, "refuses the connection"),
        (&url, 10, "there is no repository"),
    ] {
        let run = run(&["copy", "--all", "--to", to]);
        assert_eq!(run.code, Some(code), "{to}: {run:?}");
        let sentence = run.sentence();
        assert!(sentence.starts_with("the repository to copy to: ") && sentence.contains(part), "{sentence}");
    }
    good(&["init", "--repo", &url]);
    let first = good(&["copy", "--all", "--to", &url]);
    assert_eq!((&first["copied"], &first["failed"]), (&1.into(), &0.into()), "{first}");
    let again = good(&["copy", "--all", "--to", &url]);
    assert_eq!((&again["copied"], &again["present"]), (&0.into(), &1.into()), "{again}");
    // Back to another directory; the first one has the original.
    let other = house.word("other");
    good(&["init", "--size", "64MiB", "--repo", &other]);
    let back = good(&["copy", "--vm", "web", "--repo", &url, "--to", &other]);
    assert_eq!(back["copied"], 1, "{back}");
    let origin = good(&["copy", "--all", "--repo", &url, "--to", house.repository().to_str().unwrap()]);
    assert_eq!((&origin["copied"], &origin["present"]), (&0.into(), &1.into()), "{origin}");
    let out = house.word("out.raw");
    good(&["restore", "latest", "--repo", &other, "--target", &out]);
    assert!(same(&disk, Path::new(&out)));
}

/// From a cluster to a directory, to an object store, and back into another repository of the cluster.
#[test]
fn a_cluster_and_an_object_store_are_sources_and_targets() {
    let cluster = Served::start(&[]);
    let server = ObjectServer::start();
    server.create_bucket("vms");
    let password = cluster.file("pw", b"secret\n");
    let at = |volume: &str| format!("copal://127.0.0.1:{}/{volume}", cluster.port);
    let bucket = format!("s3://vms/office?endpoint={}&region=us-east-1", server.url());
    let places =
        [at("vms"), cluster.scratch.path().join("local").to_str().unwrap().to_owned(), bucket, at("copies")];
    let copal = |words: &[&str], place: &str| {
        let mut command = cluster.command(words);
        command.args(["--repo", place, "--password-file", &password, "--allow-cow", "--allow-volatile"]);
        command.env("AWS_ACCESS_KEY_ID", "ak").env("AWS_SECRET_ACCESS_KEY", "sk");
        command.env("XDG_CACHE_HOME", cluster.scratch.path().join("xdg"));
        let run = Run::of(command.output().unwrap());
        assert_eq!(run.code, Some(0), "{words:?} {place}: {run:?}");
    };
    copal(&["init"], &places[0]);
    let disks = [1, 2].map(|seed| Random::new(seed).bytes(3 << 20));
    for (day, disk) in disks.iter().enumerate() {
        let image = cluster.file(&format!("day{day}.raw"), disk);
        copal(&["backup", "--vm", "web", &image], &places[0]);
    }
    for pair in places.windows(2) {
        copal(&["init", "--layout", "fleet"], &pair[1]);
        copal(&["copy", "--all", "--to", &pair[1]], &pair[0]);
        copal(&["check", "--read-data"], &pair[1]);
        let target = cluster.scratch.path().join("out.raw");
        copal(
            &["restore", "latest", "--vm", "web", "--force", "--target", target.to_str().unwrap()],
            &pair[1],
        );
        assert!(std::fs::read(&target).unwrap() == disks[1], "{pair:?}");
    }
}
