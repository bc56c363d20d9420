//! `kill -9` at random moments of backup, forget, prune and restore.
//!
//! After each kill, the store opens, the data is intact, and every published snapshot can be restored. At the
//! end no space has leaked. `COPAL_KILL_ROUNDS` sets the rounds (default 10), `COPAL_KILL_SEED` the seed,
//! `COPAL_KILL_BACKEND` one of `cow`, `log` and `hostfs`; `cargo xtask kill-loop 200` sets them.

use crate::{
    disks::{Disk, MIB, Random, assert_restored},
    harness::{House, id},
};
use std::{
    collections::BTreeMap,
    process::{Child, Stdio},
    thread::park_timeout,
    time::{Duration, Instant},
};

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Lets a command run for a while, then kills it; true if it had ended by itself.
fn kill_after(mut child: Child, wait: Duration) -> bool {
    let until = Instant::now() + wait;
    // The time of the kill is the injected fault, so this is no wait for a condition.
    while Instant::now() < until && child.try_wait().unwrap().is_none() {
        park_timeout(Duration::from_micros(500));
    }
    let ended = child.try_wait().unwrap().is_some();
    child.kill().unwrap();
    child.wait().unwrap();
    ended
}

struct Loop {
    house: House,
    disk: Disk,
    random: Random,
    /// Content of every published snapshot.
    truth: BTreeMap<String, Vec<u8>>,
    /// Time of each kind of command without a kill.
    durations: BTreeMap<&'static str, Duration>,
    completed: u64,
}

impl Loop {
    fn spawn_and_kill(&mut self, kind: &'static str, words: &[&str]) {
        let whole = self.durations[kind].as_micros() as u64;
        let wait = Duration::from_micros(self.random.below(whole * 5 / 4));
        let mut command = self.house.command(words);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.completed += u64::from(kill_after(child, wait));
    }

    fn measure(&mut self, kind: &'static str, words: &[&str]) {
        let began = Instant::now();
        self.house.good(words);
        self.durations.insert(kind, began.elapsed());
    }

    fn backup(&mut self) {
        self.disk.mutate(30);
        let before = self.house.snapshots();
        let image = self.house.word("disk.raw");
        self.spawn_and_kill("backup", &["backup", "--vm", "web", &image]);
        for snapshot in self.house.snapshots() {
            if !before.contains(&snapshot) {
                self.truth.insert(snapshot, self.disk.bytes.clone());
            }
        }
    }

    fn forget(&mut self) {
        let ids = self.house.snapshots();
        let Some(victim) = ids.first().filter(|_| ids.len() > 2) else {
            return;
        };
        self.spawn_and_kill("forget", &["forget", victim]);
        if !self.house.snapshots().contains(victim) {
            self.truth.remove(victim);
        }
    }

    fn prune(&mut self) {
        self.spawn_and_kill("prune", &["prune"]);
    }

    fn restore(&mut self) {
        let Some(snapshot) = self.house.snapshots().pop() else {
            return;
        };
        let target = self.house.word("killed.raw");
        self.spawn_and_kill("restore", &["restore", &snapshot, "--target", &target]);
        // Under its own name only when it is complete.
        if std::path::Path::new(&target).exists() {
            assert_restored(target.as_ref(), &self.truth[&snapshot]);
            std::fs::remove_file(&target).unwrap();
        }
    }

    /// Checks that all published snapshots that were not forgotten exist and are intact.
    fn inspect(&mut self, round: u64) {
        let ids = self.house.snapshots();
        let known: Vec<&String> = self.truth.keys().collect();
        let mut listed: Vec<&String> = ids.iter().collect();
        listed.sort();
        assert_eq!(listed, known, "round {round}");
        self.house.check();
        if !ids.is_empty() {
            let one = &ids[self.random.below(ids.len() as u64) as usize];
            let target = self.house.restore(one, "out.raw");
            assert_restored(&target, &self.truth[one]);
            std::fs::remove_file(target).unwrap();
        }
    }
}

#[test]
fn killed_at_random_moments_nothing_published_is_lost() {
    let (rounds, seed) = (setting("COPAL_KILL_ROUNDS", 10), setting("COPAL_KILL_SEED", 1));
    let house = House::without_password();
    let backend = std::env::var("COPAL_KILL_BACKEND").unwrap_or_else(|_| "cow".into());
    match &*backend {
        "cow" => house.good(["init", "--size", "64MiB"]),
        other => house.good(["init", "--backend", other]),
    };
    let empty_bytes = house.summary(["stats"])["store"]["live_bytes"].as_u64().unwrap();
    let disk = Disk::create(&house.path("disk.raw"), 12 * MIB, seed);
    let (random, truth) = (Random::new(seed), BTreeMap::new());
    let mut run = Loop { house, disk, random, truth, durations: BTreeMap::new(), completed: 0 };

    let image = run.house.word("disk.raw");
    run.measure("backup", &["backup", "--vm", "web", &image]);
    run.measure("prune", &["prune"]);
    let first = run.house.snapshots().pop().unwrap();
    run.truth.insert(first.clone(), run.disk.bytes.clone());
    let target = run.house.word("measured.raw");
    run.measure("restore", &["restore", &first, "--target", &target]);
    let scrap = id(&run.house.backup("scrap", image.as_ref()));
    run.measure("forget", &["forget", &scrap]);

    for round in 0..rounds {
        match run.random.below(8) {
            0..4 => run.backup(),
            4 => run.forget(),
            5 | 6 => run.prune(),
            _ => run.restore(),
        }
        run.inspect(round);
    }
    assert!(run.completed < rounds, "every command ended before it was killed: the test tests nothing");

    run.house.good(["prune"]);
    run.house.check();
    for (snapshot, bytes) in &run.truth {
        let target = run.house.restore(snapshot, "final.raw");
        assert_restored(&target, bytes);
        std::fs::remove_file(target).unwrap();
    }
    let stats = run.house.summary(["stats"]);
    assert_eq!(stats["unfinished_sessions"], 0, "{stats}");
    let everything: Vec<String> = [vec!["forget".to_owned()], run.house.snapshots()].concat();
    run.house.good(everything);
    let pruned = run.house.summary(["prune"]);
    assert_eq!(pruned["after_bytes"], 0, "packs that nothing names were left: {pruned}");
    let left = run.house.summary(["stats"])["store"]["live_bytes"].as_u64().unwrap();
    // The catalog keeps records of removed snapshots; the engine's log and tables have sizes of their own.
    assert!(left < empty_bytes + 8 * MIB, "{left} bytes left in use, {empty_bytes} in a new store");
}
