//! A fleet: agents on three hosts, one job for all VMs, and the output of the commands.

use crate::{
    cluster::Served,
    disks::MIB,
    examples::{commands, help, is_of_agents, lines_below},
    harness::{House, Run},
};
use copal_testkit::Random;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Lines, Read},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
};

/// A number of an answer.
#[track_caller]
pub(crate) fn count(told: &Value, name: &str) -> u64 {
    let number = told[name].as_u64();
    number.unwrap_or_else(|| panic!("no {name} in {told}"))
}

pub(crate) const HOSTS: [&str; 3] = ["h1", "h2", "h3"];

/// The image of a VM on a day: content of all VMs, its own content, and a small change.
pub(crate) fn image(vm: u64, day: u64) -> Vec<u8> {
    let mut bytes = vec![0; 6 * MIB as usize];
    Random::new(1).fill(&mut bytes[..3 << 20]);
    Random::new(100 + vm).fill(&mut bytes[3 << 20..4 << 20]);
    if day > 0 {
        Random::new(1000 * day + vm).fill(&mut bytes[100_000..160_000]);
    }
    bytes
}

/// Writes images of VMs 1 to 6 and a plan for each host.
pub(crate) fn write_set(directory: &Path, day: u64) {
    for vm in 1..=6 {
        std::fs::write(directory.join(format!("vm{vm}.raw")), image(vm, day)).unwrap();
    }
    for (host, first) in HOSTS.iter().zip([1, 3, 5]) {
        let vms = [first, first + 1].map(|vm| planned(directory, vm));
        write_plan(directory, host, &vms);
    }
}

fn planned(directory: &Path, vm: u64) -> Value {
    let path = directory.join(format!("vm{vm}.raw"));
    json!({ "vm": format!("vm{vm}"), "disks": { "sda": path } })
}

fn write_plan(directory: &Path, host: &str, vms: &[Value]) {
    let plan = json!({ "v": 1, "vms": vms });
    std::fs::write(directory.join(format!("{host}.json")), plan.to_string()).unwrap();
}

/// A daemon that has reported that it is ready.
pub(crate) struct Agent {
    child: Child,
    /// Its output: one line for each agent.
    ready: Vec<String>,
    /// Its further output.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Agent {
    fn start(mut command: Command, agents: usize) -> Agent {
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready: Vec<String> = lines.by_ref().take(agents).map_while(Result::ok).collect();
        if ready.len() < agents {
            let mut stderr = String::new();
            child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
            panic!("the agent did not start: {stderr}");
        }
        Agent { child, ready, _output: lines }
    }

    /// Ends it by a signal, which must be a success.
    pub(crate) fn end(mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let status = self.child.wait().unwrap();
        let mut stderr = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert!(status.success(), "{status}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A cluster with a fleet's repository, and the directories of its hosts.
pub(crate) struct Fleet {
    cluster: Served,
}

impl Fleet {
    pub(crate) fn new() -> Fleet {
        Fleet::with_fraction("60%")
    }

    pub(crate) fn with_fraction(fraction: &str) -> Fleet {
        let fleet = Fleet { cluster: Served::start(&[]) };
        fleet.cluster.file("pw", b"correct horse\n");
        fleet.good(&["init", "--layout", "fleet", "--pds-fraction", fraction]);
        for host in HOSTS {
            let out = format!("{host}.key");
            fleet.good(&["key", "add", "--role", "backup", "--out", &out]);
        }
        fleet.good(&["key", "add", "--role", "delete", "--out", "ops.key"]);
        fleet
    }

    pub(crate) fn directory(&self) -> &Path {
        self.cluster.scratch.path()
    }

    /// A command with the address that `copal serve --dev` printed, and no other location.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = self.cluster.command(words);
        command
            .env_remove("COPAL_CLUSTER")
            .env("COPAL_REPOSITORY", self.cluster.ready["url"].as_str().unwrap());
        if !words.contains(&"--key") {
            command.env("COPAL_PASSWORD_FILE", "pw");
        }
        command
    }

    fn run(&self, words: &[&str]) -> Run {
        let words: Vec<&str> = ["--json"].iter().chain(words).copied().collect();
        Run::of(self.command(&words).output().unwrap())
    }

    #[track_caller]
    fn good(&self, words: &[&str]) -> Value {
        let run = self.run(words);
        assert_eq!(run.code, Some(0), "{words:?}: {run:?}");
        run.summary()
    }

    #[track_caller]
    fn bad(&self, code: i32, words: &[&str]) -> String {
        let run = self.run(words);
        assert_eq!(run.code, Some(code), "{words:?}: {run:?}");
        run.sentence().to_owned()
    }

    fn agent_words<'w>(&self, host: &'w str, key: &'w str, state: &'w str, plan: &'w str) -> Vec<&'w str> {
        vec!["agent", "--name", host, "--key", key, "--state", state, "--plan", plan, "--memory", "96M"]
    }

    pub(crate) fn agent(&self, host: &str) -> Agent {
        let (key, state, plan) = (format!("{host}.key"), format!("s/{host}"), format!("{host}.json"));
        let words = self.agent_words(host, &key, &state, &plan);
        Agent::start(self.command(&words), 1)
    }

    fn job(&self) -> Value {
        self.good(&["job", "run", "--all", "--rounds", "auto", "--wait"])
    }

    /// The id of a VM's snapshots, oldest first.
    fn snapshots(&self, vm: &str) -> Vec<String> {
        let told = self.good(&["snapshots", "--vm", vm]);
        let snapshots = told["snapshots"].as_array().unwrap().iter();
        snapshots.map(|snapshot| snapshot["id"].as_str().unwrap().to_owned()).collect()
    }

    fn assert_restored(&self, snapshot: &str, vm: u64, day: u64) {
        self.good(&["restore", snapshot, "--vm", &format!("vm{vm}"), "--target", "out.raw", "--overwrite"]);
        let restored = std::fs::read(self.directory().join("out.raw")).unwrap();
        assert!(restored == image(vm, day), "vm{vm} of day {day} is another");
    }
}

pub(crate) fn vms(job: &Value) -> &Vec<Value> {
    job["vms"].as_array().unwrap()
}

#[test]
fn three_hosts_back_up_their_vms_together_and_unneeded_data_is_removed() {
    let fleet = Fleet::new();
    write_set(fleet.directory(), 0);
    let agents: Vec<Agent> = HOSTS.iter().map(|host| fleet.agent(host)).collect();
    for (agent, host) in agents.iter().zip(HOSTS) {
        let words: Vec<&str> = agent.ready[0].split(' ').collect();
        assert!(words[..2] == ["ready", host] && words[2].starts_with("127.0.0.1:"), "{:?}", agent.ready);
    }
    let listed = fleet.good(&["agent", "ls"]);
    let names = listed["agents"].as_array().unwrap().iter();
    assert_eq!(names.map(|one| &one["name"]).collect::<Vec<_>>(), HOSTS);

    // One copy of the common content, stored by any VM; every byte is accounted for.
    let job = fleet.job();
    assert_eq!((&job["complete"], &job["unresolved"]), (&true.into(), &0.into()), "{job}");
    assert!(count(&job, "k") >= 1 && vms(&job).len() == 6, "{job}");
    let mut stored = 0;
    for vm in vms(&job) {
        let bytes = &vm["bytes"];
        assert_eq!(count(bytes, "read1"), 6 * MIB, "{vm}");
        let accounted = count(bytes, "pds_dup") + count(bytes, "inner_dup") + count(bytes, "new");
        assert!(accounted >= 4 * MIB, "{vm}");
        stored += count(bytes, "stored");
    }
    // 3 MiB once, and one for each; random bytes do not compress.
    assert!(stored < 10 * MIB, "{stored} bytes were stored: {job}");
    for agent in job["agents"].as_array().unwrap() {
        assert!(
            count(agent, "message_bytes") > 0 && count(agent, "peak_memory_bytes") < 100_000_000,
            "{agent}"
        );
    }
    for vm in 1..=6 {
        fleet.assert_restored("latest", vm, 0);
    }
    let popular = fleet.good(&["pds", "status"]);
    assert!(count(&popular, "chunks") > 0 && count(&popular, "unchecked_packs") == 0, "{popular}");
    assert_eq!(fleet.good(&["sessions", "ls"])["sessions"], json!([]));

    // The next day: one command starts the job, another waits for it.
    write_set(fleet.directory(), 1);
    let begun = fleet.good(&["job", "run", "--all", "--rounds", "2"]);
    assert_eq!(begun["agents"], json!(HOSTS), "{begun}");
    let told = fleet.good(&["job", "status", "--wait"]);
    assert_eq!((&told["job"], &told["complete"]), (&begun["job"], &true.into()), "{told}");
    assert_eq!(told["rounds"], 2, "{told}");
    let told = fleet.good(&["job", "status", begun["job"].as_str().unwrap()]);
    assert_eq!(vms(&told).len(), 6, "{told}");

    // A host removes nothing; a key with that right does, and no other VM is affected.
    let first = fleet.snapshots("vm1")[0].clone();
    fleet.bad(21, &["forget", &first, "--key", "h1.key"]);
    fleet.good(&["forget", &first, "--key", "ops.key"]);
    let freed = fleet.good(&["delete", &first, "--key", "ops.key"]);
    assert_eq!(freed["mode"], "summary", "{freed}");
    for name in ["candidates", "dead", "kept", "freed_bytes", "read_bytes", "peak_bytes"] {
        assert!(freed[name].is_u64(), "{name}: {freed}");
    }
    assert!(
        count(&freed, "dead") > 0 && freed["seconds"].is_number() && freed["leak_estimate_bytes"].is_number(),
        "{freed}"
    );
    assert_eq!(count(&fleet.good(&["stats", "--vm", "vm1"]), "snapshots"), 1);
    fleet.bad(21, &["repair", "leak", "--vm", "vm1", "--key", "h1.key"]);
    let repaired = fleet.good(&["repair", "leak", "--vm", "vm1", "--key", "ops.key"]);
    assert!(count(&repaired, "live_frames") > 0, "{repaired}");
    for vm in 1..=6 {
        fleet.assert_restored("latest", vm, 1);
    }

    // A single backup asks the agents that it can reach.
    std::fs::write(fleet.directory().join("alone.raw"), image(9, 0)).unwrap();
    let alone = fleet.good(&["backup", "--vm", "vm9", "alone.raw", "--key", "h2.key"]);
    let counts = &alone["counts"];
    assert!(
        count(counts, "popular_dup_bytes") > 2 * MIB && count(counts, "stored_bytes") < 2 * MIB,
        "{alone}"
    );
    assert_eq!(count(counts, "unresolved_chunks"), 0, "{alone}");
    agents.into_iter().for_each(Agent::end);
    assert_eq!(fleet.good(&["agent", "ls"])["agents"], json!([]));
    fleet.bad(42, &["pds", "cleanup", "--key", "ops.key"]);
    // Without agents it shares chunks that are popular already, or reports that there are none.
    let alone = fleet.good(&["backup", "--vm", "vm10", "alone.raw", "--key", "h2.key"]);
    assert_eq!(count(&alone["counts"], "asked_chunks"), 0, "{alone}");
    fleet.assert_restored("latest", 9, 0);

    // A clean-up stores chunks once that the VMs stored separately meanwhile.
    let before = stored_bytes(&fleet, "vm10");
    let agents: Vec<Agent> = HOSTS.iter().map(|host| fleet.agent(host)).collect();
    fleet.bad(21, &["pds", "cleanup", "--key", "h1.key"]);
    let cleaned = fleet.good(&["pds", "cleanup", "--key", "ops.key"]);
    assert!(count(&cleaned, "moved") > 0 && count(&cleaned, "unanswered") == 0, "{cleaned}");
    assert!(count(&cleaned, "freed_bytes") > 2 * MIB, "{cleaned}");
    let after = stored_bytes(&fleet, "vm10");
    assert!(after + 2 * MIB < before, "{before} bytes before, {after} after: {cleaned}");
    agents.into_iter().for_each(Agent::end);
    for vm in 1..=6 {
        fleet.assert_restored("latest", vm, 1);
    }
    fleet.assert_restored("latest", 9, 0);
    fleet.good(&["check", "--read-data"]);

    // Popular chunks stay while any snapshot needs them.
    fleet.bad(21, &["pds", "prune", "--key", "h1.key"]);
    let pruned = fleet.good(&["pds", "prune", "--key", "ops.key"]);
    assert_eq!((&pruned["gone_packs"], &pruned["waiting_for"]), (&0.into(), &json!([])), "{pruned}");
    for vm in 1..=10 {
        if ![7, 8].contains(&vm) {
            fleet.good(&["vm", "rm", &format!("vm{vm}"), "--force", "--key", "ops.key"]);
        }
    }
    let planned = fleet.run(&["pds", "prune", "--dry-run", "--key", "ops.key"]);
    assert_eq!(planned.code, Some(0), "{planned:?}");
    let pruned = fleet.good(&["pds", "prune", "--key", "ops.key"]);
    assert!(count(&pruned, "removed_bytes") > 2 * MIB, "{pruned}");
    let popular = fleet.good(&["pds", "status"]);
    assert_eq!((count(&popular, "bytes"), count(&popular, "chunks")), (0, 0), "{popular}");
}

/// Images of which VMs 1 and 2, 3 and 4, 5 and 6 share a MiB of their own: with two rounds, one of each pair
/// asks in each.
pub(crate) fn write_pairs(directory: &Path, day: u64) {
    for vm in 1..=6 {
        let mut bytes = image(vm, 0);
        Random::new(500 * (day + 1) + (vm - 1) / 2).fill(&mut bytes[4 << 20..5 << 20]);
        std::fs::write(directory.join(format!("vm{vm}.raw")), bytes).unwrap();
    }
}

/// Symptom: a job of two rounds stored chunks twice that one of one round stores once, and its result did not
/// report it.
/// Fix: `copal job run --wait` settles them if its key may delete, and counts them otherwise.
#[test]
fn a_job_is_settled_with_a_key_that_may_delete_and_counted_with_another() {
    let fleet = Fleet::with_fraction("100%");
    write_set(fleet.directory(), 0);
    write_pairs(fleet.directory(), 0);
    let mut agents: Vec<Agent> = HOSTS.iter().map(|host| fleet.agent(host)).collect();
    let run = ["job", "run", "--all", "--rounds", "2", "--wait"];
    let with_key = |key: &'static str| [&run[..], &["--key", key]].concat();
    let told = |job: &Value| {
        assert_eq!((&job["complete"], &job["unsettled_vms"]), (&true.into(), &json!([])), "{job}");
        (count(&job["settled"], "bytes"), count(&job["stored_twice"], "bytes"))
    };
    let job = fleet.good(&with_key("h1.key"));
    let (settled, twice) = told(&job);
    assert!(settled == 0 && twice > 2 * MIB, "{job}");
    let cleaned = fleet.good(&["pds", "cleanup", "--key", "ops.key"]);
    assert!(count(&cleaned, "moved_bytes") > 2 * MIB, "{cleaned}");

    // The next day its own key may delete; as text, too.
    write_pairs(fleet.directory(), 1);
    let job = fleet.good(&with_key("ops.key"));
    let (settled, twice) = told(&job);
    assert!(settled > 2 * MIB && twice == 0, "{job}");
    write_pairs(fleet.directory(), 2);
    let said = fleet.command(&with_key("ops.key")).output().unwrap();
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    assert!(said.contains("became popular during the job") && !said.contains("stored twice"), "{said}");

    // Symptom: a job without --wait that began without an agent ended with exit code 0.
    agents.pop().into_iter().for_each(Agent::end);
    for words in [&["job", "run", "--all", "--rounds", "2"][..], &["job", "status", "--wait"]] {
        let told = fleet.command(words).output().unwrap();
        let said = String::from_utf8_lossy(&told.stderr).into_owned();
        assert_eq!(told.status.code(), Some(1), "{said}");
        assert!(said.contains(&format!("missing: agent {}", HOSTS[2])), "{said}");
    }
    agents.into_iter().for_each(Agent::end);
    fleet.good(&["check", "--read-data"]);
}

fn stored_bytes(fleet: &Fleet, vm: &str) -> u64 {
    count(&fleet.good(&["stats", "--vm", vm]), "chunk_pack_bytes")
}

/// Every example of the commands that need agents, as printed; only the address is moved.
#[test]
fn every_example_of_agents_works_as_printed() {
    let fleet = Fleet::new();
    write_set(fleet.directory(), 0);
    let house = House::fleet();
    write_set(&house.path(""), 0);
    let mut examples = Vec::new();
    for path in commands(&house) {
        if is_of_agents(&path) {
            examples.extend(lines_below(&help(&house, &path), &["Examples:", "Example:"]));
        }
    }
    assert!(examples.len() > 8, "{examples:?}");
    let words = |line: &str| -> Vec<String> {
        assert!(line.starts_with("copal "), "an example is broken by its width: {line}");
        let line = line.replace("10.0.0.1:7500", "127.0.0.1:0").replace("--vm web", "--vm vm1");
        line.split(' ').skip(1).map(str::to_owned).collect()
    };
    let (starting, others): (Vec<String>, Vec<String>) =
        examples.into_iter().partition(|line| line.contains("agent --name"));
    for line in starting {
        let words = words(&line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        match words.contains(&"--once") {
            // All agents in one process: for a repository in a directory.
            true => {
                let run = house.command(&words).current_dir(house.path("")).output().unwrap();
                assert!(run.status.success(), "{line}: {run:?}");
            }
            false => Agent::start(fleet.command(&words), 1).end(),
        }
    }
    let _agents: Vec<Agent> = HOSTS.iter().map(|host| fleet.agent(host)).collect();
    fleet.job();
    for line in others {
        let words = words(&line);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let run = fleet.command(&words).output().unwrap();
        assert!(run.status.success(), "{line}: {run:?}");
    }
}

#[test]
fn a_wrong_agent_or_job_is_refused_before_anything_starts() {
    let fleet = Fleet::new();
    write_set(fleet.directory(), 0);
    let h1 = fleet.agent_words("h1", "h1.key", "s/h1", "h1.json");
    let but = |at: &str, with: &'static str| {
        let mut words = h1.clone();
        let place = words.iter().position(|word| *word == at).unwrap();
        words[place + 1] = with;
        words
    };
    let refuse = |code: i32, words: &[&str], part: &str| {
        let sentence = fleet.bad(code, words);
        assert!(sentence.contains(part), "{words:?}: {sentence}");
    };
    refuse(2, &but("--plan", "none.json"), "none.json");
    std::fs::write(fleet.directory().join("broken.json"), "{\"v\":1,\"vms\":[{}]}").unwrap();
    refuse(2, &but("--plan", "broken.json"), "broken.json");
    refuse(2, &but("--memory", "10M"), "80.0 MB");
    refuse(2, &but("--name", "h 1"), "--name");
    refuse(2, &but("--name", "h1,h2"), "--plan");
    refuse(1, &["job", "run", "--all"], "copal agent");
    for (words, part) in [
        (&["init", "--layout", "fleet", "--pds-fraction", "101%"][..], "101%"),
        (&["job", "run", "--all", "--rounds", "0"], "--rounds"),
        (&["job", "run", "--all", "--rounds", "1000000"], "100000"),
    ] {
        let output = fleet.command(words).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(part), "{words:?}");
    }

    let _first = fleet.agent("h1");
    // A taken name.
    refuse(2, &but("--state", "s/other"), "h1");
    // A VM of two hosts: no agent begins.
    write_plan(fleet.directory(), "h2", &[planned(fleet.directory(), 1)]);
    let _second = fleet.agent("h2");
    refuse(2, &["job", "run", "--all", "--wait"], "vm1");
    assert_eq!(fleet.good(&["snapshots"])["snapshots"], json!([]));
    // A VM without its image has no snapshot; the others have.
    write_set(fleet.directory(), 0);
    for scheme in ["synchronous", "dirty-bit"] {
        let words = ["job", "run", "--all", "--rounds", "3", "--scheme", scheme, "--wait"];
        refuse(2, &words, "--rounds is for the scheme collaborative");
    }
    std::fs::remove_file(fleet.directory().join("vm3.raw")).unwrap();
    let run = fleet.run(&["job", "run", "--all", "--wait"]);
    assert_eq!(run.code, Some(1), "{run:?}");
    let lines = run.lines();
    let job = lines.iter().find(|line| line["message_type"] == "summary").unwrap();
    let state = |name: &str| &vms(job).iter().find(|vm| vm["vm"] == name).unwrap()["state"];
    assert_eq!(
        (state("vm3"), state("vm4"), state("vm1")),
        (&"failed".into(), &"done".into(), &"done".into()),
        "{job}"
    );
}

#[test]
fn a_fleet_in_a_directory_has_all_agents_in_one_process() {
    let house = House::empty();
    house.good(["init", "--size", "64MiB", "--layout", "fleet", "--pds-fraction", "60%"]);
    write_set(&house.path(""), 0);
    let plans = HOSTS.map(|host| house.word(&format!("{host}.json"))).join(",");
    let state = house.word("state");
    let words = ["agent", "--name", "h1,h2,h3", "--plan", &plans, "--state", &state];
    let once: Vec<&str> = words.iter().chain(&["--once"]).copied().collect();
    let job = house.summary(once);
    assert_eq!((vms(&job).len(), &job["complete"]), (6, &true.into()), "{job}");
    let stored: u64 = vms(&job).iter().map(|vm| count(&vm["bytes"], "stored")).sum();
    assert!(stored < 10 * MIB, "{stored} bytes were stored: {job}");
    assert_eq!(house.snapshots().len(), 6);
    house.check();

    // Symptom: without --once or --every, agents waited for ever for a job that no process can begin.
    let idle = house.run(words);
    assert!(idle.code == Some(2) && idle.sentence().contains("--every"), "{idle:?}");
    // While it runs, no other process can open the repository.
    let daily: Vec<&str> = words.iter().chain(&["--every", "24h"]).copied().collect();
    let agents = Agent::start(house.command(daily), 3);
    for (line, host) in agents.ready.iter().zip(HOSTS) {
        assert!(line.starts_with(&format!("ready {host} ")), "{line}");
    }
    let second = house.run(["backup", "--vm", "more", &house.word("vm1.raw")]);
    assert_eq!(second.code, Some(11), "{second:?}");
    agents.end();
    house.backup("more", &house.path("vm1.raw"));
    // There was no other agent to ask: a clean-up in one process asks itself.
    let cleaned = house.summary(["pds", "cleanup"]);
    assert!(count(&cleaned, "freed_bytes") > 2 * MIB, "{cleaned}");
    house.check();
    let newest = house.snapshots().pop().unwrap();
    let restored = house.restore(&newest, "out.raw");
    assert!(std::fs::read(restored).unwrap() == image(1, 0));
}
