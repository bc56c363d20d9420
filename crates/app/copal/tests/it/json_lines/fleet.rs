//! Commands on the repository of a fleet: in a directory, and in a cluster with agents.

use super::{Ongoing, Record};
use crate::{
    disks::{Disk, MIB},
    harness::{House, id},
    rounds::{Agent, Fleet, HOSTS, image, write_pairs, write_set},
};
use rustix::process::Signal;
use std::{fs, io::Write};

/// Fields that only a VM has that asked before another one.
const ON_FIRST_HOST: [&str; 2] = ["settled", "settle_error"];

#[test]
fn commands_on_a_fleet_in_a_directory_print_the_fields_of_the_golden_file() {
    let house = House::empty();
    let mut record = Record::new("fleet", &house.path(""));
    record.run(&house, ["init", "--size", "64MiB", "--layout", "fleet", "--pds-fraction", "60%"]);
    let added = record.run(&house, ["key", "add", "--role", "backup", "--out", &house.word("backup.key")]);
    record.run(&house, ["key", "ls"]);
    record.run(&house, ["key", "rm", added["id"].as_str().unwrap()]);
    let mut disk = Disk::create(&house.path("disk.raw"), 4 * MIB, 232);
    let image = house.word("disk.raw");
    let mut days = Vec::new();
    for _ in 0..3 {
        days.push(id(&record.run(&house, ["backup", "--vm", "web", &image])));
        // So few that the snapshots keep to one size of summary vectors, wherever the key of the chunks cuts.
        disk.mutate(4);
    }
    house.backup("db", &house.path("disk.raw"));
    record.run(&house, ["vm", "ls"]);
    record.run(&house, ["stats", "--vm", "web"]);
    record.run(&house, ["stats"]);
    record.run(&house, ["delete", &days[0], "--dry-run"]);
    record.run(&house, ["delete", &days[0]]);
    record.run(&house, ["delete", &days[1], "--exact"]);
    record.run(&house, ["repair", "leak", "--vm", "web"]);

    // A backup that was killed.
    let mut killed = Ongoing::of(&house, &["backup", "--vm", "killed", "-"]);
    killed.child.stdin.as_mut().unwrap().write_all(&[7; 100_000]).unwrap();
    killed.until("status");
    killed.child.kill().unwrap();
    killed.child.wait().unwrap();
    record.run(&house, ["sessions", "ls"]);
    record.run(&house, ["sessions", "fence", "killed"]);

    record.run(&house, ["pds", "status"]);
    record.kinds_of_numbers();
    record.run(&house, ["pds", "cleanup"]);
    record.run(&house, ["pds", "prune", "--dry-run"]);
    record.run(&house, ["pds", "prune"]);
    record.run(&house, ["vm", "rm", "web"]);
    record.run(&house, ["vm", "rm", "web", "--force"]);
    record.run(&house, ["pds", "prune"]);

    // All agents in one process: a job, then one that waits for the next day.
    record.placeholders.omitted = ON_FIRST_HOST.to_vec();
    write_set(&house.path(""), 0);
    fs::remove_file(house.path("vm3.raw")).unwrap();
    let plans = HOSTS.map(|host| house.word(&format!("{host}.json"))).join(",");
    let state = house.word("state");
    let words = ["agent", "--name", "h1,h2,h3", "--plan", &plans, "--state", &state, "--timeout", "5s"];
    let agents = |more: &[&str]| {
        let words = [&words[..], more].concat();
        let mut command = house.command(["--json"]);
        // It warns of the VM without an image.
        command.env("COPAL_LOG", "off").args(&words);
        (command, words.join(" "))
    };
    let (once, words) = agents(&["--once"]);
    record.command(once, &words);
    let (daily, words) = agents(&["--every", "24h"]);
    let mut agents = Ongoing::start(daily, &words);
    agents.until("exit_error");
    record.run(&house, ["agent", "ls"]);
    record.run(&house, ["pds", "status"]);
    record.run(&house, ["job", "status"]);
    record.run(&house, ["job", "status", "0123456789abcdef0123456789abcdef"]);
    agents.signal(Signal::TERM);
    agents.end(&mut record);
    record.run(&house, ["agent", "ls"]);
    record.run(&house, ["agent", "rm", "h3"]);
    record.run(&house, ["agent", "rm", "h3"]);
    record.compare();
}

/// Records commands on a fleet in a cluster.
struct FleetRecord<'a> {
    fleet: &'a Fleet,
    record: Record,
}

impl FleetRecord<'_> {
    fn new<'a>(fleet: &'a Fleet, name: &'static str) -> FleetRecord<'a> {
        let mut record = Record::new(name, fleet.directory());
        record.kinds_of_numbers();
        FleetRecord { fleet, record }
    }

    fn run(&mut self, words: &[&str]) {
        let all: Vec<&str> = ["--json"].iter().chain(words).copied().collect();
        self.record.command(self.fleet.command(&all), &words.join(" "));
    }
}

#[test]
fn jobs_of_a_fleet_in_a_cluster_print_the_fields_of_the_golden_file() {
    let fleet = Fleet::new();
    let mut record = FleetRecord::new(&fleet, "jobs");
    record.record.placeholders.omitted = ON_FIRST_HOST.to_vec();
    write_set(fleet.directory(), 0);
    let mut agents: Vec<Agent> = HOSTS.iter().map(|host| fleet.agent(host)).collect();
    record.run(&["key", "ls"]);
    record.run(&["agent", "ls"]);
    record.run(&["job", "status"]);
    record.run(&["job", "run", "--all", "--rounds", "2", "--timeout", "10s"]);
    record.run(&["job", "status", "--wait"]);
    fs::remove_file(fleet.directory().join("vm1.raw")).unwrap();
    record.run(&["job", "run", "--all", "--wait", "--scheme", "synchronous", "--timeout", "10s"]);
    agents.pop().into_iter().for_each(Agent::end);
    record.run(&["job", "run", "--all", "--rounds", "2", "--timeout", "10s"]);
    record.run(&["job", "status", "--wait"]);
    fs::write(fleet.directory().join("alone.raw"), image(9, 0)).unwrap();
    record.run(&["backup", "--vm", "vm9", "alone.raw", "--key", "h2.key"]);
    record.run(&["pds", "cleanup", "--key", "ops.key"]);
    agents.into_iter().for_each(Agent::end);
    record.run(&["agent", "ls"]);
    record.run(&["agent", "rm", HOSTS[2]]);
    record.run(&["job", "run", "--all", "--rounds", "2"]);
    let piped = fleet.command(&["--json", "backup", "--vm", "piped", "-"]);
    let mut piped = Ongoing::start(piped, "backup --vm piped -");
    piped.child.stdin.as_mut().unwrap().write_all(&[7; 100_000]).unwrap();
    piped.until("status");
    record.run(&["sessions", "ls"]);
    record.run(&["backup", "--vm", "piped", "alone.raw"]);
    piped.end(&mut record.record);
    record.record.compare();
}

/// The VMs to settle are certain here: of each pair one asks in the first round, the other in the second.
#[test]
fn settled_jobs_print_the_fields_of_the_golden_file() {
    let fleet = Fleet::with_fraction("100%");
    let mut record = FleetRecord::new(&fleet, "settled");
    write_set(fleet.directory(), 0);
    let _agents: Vec<Agent> = HOSTS.iter().map(|host| fleet.agent(host)).collect();
    for (day, key) in [(0, "h1.key"), (1, "ops.key")] {
        write_pairs(fleet.directory(), day);
        record.run(&["job", "run", "--all", "--rounds", "2", "--wait", "--key", key]);
    }
    record.record.compare();
}
