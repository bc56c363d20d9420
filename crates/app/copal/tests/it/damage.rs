//! One flipped bit anywhere in the store file is repaired, reported, or in unused space. A restore is never
//! wrong, and no command panics.
//!
//! `copal check --coverage` lists the file's bytes in ranges: each has one checksum, or holds no data. The
//! tests show that the list leaves no byte out, that a bit flipped under any of the sums is reported, and
//! that bits flipped in unused space change nothing. One byte per sum suffices: a CRC32C differs for every
//! change within 32 bits, so its sum detects any changed byte of the range. The 128-bit hashes of checkpoint
//! and published objects miss one change in 2^128. Every byte of a small store is tried by
//! `crates/backup/copal-backup/tests/it/bit_flips.rs`, below the command.
//!
//! `COPAL_FLIP_STRIDE=n` instead tries every n-th byte of every range with a sum (1: all; hours).

use crate::{
    disks::{Disk, MIB, Random, assert_restored},
    harness::{House, Run, Running, id},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{File, OpenOptions},
    io::Write,
    ops::Range,
    os::unix::fs::FileExt,
    path::PathBuf,
    process::Command,
};

/// One range of the store file in the list of the check.
#[derive(Clone, Debug)]
struct Listed {
    range: Range<u64>,
    is_summed: bool,
    what: String,
}

/// A repository, its store file, and the correct content of its snapshots.
struct Subject {
    house: House,
    file: File,
    pristine: Vec<u8>,
    truth: Vec<(String, Vec<u8>)>,
    random: Random,
}

/// Effect of a flip.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Reported,
    Unnoticed,
}

impl Subject {
    fn new(house: House, truth: Vec<(String, Vec<u8>)>, seed: u64) -> Subject {
        let file = OpenOptions::new().read(true).write(true).open(house.store()).unwrap();
        let pristine = std::fs::read(house.store()).unwrap();
        Subject { house, file, pristine, truth, random: Random::new(seed) }
    }

    fn check(&self, more: &[&str]) -> Run {
        let words = ["--json", "check", "--read-data"].iter().chain(more);
        Run::of(self.quiet(words).output().unwrap())
    }

    /// Runs a command without the libraries' own errors and warnings about the damage.
    fn quiet<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Command {
        let mut command = self.house.command(words);
        command.env("COPAL_LOG", "off");
        command
    }

    /// The list, in which each byte of the file occurs exactly once.
    fn listed(&self) -> Vec<Listed> {
        let run = self.check(&["--coverage"]);
        assert_eq!(run.code, Some(0), "{run:?}");
        let number = |value: &Value| value.as_u64().unwrap();
        let mut listed: Vec<Listed> = run
            .lines()
            .iter()
            .map(|line| &line["coverage"])
            .filter(|range| range["state"].is_string())
            .map(|range| Listed {
                range: number(&range["from"])..number(&range["to"]),
                is_summed: range["state"] == "summed",
                what: range["what"].as_str().unwrap().to_owned(),
            })
            .collect();
        listed.sort_by_key(|listed| listed.range.start);
        let mut end = 0;
        for one in &listed {
            assert_eq!(one.range.start, end, "a gap, or two owners, before {one:?}");
            end = one.range.end;
        }
        assert_eq!(end, self.pristine.len() as u64);
        assert_eq!(run.summary()["coverage"]["neither"], serde_json::json!([]));
        listed
    }

    /// Flips one bit, checks, restores everything, and restores the bit. A wrong restore or a panic fails the
    /// test.
    fn flip(&mut self, at: u64) -> Fate {
        let original = self.pristine[at as usize];
        let flipped = original ^ (1 << self.random.below(8));
        self.file.write_all_at(&[flipped], at).unwrap();
        let check = self.check(&[]);
        match check.code {
            Some(0) => {}
            Some(_) => {
                assert_eq!(check.lines().pop().unwrap()["message_type"], "exit_error", "byte {at}: {check:?}")
            }
            None => panic!("byte {at}: killed: {check:?}"),
        }
        let target: PathBuf = self.house.path("out");
        for (snapshot, bytes) in &self.truth {
            let words = ["restore", snapshot, "--target", target.to_str().unwrap()];
            let restore = Run::of(self.quiet(words).output().unwrap());
            match restore.code {
                Some(0) => assert_restored(&target, bytes),
                Some(code) => {
                    assert_ne!(check.code, Some(0), "byte {at}: check is clean, restore fails: {restore:?}");
                    assert!(restore.sentence().len() > 10 && code != 101, "byte {at}: {restore:?}");
                    assert!(!target.exists(), "byte {at}: a failed restore left a file");
                }
                None => panic!("byte {at}: killed: {restore:?}"),
            }
            let _ = std::fs::remove_file(&target);
        }
        self.file.write_all_at(&[original], at).unwrap();
        if check.code == Some(0) { Fate::Unnoticed } else { Fate::Reported }
    }

    /// Places to flip in a range with a sum: one byte, or every n-th.
    fn places(&mut self, range: &Range<u64>) -> Vec<u64> {
        let stride = std::env::var("COPAL_FLIP_STRIDE").ok();
        match stride.and_then(|text| text.parse().ok()) {
            Some(stride) => range.clone().step_by(stride).collect(),
            None => vec![range.start + self.random.below(range.end - range.start)],
        }
    }

    /// Checks that only the flips changed the file.
    fn end(self) {
        assert!(std::fs::read(self.house.store()).unwrap() == self.pristine, "a reader changed the store");
    }
}

/// Two snapshots, an index rebuilt and merged, a deletion: tables, value objects, logs and a manifest below.
fn lived_in() -> (House, Vec<(String, Vec<u8>)>) {
    let house = House::plain();
    let mut disk = Disk::create(&house.path("disk.raw"), 512 << 10, 80);
    let first = id(&house.backup("web", &house.path("disk.raw")));
    let mut truth = Vec::new();
    for _ in 0..2 {
        disk.mutate(3);
        house.good(["repair", "index"]);
        let snapshot = id(&house.backup("web", &house.path("disk.raw")));
        truth.push((snapshot, disk.bytes.clone()));
    }
    house.good(["delete", &first]);
    (house, truth)
}

#[test]
fn each_sum_of_a_repository_reports_a_flipped_bit_and_free_space_ignores_it() {
    let (house, truth) = lived_in();
    let mut subject = Subject::new(house, truth, 81);
    let listed = subject.listed();
    let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
    for one in &listed {
        *kinds.entry(one.what.clone()).or_default() += 1;
        if one.is_summed {
            for at in subject.places(&one.range) {
                assert_eq!(subject.flip(at), Fate::Reported, "byte {at}, {}", one.what);
            }
        } else {
            let Range { start, end } = one.range;
            for at in [start, start + subject.random.below(end - start), end - 1] {
                assert_eq!(subject.flip(at), Fate::Unnoticed, "byte {at}, {}", one.what);
            }
        }
    }
    for what in ["superblock", "checkpoint", "object", "sums of an object", "frame of a stream", "free"] {
        assert!(kinds.contains_key(what), "nothing of the kind {what}: {kinds:?}");
    }
    subject.house.check();
    subject.end();
}

/// After a kill, the last writes may have no later record that shows they were acknowledged: their damage
/// looks like the kill. Damage of an earlier snapshot is reported nevertheless, and so is damage of parts
/// that no kill truncates. The extent of the last writes depends on the moment; `bit_flips.rs` tests one moment
/// to its last record and frames.
#[test]
fn each_sum_of_a_killed_repository_is_reported_or_takes_nothing_away() {
    let (house, truth) = lived_in();
    let mut running = Running::start(&house, ["backup", "--vm", "late", "-"]);
    let mut stdin = running.child.stdin.take().unwrap();
    stdin.write_all(&Random::new(82).bytes(3 * MIB as usize)).unwrap();
    running.wait_for("status");
    running.child.kill().unwrap();
    running.child.wait().unwrap();
    drop(stdin);
    let mut subject = Subject::new(house, truth, 83);
    let listed = subject.listed();
    let (mut reported, mut unnoticed) = (0, 0);
    for one in listed.iter().filter(|one| one.is_summed) {
        for at in subject.places(&one.range) {
            match subject.flip(at) {
                Fate::Reported => reported += 1,
                Fate::Unnoticed => {
                    let of_long_ago = ["superblock", "checkpoint"].contains(&&*one.what);
                    assert!(!of_long_ago, "byte {at} of a {} goes unnoticed", one.what);
                    unnoticed += 1;
                }
            }
        }
    }
    assert!(reported > 4 * unnoticed, "{reported} reported, {unnoticed} not");
    subject.end();
}

/// Symptom: with a damaged manifest or log of the engine, every command reported only "object 1 is damaged at
/// bytes 0 to 4096" (for a log, "bytes 17 to 18", which were frames). It did not name the object, nor say
/// that `copal kv repair` cannot help, as it opens the store first. Cause: the object layer's error was
/// passed on unchanged. Fix: the engine names manifest and log when it opens, and the command gives the
/// remedy.
#[test]
fn a_damaged_manifest_or_log_is_named_with_advice_and_nothing_is_lost() {
    let (house, truth) = lived_in();
    let subject = Subject::new(house, truth, 84);
    let listed = subject.listed();
    let of = |wanted: &dyn Fn(&Listed) -> bool| listed.iter().find(|one| wanted(one)).unwrap().range.start;
    let log = of(&|one| one.what == "frame of a stream");
    // Both copies of the manifest name the keyspaces.
    let manifests: Vec<u64> = listed
        .iter()
        .filter(|one| {
            let bytes = &subject.pristine[one.range.start as usize..one.range.end as usize];
            let name = b"backup-chunks";
            one.what == "object" && bytes.windows(name.len()).any(|window| window == name)
        })
        .map(|one| one.range.start)
        .collect();
    assert_eq!(manifests.len(), 2);
    for (pages, name) in [(manifests, "the manifest (object 1)"), (vec![log], "log ")] {
        for at in &pages {
            let at = at + 60;
            let flipped = subject.pristine[at as usize] ^ 4;
            subject.file.write_all_at(&[flipped], at).unwrap();
        }
        let disk = subject.house.word("disk.raw");
        for words in [
            &["check"][..],
            &["snapshots"],
            &["kv", "verify"],
            &["kv", "repair", "--salvage"],
            &["backup", "--vm", "late", &disk],
        ] {
            let run = Run::of(subject.quiet(words).output().unwrap());
            let sentence = run.sentence();
            assert_eq!(run.code, Some(20), "{words:?}: {run:?}");
            for part in [name, "no data was changed", "put back a good copy", "`copal kv dump`"] {
                assert!(sentence.contains(part), "{words:?}: no {part:?} in {sentence}");
            }
        }
        for at in &pages {
            let at = at + 60;
            subject.file.write_all_at(&[subject.pristine[at as usize]], at).unwrap();
        }
    }
    // An opening for writing leaves a record in the journal; the rest is unchanged.
    subject.house.check();
    for (snapshot, bytes) in &subject.truth {
        assert_restored(&subject.house.restore(snapshot, snapshot), bytes);
    }
}
