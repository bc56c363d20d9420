//! Agents, servers and commands of a fleet are killed while VMs are backed up, deleted, repaired and cleaned
//! up.
//!
//! Each round starts a command, sometimes two at once on one VM, and kills one process at a random time: an
//! agent, a data server, the master or the command itself. Then all are restarted, and the published
//! snapshots are checked: each acknowledged or listed snapshot is restored byte for byte. At the end, after a
//! repair of each VM, the store holds no data that no snapshot needs, measured against the images.
//! `COPAL_FLEET_CHAOS_ROUNDS` (default 4) and `COPAL_CHAOS_SEED` set length and times; `cargo xtask
//! fleet-chaos --rounds 100` sets them.

mod hosts;
mod object_store;
mod twin;

use copal_testkit::Random;
use hosts::{HOSTS, Hosts, VMS_OF_A_HOST, Victim, Work};
use serde_json::Value;
use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    thread,
    time::Duration,
};
use twin::{Twin, day_of, image, unique_bytes};

const VMS: u64 = HOSTS.len() as u64 * VMS_OF_A_HOST;
/// Longest time in ms that a server is down.
const LONGEST_ABSENCE: u64 = 3_000;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

struct Trial {
    hosts: Hosts,
    twin: Twin,
    random: Random,
    /// The commands of each round.
    told: Vec<String>,
}

impl Trial {
    fn start(seed: u64) -> Trial {
        let mut trial = Trial {
            hosts: Hosts::start(),
            twin: Twin::default(),
            random: Random::new(seed),
            told: Vec::new(),
        };
        trial.write_images(0);
        let job = trial.hosts.begin(&job()).end();
        assert_eq!(job.code, Some(0), "{job:?}");
        trial.learn(&job.told);
        trial.look(0, true);
        trial
    }

    /// Writes the images of a day, on which about half of the VMs have changed.
    fn write_images(&mut self, day: u64) {
        for vm in 1..=VMS {
            if day == 0 || self.random.one_in(2) {
                self.hosts.write(&format!("vm{vm}.raw"), &image(vm, day));
            }
        }
    }

    fn round(&mut self, day: u64) {
        self.write_images(day);
        let vm = 1 + self.random.below(VMS);
        let work: Vec<Work> = match self.random.below(8) {
            0..=2 => vec![job()],
            3 => self.deletion(vm),
            4 => vec![self.hosts.backup(vm)].into_iter().chain(self.deletion(vm)).collect(),
            5 => vec![ops(&["repair", "leak", "--vm", &format!("vm{vm}")])],
            6 if self.random.one_in(2) => vec![ops(&["pds", "prune"])],
            6 => vec![ops(&["pds", "cleanup"])],
            _ => vec![self.hosts.backup(vm), ops(&["prune", "--max-unused", "0%"])],
        };
        let names: Vec<String> = work.iter().map(|work| work.words.join(" ")).collect();
        let mut running: Vec<_> = work.iter().map(|work| self.hosts.begin(work)).collect();
        let victim = self.hosts.victim(&mut self.random, running.len());
        // Most commands take less than a second.
        let magnitude = self.random.below(12);
        let after = self.random.below(1 << magnitude);
        self.told.push(format!("day {day}: {} | {victim:?} after {after} ms", names.join(" | ")));
        thread::park_timeout(Duration::from_millis(after));
        match victim {
            Victim::Command(number) => running[number].kill(),
            _ => self.hosts.kill(&victim),
        }
        // A server that is restarted while a command waits for it, like by an init system.
        if !matches!(victim, Victim::Command(_)) {
            thread::park_timeout(Duration::from_millis(self.random.below(LONGEST_ABSENCE)));
            self.hosts.again(&victim);
        }
        for running in running {
            let ended = running.end();
            let line = self.told.last_mut().unwrap();
            *line += &format!(" | {:?} {}", ended.code, ended.said);
            if ended.code == Some(0) || ended.told["vms"].is_array() {
                self.learn(&ended.told);
            }
        }
        self.hosts.settle();
        self.look(day, false);
    }

    /// Forgets a snapshot of a VM, and deletes the forgotten ones.
    fn deletion(&mut self, vm: u64) -> Vec<Work> {
        if let Some(snapshot) = self.twin.any_but_newest(vm, &mut self.random) {
            self.twin.may_go(&snapshot);
            let forgotten = self.hosts.begin(&ops(&["forget", &snapshot])).end();
            assert_eq!(forgotten.code, Some(0), "{forgotten:?}");
            self.twin.gone(&snapshot);
        }
        vec![ops(&["delete"])]
    }

    /// Records acknowledged snapshots.
    fn learn(&mut self, told: &Value) {
        let of_job = told["vms"].as_array().into_iter().flatten();
        for vm in of_job.filter(|vm| vm["state"] == "done") {
            self.twin.published(vm["vm"].as_str().unwrap(), vm["snapshot"].as_str().unwrap());
        }
        if let (Some(vm), Some(snapshot)) = (told["vm"]["name"].as_str(), told["snapshot"].as_str()) {
            self.twin.published(vm, snapshot);
        }
    }

    /// Checks that all published snapshots are listed, and restores them: the new ones, and one other of each
    /// VM or all.
    fn look(&mut self, day: u64, all: bool) {
        for vm in 1..=VMS {
            let listed = self.hosts.snapshots(vm);
            self.twin.compare(vm, &listed);
            let chosen = self.random.index(listed.len().max(1));
            for (number, snapshot) in listed.iter().enumerate() {
                if all || number == chosen || self.twin.is_new(snapshot) {
                    let bytes = self.hosts.restored(vm, snapshot);
                    let was = day_of(&bytes);
                    assert!(was <= day, "vm{vm} {snapshot} is of day {was}, it is day {day}");
                    assert!(bytes == image(vm, was), "vm{vm} {snapshot} is not as it was on day {was}");
                    self.twin.seen(vm, snapshot, was);
                }
            }
        }
    }

    /// Checks that the store holds no data that no snapshot needs.
    fn end(&mut self, day: u64) {
        let pruned = self.hosts.begin(&ops(&["delete"])).end();
        assert_eq!(pruned.code, Some(0), "{pruned:?}");
        for vm in 1..=VMS {
            let name = format!("vm{vm}");
            for _ in 0..2 {
                let repaired = self.hosts.begin(&ops(&["repair", "leak", "--vm", &name])).end();
                assert_eq!(repaired.code, Some(0), "{repaired:?}");
            }
        }
        let pruned = self.hosts.begin(&ops(&["prune", "--max-unused", "0%"])).end();
        assert_eq!(pruned.code, Some(0), "{pruned:?}");
        self.look(day, true);
        for vm in 1..=VMS {
            let stats = self.hosts.begin(&Work::new(&["stats", "--vm", &format!("vm{vm}")])).end();
            let count = |name: &str| stats.told[name].as_u64().unwrap_or_else(|| panic!("{name}: {stats:?}"));
            assert_eq!((count("dead_frames"), count("unfinished_sessions")), (0, 0), "{stats:?}");
            let (stored, needed) = (count("chunk_pack_bytes"), unique_bytes(&self.twin.days(vm)));
            assert!(stored <= needed, "vm{vm} stores {stored} bytes of its own, its snapshots have {needed}");
        }
        let checked = self.hosts.begin(&Work::new(&["check", "--read-data"])).end();
        assert_eq!(checked.code, Some(0), "{checked:?}");
    }
}

fn job() -> Work {
    Work::new(&["job", "run", "--all", "--wait", "--timeout", "5s"])
}

fn ops(words: &[&str]) -> Work {
    Work::new(&[words, &["--key", "ops.key"]].concat())
}

#[test]
#[expect(clippy::print_stderr, reason = "what happened is printed where something is lost, and the figures")]
fn no_published_snapshot_is_lost_when_any_process_of_a_fleet_is_killed() {
    let (rounds, seed) = (setting("COPAL_FLEET_CHAOS_ROUNDS", 4), setting("COPAL_CHAOS_SEED", 1));
    let mut trial = Trial::start(seed);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        for day in 1..=rounds {
            trial.round(day);
        }
        trial.end(rounds);
    }));
    if let Err(panic) = outcome {
        eprintln!("seed {seed}: {:#?}\n{}", trial.told, trial.hosts.said());
        resume_unwind(panic);
    }
    if rounds > 10 {
        eprintln!("{:#?}", trial.told);
    }
    eprintln!("seed {seed}: {rounds} rounds, {} snapshots published, none lost", trial.twin.count());
    trial.hosts.end();
}
