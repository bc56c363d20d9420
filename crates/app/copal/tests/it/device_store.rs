//! `copal device fsck|df|dump|scrub`: on each kind of store, on damage, on all that is no store.

use crate::{
    disks::{Disk, MIB},
    harness::{House, Run, Running, wait_until},
    loop_device::LoopDevice,
};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs::{File, OpenOptions},
    io::Write,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    process::Command,
};

const TOOLS: [&str; 4] = ["fsck", "df", "dump", "scrub"];

/// A repository with a backup, and its path as a word.
fn with_backup(house: House) -> (House, String) {
    Disk::create(&house.path("disk.raw"), 8 * MIB, 7);
    house.backup("web", &house.path("disk.raw"));
    let repository = house.repository().to_str().unwrap().to_owned();
    (house, repository)
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

/// Runs a tool with `--json` and any exit code.
fn tool<'a>(house: &House, words: impl IntoIterator<Item = &'a str>) -> Run {
    let mut command = house.command(["--json", "device"]);
    command.args(words);
    Run::of(command.output().unwrap())
}

fn of_type<'a>(lines: &'a [Value], message_type: &str) -> Vec<&'a Value> {
    lines.iter().filter(|line| line["message_type"] == message_type).collect()
}

/// Every file below a path, with its bytes.
fn contents(path: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    if !path.is_dir() {
        return vec![(path.to_owned(), std::fs::read(path).unwrap())];
    }
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().flat_map(|path| contents(path)).collect()
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Each tool on an undamaged store; those that only look change no byte.
fn look(house: &House, path: &str) {
    let store = Path::new(path);
    let is_device = !store.is_dir();
    let before = contents(store);
    let clean = house.summary(["device", "fsck", path]);
    assert_eq!((&clean["clean"], &clean["damages"]), (&Value::Bool(true), &0.into()), "{clean}");
    let read = house.summary(["device", "fsck", path, "--read-data"]);
    assert!(read["read_bytes"].as_u64() > clean["read_bytes"].as_u64(), "{read} {clean}");
    let df = house.summary(["device", "df", path]);
    let bytes = |name: &str| df[name].as_u64().unwrap();
    let parts =
        ["live_bytes", "staged_bytes", "quarantine_bytes", "reserved_bytes", "free_bytes", "hollow_bytes"];
    assert_eq!(parts.map(bytes).iter().sum::<u64>(), bytes("size_bytes"), "{df}");
    let objects = |of: &str| -> u64 {
        df[of].as_array().unwrap().iter().map(|one| one["objects"].as_u64().unwrap()).sum()
    };
    assert!(objects("kinds") > 2 && objects("kinds") == objects("labels"), "{df}");
    assert_eq!(df.get("segments").is_some(), df["backend"] == "log", "{df}");
    assert!(house.good(["device", "df", path]).stdout.starts_with(b"Space, backend"));
    let dump = tool(house, ["dump", path]);
    assert_eq!(dump.code, Some(0), "{dump:?}");
    let lines = dump.lines();
    let kinds: Vec<&str> =
        of_type(&lines, "item").iter().map(|item| item["kind"].as_str().unwrap()).collect();
    for (kind, least) in [("superblock", 4), ("checkpoint", 1), ("journal", 1)] {
        assert!(kinds.iter().filter(|found| **found == kind).count() >= least, "{kinds:?}");
    }
    let listed = tool(house, ["dump", path, "--objects"]).lines();
    for item in of_type(&listed, "item") {
        let id = item["object"].to_string();
        let option = if item["object_kind"] == "stream" { "--stream" } else { "--object" };
        let shown = tool(house, ["dump", path, option, &id]);
        assert_eq!(shown.code, Some(0), "{shown:?}");
        assert!(shown.lines().len() > 1);
        let other = if option == "--stream" { "--object" } else { "--stream" };
        let refused = tool(house, ["dump", path, other, &id]);
        assert_eq!(refused.code, Some(2), "{refused:?}");
        assert!(refused.sentence().contains(option), "{refused:?}");
    }
    assert_eq!(of_type(&listed, "item").len() as u64, objects("kinds"));
    assert_eq!(tool(house, ["dump", path, "--limit", "2"]).lines().len(), 3);
    assert!(contents(store) == before, "a command that looks has changed the store");
    let scrub = house.summary(["device", "scrub", path, "--bytes-per-second", "0"]);
    assert!(scrub["finished"] == true && scrub["clean"] == true && scrub["resumed"] == false, "{scrub}");
    assert!(scrub["read_bytes"].as_u64().unwrap() > MIB, "{scrub}");
    if !is_device {
        house.check();
    }
}

#[test]
fn the_tools_look_into_every_kind_of_store() {
    let cow = House::without_password();
    cow.good(["init"]);
    let log = House::without_password();
    log.good(["init", "--backend", "log"]);
    for house in [cow, log, House::of_files()] {
        let (house, path) = with_backup(house);
        look(&house, &path);
    }
    let scratch = House::empty();
    let Some(device) = LoopDevice::attach(&scratch.path("disk"), 256 * MIB) else { return };
    let house = House::elsewhere(&device.path).without_ring();
    house.good(["init"]);
    let (house, path) = with_backup(house);
    look(&house, &path);
}

/// The items of kind `kind` of a dump.
fn dumped<'a>(house: &House, words: impl IntoIterator<Item = &'a str>, kind: &str) -> Vec<Value> {
    let lines = tool(house, words).lines();
    lines.into_iter().filter(|line| line["kind"] == kind).collect()
}

fn assert_damage(run: &Run, structure: &str) {
    assert_eq!(run.code, Some(1), "{run:?}");
    let lines = run.lines();
    let errors = of_type(&lines, "error");
    assert!(errors.iter().any(|error| error["structure"] == structure), "{structure}: {run:?}");
    let last = of_type(&lines, "exit_error");
    assert!(last[0]["code"] == "damaged" && last[0]["exit_code"] == 1, "{run:?}");
}

#[test]
fn damage_is_found_named_and_gives_exit_code_1() {
    for backend in ["cow", "log"] {
        let house = House::without_password();
        house.good(["init", "--backend", backend]);
        let (house, path) = with_backup(house);
        let store = house.store();
        // A copy of the superblock.
        flip(&store, (1 << 20) + 50);
        assert_damage(&tool(&house, ["fsck", &path]), "superblock");
        let dump = tool(&house, ["dump", &path]);
        assert_eq!(dump.code, Some(1), "{dump:?}");
        flip(&store, (1 << 20) + 50);
        // A byte of an object: only a command that reads all data finds it.
        let objects = dumped(&house, ["dump", &path, "--objects"], "object");
        let objects = objects.iter().filter(|item| item["object_kind"] != "stream");
        let largest = objects.max_by_key(|item| item["bytes"].as_u64()).unwrap()["object"].to_string();
        let extent = &dumped(&house, ["dump", &path, "--object", &largest], "extent")[0];
        let at = extent["page"].as_u64().unwrap() * 4096 + 1000;
        flip(&store, at);
        assert_eq!(tool(&house, ["fsck", &path]).code, Some(0));
        assert_damage(&tool(&house, ["fsck", &path, "--read-data"]), "object");
        let scrub = tool(&house, ["scrub", &path, "--bytes-per-second", "0"]);
        assert_damage(&scrub, "object");
        let error = scrub.lines().into_iter().find(|line| line["structure"] == "object").unwrap();
        assert_eq!(error["object"].to_string(), largest);
        assert!((error["start"].as_u64().unwrap()..error["end"].as_u64().unwrap()).contains(&1000));
        flip(&store, at);
        assert_eq!(tool(&house, ["fsck", &path, "--read-data"]).code, Some(0));
        // Both copies of the checkpoint: the store does not open.
        let copies = dumped(&house, ["dump", &path], "superblock");
        let newest = copies.iter().max_by_key(|copy| copy["generation"].as_u64()).unwrap();
        for place in ["checkpoint_page", "checkpoint_copy_page"] {
            flip(&store, newest[place].as_u64().unwrap() * 4096 + 200);
        }
        for name in ["fsck", "df", "dump", "scrub"] {
            let run = tool(&house, [name, &path]);
            assert_eq!(run.code, Some(1), "{name}: {run:?}");
        }
    }
}

#[test]
fn all_that_is_no_store_gets_exit_code_2_and_a_sentence() {
    let house = House::plain();
    std::fs::create_dir(house.path("directory")).unwrap();
    std::fs::write(house.path("text"), vec![b'x'; 200_000]).unwrap();
    File::create(house.path("empty")).unwrap();
    assert!(Command::new("mkfifo").arg(house.path("pipe")).status().unwrap().success());
    let newer = house.path("newer");
    std::fs::copy(house.store(), &newer).unwrap();
    for at in [0, 1 << 20, 32 << 20, 48 << 20] {
        let file = OpenOptions::new().read(true).write(true).open(&newer).unwrap();
        let mut copy = [0; 4096];
        file.read_exact_at(&mut copy, at).unwrap();
        copy[8] = 200;
        copy[24..28].fill(0);
        let sum = crc32c(&copy[..32 + 152]).to_le_bytes();
        copy[24..28].copy_from_slice(&sum);
        file.write_all_at(&copy, at).unwrap();
    }
    // A store in use: its process waits for data.
    let mut running = Running::start(&house, ["backup", "--vm", "slow", "-"]);
    running.child.stdin.as_mut().unwrap().write_all(&[1; 100_000]).unwrap();
    running.wait_for("status");
    for (path, code, part) in [
        (house.word("none"), "no_store", "there is no store"),
        (house.word("directory"), "not_a_store", "is a directory"),
        ("/dev/null".to_owned(), "open", "a character device"),
        (house.word("text"), "not_a_store", "is not a Copal store"),
        (house.word("empty"), "not_a_store", "is not a Copal store"),
        (house.word("pipe"), "open", "is a pipe"),
        // Symptom: for an address they said that there is no store at it. Cause: it was taken for a path.
        ("copal://127.0.0.1:1/vms".to_owned(), "usage", "needs a path of this machine"),
        ("s3://bucket/vms".to_owned(), "usage", "needs a path of this machine"),
        (newer.to_str().unwrap().to_owned(), "version", "use a newer copal"),
        (house.repository().to_str().unwrap().to_owned(), "busy", "another process is using"),
    ] {
        for words in [&["fsck"][..], &["df"], &["dump"], &["scrub"], &["profile", "--store"]] {
            let refused = tool(&house, words.iter().copied().chain([&*path]));
            // A profile belongs to a store: the exit codes are those of commands on a repository.
            let is_usual = words[0] == "profile" && matches!(refused.code, Some(1 | 10 | 11));
            assert!(is_usual || refused.code == Some(2), "{words:?} {path}: {refused:?}");
            let last = refused.lines().pop().unwrap();
            assert_eq!(last["code"], code, "{words:?} {path}: {refused:?}");
            assert!(refused.sentence().contains(part), "{words:?} {path}: {refused:?}");
        }
    }
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    for name in TOOLS {
        assert_eq!(tool(&house, [name]).code, Some(2));
    }
    let unknown = tool(&house, ["dump", house.repository().to_str().unwrap(), "--object", "123456"]);
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.sentence().contains("--objects"), "{unknown:?}");
}

#[test]
fn a_truncated_store_is_damaged_and_its_structures_are_shown() {
    let (house, path) = with_backup(House::plain());
    let file = OpenOptions::new().write(true).open(house.store()).unwrap();
    file.set_len(10 * MIB).unwrap();
    for name in TOOLS {
        let run = tool(&house, [name, &path]);
        assert_eq!(run.code, Some(1), "{name}: {run:?}");
    }
    let lines = tool(&house, ["dump", &path]).lines();
    let copies = of_type(&lines, "item").into_iter().filter(|item| item["kind"] == "superblock");
    assert_eq!(copies.filter(|copy| copy.get("damage").is_none()).count(), 2);
}

#[test]
fn a_scrub_that_is_interrupted_in_the_tables_names_no_bytes() {
    // Symptom: `interrupted at 0 B of 0 B`. Cause: how much data there is comes from the tables, which are read first.
    // Fix: before that, the sentence has no numbers.
    let (house, path) = with_backup(House::plain());
    let running = Running::start(&house, ["device", "scrub", &path, "--bytes-per-second", "1"]);
    wait_until("an open store", || running.has_open(&house.store()));
    running.signal(Signal::INT);
    let run = running.end();
    assert_eq!(run.code, Some(130), "{run:?}");
    assert!(run.sentence().contains("before data was read"), "{run:?}");
}

#[test]
fn an_interrupted_scrub_goes_on_and_a_killed_one_leaves_a_whole_store() {
    let (house, path) = with_backup(House::plain());
    let slow = ["device", "scrub", &path, "--bytes-per-second", "512KiB"];
    let mut running = Running::start(&house, slow);
    running.wait_for("status");
    running.signal(Signal::INT);
    let run = running.end();
    assert_eq!(run.code, Some(130), "{run:?}");
    assert!(run.stderr.contains("goes on from there"), "{run:?}");
    let before = house.summary(["device", "df", &path]);
    let mut running = Running::start(&house, slow);
    running.wait_for("status");
    running.signal(Signal::KILL);
    assert_eq!(running.end().code, None);
    assert_eq!(house.summary(["device", "fsck", &path, "--read-data"])["clean"], true);
    assert_eq!(house.summary(["device", "df", &path])["kinds"], before["kinds"]);
    let scrub = house.summary(["device", "scrub", &path, "--bytes-per-second", "0"]);
    assert!(scrub["resumed"] == true && scrub["finished"] == true, "{scrub}");
    assert!(scrub["read_bytes"].as_u64() < scrub["done_bytes"].as_u64(), "{scrub}");
    let again = house.summary(["device", "scrub", &path, "--bytes-per-second", "0"]);
    assert!(again["resumed"] == false, "{again}");
    house.check();
}
