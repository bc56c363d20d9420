//! The examples of every `--help`, run as printed.
//!
//! Only the places are moved into a scratch directory, and the invented ids and numbers become real ones. An
//! example whose other programs are not installed is skipped with a message.

use crate::{
    cluster::named_copal,
    disks::{Disk, MIB},
    harness::{House, id},
    live::{Daemon, have_daemon},
};
use serde_json::json;
use std::{
    fs::File,
    process::{Command, Stdio},
};

/// Directories in examples.
const PLACES: [&str; 8] = [
    "/var/lib/images/",
    "/backup/",
    "/root/",
    "/tmp/",
    "/dev/vg/",
    "/mnt/",
    "/run/",
    "/etc/bash_completion.d/",
];
/// Examples that cannot succeed here, with their exit codes. There is no VM, a storage daemon has no guest, and the disks
/// are too short for a probe. The repository lies elsewhere, and there are no credentials of an object store.
const FAILING: [(&str, i32); 11] = [
    ("disk sda='nbd+unix:", 3),
    ("target 'nbd+unix:", 1),
    ("--freeze agent", 3),
    ("copal device probe", 2),
    ("--set disk.profile", 2),
    ("copal device profile --store /backup/copal", 10),
    ("copal device fsck /backup/copal", 2),
    ("copal device df /backup/copal", 2),
    ("copal device dump /backup/copal", 2),
    ("copal device scrub /backup/copal", 2),
    ("s3://", 12),
];
/// The bitmap that an example removes.
const BITMAP: &str = "copal-5f3a9c01-81b2c4d6-0e9f7a35";
/// Commands of a cluster: `cluster_examples` runs their examples against one.
const OF_CLUSTERS: [&str; 13] = [
    "client",
    "disk",
    "doctor",
    "meta",
    "master",
    "data",
    "serve",
    "status",
    "events",
    "fs",
    "node",
    "group",
    "rebalance",
];
/// Commands that run until they are ended: here after some seconds.
const RUNNING: [&str; 2] = ["copal nbd", "copal mount"];
/// Commands after which the next example needs a new repository.
const TAKING: [&str; 4] = ["init", "forget", "delete", "prune"];

pub(crate) fn help(house: &House, path: &[String]) -> String {
    let words = path.iter().cloned().chain(["--help".to_owned()]);
    String::from_utf8(house.good(words).stdout).unwrap()
}

/// All commands as lists of words, the program itself first.
pub(crate) fn commands(house: &House) -> Vec<Vec<String>> {
    let mut found = vec![Vec::new()];
    let mut at = 0;
    while let Some(path) = found.get(at).cloned() {
        at += 1;
        let text = help(house, &path);
        let listed = text.lines().skip_while(|line| *line != "Commands:").skip(1);
        for line in listed.take_while(|line| !line.is_empty()) {
            match line.split_whitespace().next() {
                Some("help") | None => {}
                Some(name) => found.push([&path[..], &[name.to_owned()]].concat()),
            }
        }
    }
    found
}

/// The lines below `title`, without comments in brackets at their ends.
pub(crate) fn lines_below(text: &str, titles: &[&str]) -> Vec<String> {
    let below = text.lines().skip_while(|line| !titles.contains(line)).skip(1);
    below
        .take_while(|line| line.starts_with("  "))
        .map(|line| {
            let line = line.trim();
            match line.rfind("  (") {
                Some(comment) if line.ends_with(')') => line[..comment].trim_end().to_owned(),
                _ => line.to_owned(),
            }
        })
        .collect()
}

/// Examples of agents are run in `rounds`, where there are some.
pub(crate) fn is_of_agents(path: &[String]) -> bool {
    matches!(path.first().map(String::as_str), Some("agent" | "job" | "pds"))
}

pub(crate) fn is_of_cluster(path: &[String], line: &str) -> bool {
    let command = path.first().map_or("", String::as_str);
    OF_CLUSTERS.contains(&command) || line.contains("copal://")
}

/// A repository with all files that the examples expect.
struct Scene {
    house: House,
    /// A snapshot with two disks.
    snapshot: String,
    /// In place of a QEMU.
    _daemon: Option<Daemon>,
}

/// Whether an example needs a fleet.
fn is_of_fleet(path: &[String], line: &str) -> bool {
    let words: Vec<&str> = path.iter().map(String::as_str).collect();
    matches!(words[..], ["vm", "rm"] | ["repair", "leak"]) || line.contains("stats --vm")
}

impl Scene {
    fn new() -> Scene {
        Scene::in_house(House::encrypted())
    }

    fn in_house(house: House) -> Scene {
        let root = house.path("");
        for place in PLACES {
            std::fs::create_dir_all(root.join(&place[1..])).unwrap();
        }
        std::fs::create_dir_all(root.join("mnt/replica")).unwrap();
        for (name, seed) in
            [("var/lib/images/web.raw", 200), ("dev/vg/db-root", 201), ("dev/vg/db-data", 202)]
        {
            Disk::create(&root.join(name), MIB, seed);
        }
        std::fs::copy(house.path("password"), root.join("root/copal.password")).unwrap();
        house.backup("web", &root.join("var/lib/images/web.raw"));
        let disk = |name: &str| format!("{name}={}/dev/vg/db-data", root.display());
        let made = house.summary(["backup", "--vm", "db", "--disk", &disk("sda"), "--disk", &disk("sdb")]);
        for copy in ["mnt/replica/store.copal", "cache.kv"] {
            std::fs::copy(house.store(), root.join(copy)).unwrap();
        }
        std::fs::write(root.join("asked.txt"), "a key\n").unwrap();
        let list = format!("{{\"v\":1,\"size\":{MIB},\"extents\":[]}}");
        std::fs::write(root.join("today.json"), list).unwrap();
        let daemon = have_daemon().then(|| Daemon::idle(&house));
        if let Some(daemon) = &daemon {
            std::os::unix::fs::symlink(daemon.path("qmp.sock"), root.join("run/db1.qmp")).unwrap();
            daemon.execute("block-dirty-bitmap-add", json!({ "node": "vm0", "name": BITMAP }));
        }
        let scene = Scene { snapshot: id(&made), _daemon: daemon, house };
        // If a program is missing, the example that needs the file is skipped, too.
        scene.bash("qemu-img create -q -f qcow2 web.qcow2 1M; zstd -q var/lib/images/web.raw -o old.raw.zst");
        scene
    }

    /// The command that a user would have typed here.
    fn real(&self, line: &str) -> String {
        let root = self.house.word("");
        let mut line = line.replace("3fa8c1d2", &self.snapshot[..8]);
        if line.contains("dump 17") {
            line = line.replace("dump 17", &format!("dump {}", self.log_object()));
        }
        let usb = self.house.path("mnt/usb/copal");
        if line.contains("/mnt/usb/copal") && !usb.exists() {
            self.house.good(["init", "--size", "64MiB", "--repo", usb.to_str().unwrap()]);
        }
        if line.contains("key rm 5c1d5f2b") {
            let spare = self.house.word("spare.key");
            let made = self.house.summary(["key", "add", "--role", "backup", "--out", &spare]);
            line = line.replace("5c1d5f2b", made["id"].as_str().unwrap());
        }
        for place in PLACES {
            for before in [" ", "="] {
                line = line.replace(&format!("{before}{place}"), &format!("{before}{root}{}", &place[1..]));
            }
        }
        line
    }

    /// The number of the engine's log, which changes with each command that writes.
    fn log_object(&self) -> String {
        let outline = String::from_utf8(self.house.good(["kv", "dump"]).stdout).unwrap();
        let log = outline.lines().find(|line| line.starts_with("log  object "));
        log.and_then(|line| line.split_whitespace().nth(2)).unwrap().to_owned()
    }

    fn bash(&self, script: &str) -> std::process::Output {
        Command::new("bash")
            .args(["-c", &format!("set -uo pipefail\n{script}")])
            .current_dir(self.house.path(""))
            .env_clear()
            .env("PATH", named_copal(&self.house.path(""), ""))
            .env("COPAL_REPOSITORY", self.house.repository())
            .env("COPAL_PASSWORD_FILE", self.house.path("password"))
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    /// The first missing program of the line.
    fn missing(&self, line: &str) -> Option<String> {
        // Text in quotes names no program.
        let bare: String = line.split('\'').step_by(2).collect();
        let programs = bare.split(['|', '&', ';']).filter_map(|part| part.split_whitespace().next());
        let mut needed: Vec<&str> = programs.collect();
        if line.contains(".qcow2") {
            needed.extend(["qemu-img", "qemu-nbd"]);
        }
        if line.contains("--qmp") {
            needed.push("qemu-storage-daemon");
        }
        if line.contains("copal mount") && File::open("/dev/fuse").is_err() {
            return Some("/dev/fuse".to_owned());
        }
        let is_missing = |name: &&str| !self.bash(&format!("command -v {name}")).status.success();
        needed.into_iter().find(is_missing).map(str::to_owned)
    }
}

/// A line whose command is ended after some seconds if it would run on.
fn within_seconds(line: &str) -> String {
    RUNNING
        .iter()
        .fold(line.to_owned(), |line, command| line.replace(command, &format!("timeout 4 {command}")))
}

/// Symptom: `copal restore --target - | qemu-img convert ... /dev/stdin`, an example of `--help`, failed:
/// that program needs to seek. Other examples named keyspaces that no repository has.
/// Cause: the examples were not run. Fix: all of them are run.
#[test]
#[expect(clippy::print_stderr, reason = "an example that is left out says so")]
fn every_example_of_every_help_works_as_printed() {
    let mut scene = Scene::new();
    let mut ran = 0;
    for path in commands(&scene.house) {
        let text = help(&scene.house, &path);
        for line in lines_below(&text, &["Examples:", "Example:"]) {
            if is_of_cluster(&path, &line) || is_of_agents(&path) {
                continue;
            }
            assert!(line.contains("copal "), "{path:?}: an example is broken by its width: {line}");
            if let Some(program) = scene.missing(&line) {
                eprintln!("left out, without {program}: {line}");
                continue;
            }
            let output = match is_of_fleet(&path, &line) {
                true => {
                    let fleet = Scene::in_house(House::fleet());
                    fleet.bash(&fleet.real(&line))
                }
                false => scene.bash(&within_seconds(&scene.real(&line))),
            };
            let ends = FAILING.iter().find(|(part, _)| line.contains(part));
            let runs_on = RUNNING.iter().any(|command| line.contains(command));
            let code = ends.map_or(if runs_on { 124 } else { 0 }, |(_, code)| *code);
            assert_eq!(output.status.code(), Some(code), "{line}: {output:?}");
            ran += 1;
            if TAKING.iter().any(|command| path[..] == [*command]) {
                scene = Scene::new();
            }
        }
    }
    assert!(ran > 35, "only {ran} examples");
}

#[test]
fn the_tour_of_the_first_help_works_as_printed() {
    let scene = Scene::new();
    let tour = lines_below(&help(&scene.house, &[]), &["A first tour:"]);
    assert!(tour.len() > 4, "{tour:?}");
    let moved: Vec<String> = tour.iter().map(|line| scene.real(line)).collect();
    let output = scene.bash(&format!("set -e\n{}", moved.join("\n")));
    assert!(output.status.success(), "{output:?}");
}
