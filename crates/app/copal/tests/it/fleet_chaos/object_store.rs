//! The same over an object store: two hosts, each with an agent, over a server in this process.
//!
//! Each round starts commands of both hosts at once, and kills one process, or stops it and lets it go on once others
//! have worked: its requests are late then. All the time the network loses, repeats, delays and refuses requests. After
//! each round the published snapshots are checked; at the end, the objects of the bucket.
//! `COPAL_FLEET_CHAOS_ROUNDS` (default 1) and `COPAL_CHAOS_SEED` set length and times; `cargo xtask fleet-chaos --store
//! s3` sets them.

use super::{
    hosts::{Ended, Running, Work},
    setting,
    twin::{Twin, day_of, image, unique_bytes},
};
use copal_testkit::{NetworkFault, ObjectServer, Random, RequestFacts};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, BufReader},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const HOSTS: [&str; 2] = ["h1", "h2"];
const VMS: u64 = 4;
const BUCKET: &str = "vms";
/// Longest time in ms for which a process is stopped.
const LONGEST_STOP: u64 = 2_000;
/// Longest time after which a request takes effect whose connection has ended.
const LATE_MS: u64 = 1_500;
const EIGHT_DAYS: i64 = 8 * 24 * 3600;

/// A fault by the number of a request: about one in twelve.
fn fault(seed: u64, request: &RequestFacts) -> NetworkFault {
    let mut random = Random::new(seed ^ request.number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let refuse = |status, code: &str| NetworkFault::Refuse { status, code: code.to_owned() };
    match random.below(240) {
        0..=4 => NetworkFault::LoseAnswer,
        5..=7 => NetworkFault::LoseRequest,
        8 | 9 => NetworkFault::Twice,
        10 | 11 => NetworkFault::CutAnswer(random.below(600) as usize),
        12 => NetworkFault::Delay(Duration::from_millis(random.below(LATE_MS))),
        13 => NetworkFault::Stall(Duration::from_millis(random.below(LATE_MS))),
        14 | 15 if request.method != "GET" => {
            NetworkFault::LateEffect(Duration::from_millis(random.below(LATE_MS)))
        }
        16 => refuse(503, "SlowDown"),
        17 => refuse(429, "TooManyRequests"),
        18 => refuse(409, "ConditionalRequestConflict"),
        19 => refuse(403, "SlowDown"),
        20 => refuse(500, "InternalError"),
        _ => NetworkFault::None,
    }
}

struct Elsewhere {
    server: ObjectServer,
    scratch: tempfile::TempDir,
    agents: Vec<Child>,
}

impl Elsewhere {
    fn start() -> Elsewhere {
        let server = ObjectServer::start();
        server.create_bucket(BUCKET);
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join("pw"), "correct horse\n").unwrap();
        let hosts = Elsewhere { server, scratch, agents: Vec::new() };
        hosts.good(&["init", "--pds-fraction", "60%"]);
        hosts.good(&["key", "add", "--role", "delete", "--out", "ops.key"]);
        for (number, host) in HOSTS.iter().enumerate() {
            hosts.good(&["key", "add", "--role", "backup", "--out", &format!("{host}.key")]);
            let own = (1..=VMS).filter(|vm| host_of(*vm) == number);
            let vms =
                own.map(|vm| json!({ "vm": format!("vm{vm}"), "disks": { "sda": format!("vm{vm}.raw") } }));
            let plan = json!({ "v": 1, "vms": vms.collect::<Vec<_>>() });
            std::fs::write(hosts.path().join(format!("{host}.json")), plan.to_string()).unwrap();
        }
        hosts
    }

    fn path(&self) -> &Path {
        self.scratch.path()
    }

    fn command(&self, words: &[String]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_copal"));
        command
            .args(["--json", "--retry-for", "60s"])
            .args(words)
            .current_dir(self.path())
            .env_clear()
            .env("HOME", self.path())
            .env(
                "COPAL_REPOSITORY",
                format!("s3://{BUCKET}/office?endpoint={}&region=us-east-1", self.server.url()),
            )
            .envs([("AWS_ACCESS_KEY_ID", "ak"), ("AWS_SECRET_ACCESS_KEY", "sk")])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if !words.iter().any(|word| word == "--key") {
            command.env("COPAL_PASSWORD_FILE", "pw");
        }
        command
    }

    fn begin(&self, work: &Work) -> Running {
        Running::begin(work, self.command(&work.words))
    }

    #[track_caller]
    fn good(&self, words: &[&str]) -> Value {
        let ended = self.begin(&Work::new(words)).end();
        assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
        ended.told
    }

    fn agent(&self, host: &str) -> Child {
        let words =
            ["agent", "--name", host, "--key", &format!("{host}.key"), "--state", &format!("s/{host}")];
        let plan = ["--plan", &format!("{host}.json")];
        let words: Vec<String> =
            [&words[..], &plan[..]].concat().iter().map(|word| (*word).to_owned()).collect();
        let log =
            std::fs::File::options().create(true).append(true).open(self.path().join(format!("{host}.log")));
        let mut child = self.command(&words).stderr(log.unwrap()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.next().is_some(), "agent {host} did not start: {}", self.said());
        thread::spawn(move || lines.count());
        child
    }

    fn backup(&self, vm: u64) -> Work {
        let (name, image, key) =
            (format!("vm{vm}"), format!("sda=vm{vm}.raw"), format!("{}.key", HOSTS[host_of(vm)]));
        Work::new(&["backup", "--vm", &name, "--disk", &image, "--key", &key, "--timeout", "5s"])
    }

    fn snapshots(&self, vm: u64) -> Vec<String> {
        let told = self.good(&["snapshots", "--vm", &format!("vm{vm}"), "--key", "ops.key"]);
        let snapshots = told["snapshots"].as_array().unwrap().iter();
        snapshots.map(|snapshot| snapshot["id"].as_str().unwrap().to_owned()).collect()
    }

    fn restored(&self, vm: u64, snapshot: &str) -> Vec<u8> {
        let name = format!("vm{vm}");
        let words =
            ["restore", snapshot, "--vm", &name, "--target", "out.raw", "--overwrite", "--key", "ops.key"];
        self.good(&words);
        std::fs::read(self.path().join("out.raw")).unwrap()
    }

    /// Ends sessions of processes that were killed or have ended.
    fn settle(&self) {
        let told = self.good(&["sessions", "ls"]);
        for session in told["sessions"].as_array().unwrap() {
            self.good(&["sessions", "fence", session["vm"].as_str().unwrap()]);
        }
    }

    /// Output of the agents.
    fn said(&self) -> String {
        let logs = HOSTS.iter().map(|host| {
            let log = std::fs::read(self.path().join(format!("{host}.log"))).unwrap_or_default();
            format!("--- {host}\n{}\n", String::from_utf8_lossy(&log[log.len().saturating_sub(4000)..]))
        });
        logs.collect()
    }

    fn end_agents(&mut self) {
        for agent in &mut self.agents {
            // It may have ended by itself.
            let _ = agent.kill();
            let _ = agent.wait();
        }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.end_agents();
    }
}

fn host_of(vm: u64) -> usize {
    usize::from(vm > VMS / 2)
}

fn signal(signal: &str, process: u32) {
    // It may have ended by itself.
    let _ = Command::new("kill").args([signal, &process.to_string()]).stderr(Stdio::null()).status();
}

#[derive(Default)]
struct Counts {
    kills: u32,
    stops: u32,
    requests: usize,
    commands: u32,
    failed: u32,
    longest: Duration,
}

struct Storm {
    hosts: Elsewhere,
    twin: Twin,
    random: Random,
    told: Vec<String>,
    counts: Counts,
}

impl Storm {
    fn start(seed: u64) -> Storm {
        let mut storm = Storm {
            hosts: Elsewhere::start(),
            twin: Twin::default(),
            random: Random::new(seed),
            told: Vec::new(),
            counts: Counts::default(),
        };
        // First, so that each host checks the store: an upload of that check whose abort is lost stays.
        storm.hosts.agents = HOSTS.iter().map(|host| storm.hosts.agent(host)).collect();
        storm.hosts.server.set_faults(move |request| fault(seed, request));
        storm.write_images(0);
        let job = storm.hosts.begin(&job()).end();
        assert_eq!(job.code, Some(0), "{job:?}");
        storm.learn(&job.told);
        storm.look(0, true);
        storm
    }

    /// Writes the images of a day, on which about half of the VMs have changed.
    fn write_images(&mut self, day: u64) {
        for vm in 1..=VMS {
            if day == 0 || self.random.one_in(2) {
                let new = self.hosts.path().join("being-written");
                std::fs::write(&new, image(vm, day)).unwrap();
                std::fs::rename(&new, self.hosts.path().join(format!("vm{vm}.raw"))).unwrap();
            }
        }
    }

    fn work(&mut self, vm: u64) -> Vec<Work> {
        match self.random.below(9) {
            0 | 1 => vec![self.hosts.backup(vm)],
            2 => vec![job()],
            3 | 4 => self.deletion(vm),
            5 => vec![ops(&["prune", "--max-unused", "0%"])],
            6 => vec![ops(&["pds", "prune"])],
            7 => vec![ops(&["pds", "cleanup"])],
            _ => vec![ops(&["repair", "leak", "--vm", &format!("vm{vm}")])],
        }
    }

    fn round(&mut self, day: u64) {
        self.write_images(day);
        // Both hosts work; often on one VM.
        let vm = 1 + self.random.below(VMS);
        let other = if self.random.one_in(2) { vm } else { 1 + self.random.below(VMS) };
        let mut work = vec![self.hosts.backup(vm)];
        work.extend(self.work(other));
        if self.random.one_in(3) {
            work.extend(self.work(vm));
        }
        let began = Instant::now();
        let mut running: Vec<Running> = work.iter().map(|work| self.hosts.begin(work)).collect();
        let magnitude = self.random.below(12);
        let after = self.random.below(1 << magnitude);
        let victim = self.random.index(running.len() + 1);
        let is_stopped = self.random.one_in(2);
        let names: Vec<String> = work.iter().map(|work| work.words.join(" ")).collect();
        let act = if is_stopped { "stopped" } else { "killed" };
        self.told.push(format!("day {day}: {} | {victim} {act} after {after} ms", names.join(" | ")));
        thread::park_timeout(Duration::from_millis(after));
        let agent = self.random.index(HOSTS.len());
        let process = match running.get(victim) {
            Some(running) => running.process(),
            None => self.hosts.agents[agent].id(),
        };
        match is_stopped {
            true => {
                self.counts.stops += 1;
                signal("-STOP", process);
                thread::park_timeout(Duration::from_millis(self.random.below(LONGEST_STOP)));
                signal("-CONT", process);
            }
            false => {
                self.counts.kills += 1;
                match running.get_mut(victim) {
                    Some(running) => running.kill(),
                    None => {
                        let _ = self.hosts.agents[agent].kill();
                        let _ = self.hosts.agents[agent].wait();
                        self.hosts.agents[agent] = self.hosts.agent(HOSTS[agent]);
                    }
                }
            }
        }
        for running in running {
            let ended = running.end();
            self.note(&ended);
        }
        self.counts.longest = self.counts.longest.max(began.elapsed());
        self.hosts.settle();
        self.look(day, false);
        self.counts.requests += self.hosts.server.take_requests().len();
    }

    fn note(&mut self, ended: &Ended) {
        self.counts.commands += 1;
        self.counts.failed += u32::from(ended.code != Some(0));
        let line = self.told.last_mut().unwrap();
        *line += &format!(" | {:?} {}", ended.code, ended.said);
        // 20: damaged.
        assert_ne!(ended.code, Some(20), "{ended:?}");
        if ended.code == Some(0) || ended.told["vms"].is_array() {
            self.learn(&ended.told);
        }
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

    /// Checks that all published snapshots are listed, and restores the new ones, or all.
    fn look(&mut self, day: u64, all: bool) {
        for vm in 1..=VMS {
            let listed = self.hosts.snapshots(vm);
            self.twin.compare(vm, &listed);
            for snapshot in &listed {
                if all || self.twin.is_new(snapshot) {
                    let bytes = self.hosts.restored(vm, snapshot);
                    let was = day_of(&bytes);
                    assert!(was <= day, "vm{vm} {snapshot} is of day {was}, it is day {day}");
                    assert!(bytes == image(vm, was), "vm{vm} {snapshot} is not as it was on day {was}");
                    self.twin.seen(vm, snapshot, was);
                }
            }
        }
    }

    /// Checks that the bucket holds no object that no snapshot needs.
    fn end(&mut self, day: u64) {
        self.hosts.end_agents();
        self.hosts.server.clear_faults();
        thread::park_timeout(Duration::from_millis(2 * LATE_MS));
        // Heartbeats of killed processes are old then.
        self.hosts.server.set_clock_offset(EIGHT_DAYS);
        self.hosts.settle();
        self.hosts.good(&["delete", "--key", "ops.key"]);
        for vm in 1..=VMS {
            for _ in 0..2 {
                self.hosts.good(&["repair", "leak", "--vm", &format!("vm{vm}"), "--key", "ops.key"]);
            }
        }
        self.hosts.good(&["pds", "prune", "--key", "ops.key"]);
        self.hosts.good(&["prune", "--max-unused", "0%", "--key", "ops.key"]);
        self.look(day, true);
        for vm in 1..=VMS {
            let told = self.hosts.good(&["stats", "--vm", &format!("vm{vm}")]);
            let count = |name: &str| told[name].as_u64().unwrap_or_else(|| panic!("{name}: {told:?}"));
            assert_eq!((count("dead_frames"), count("unfinished_sessions")), (0, 0), "{told:?}");
            let (stored, needed) = (count("chunk_pack_bytes"), unique_bytes(&self.twin.days(vm)));
            assert!(stored <= needed, "vm{vm} stores {stored} bytes of its own, its snapshots have {needed}");
        }
        self.hosts.good(&["check", "--read-data"]);
        self.compare_objects();
        self.counts.requests += self.hosts.server.take_requests().len();
    }

    /// Objects by kind: manifests and vectors belong to listed snapshots, and nothing is of a process that has ended.
    fn compare_objects(&self) {
        let snapshots: BTreeSet<String> = (1..=VMS).flat_map(|vm| self.hosts.snapshots(vm)).collect();
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        let mut bundles = 0;
        for (key, body) in self.hosts.server.objects(BUCKET) {
            if key.starts_with("office/b/") {
                bundles += 1;
                continue;
            }
            let Some((_, name)) = key.strip_prefix("office/f/").and_then(|rest| rest.split_once('/')) else {
                assert!(key.starts_with("office/n/"), "{key}");
                continue;
            };
            let name = unhex(name);
            let (kind, rest) = name.split_once('.').unwrap_or(("pack", ""));
            let of = rest.split('.').next().unwrap();
            let is_needed = match kind {
                "m" | "s" => snapshots.contains(of),
                "a" | "p" | "r" => false,
                _ => true,
            };
            assert!(is_needed, "{key}: {name} of {} bytes", body.len());
            *counts.entry(kind.to_owned()).or_default() += 1;
        }
        for kind in ["m", "s"] {
            assert_eq!(counts[kind], snapshots.len(), "{counts:?}");
        }
        assert!(bundles <= 1, "{bundles} bundles");
        assert_eq!(self.hosts.server.open_uploads(BUCKET), 0);
        let told = self.hosts.good(&["pds", "prune", "--dry-run", "--key", "ops.key"]);
        assert_eq!(told["unneeded_packs"], 0, "{told:?}");
    }
}

fn unhex(digits: &str) -> String {
    let bytes = (0..digits.len() / 2).map(|at| u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).unwrap());
    String::from_utf8_lossy(&bytes.collect::<Vec<u8>>()).into_owned()
}

fn job() -> Work {
    Work::new(&["job", "run", "--all", "--wait", "--timeout", "5s"])
}

fn ops(words: &[&str]) -> Work {
    Work::new(&[words, &["--key", "ops.key"]].concat())
}

#[test]
#[expect(clippy::print_stderr, reason = "what happened is printed where something is lost, and the figures")]
fn no_published_snapshot_is_lost_when_hosts_over_an_object_store_are_killed_or_stopped() {
    let (rounds, seed) = (setting("COPAL_FLEET_CHAOS_ROUNDS", 1), setting("COPAL_CHAOS_SEED", 1));
    let began = Instant::now();
    let mut storm = Storm::start(seed);
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        for day in 1..=rounds {
            storm.round(day);
        }
        storm.end(rounds);
    }));
    if let Err(panic) = outcome {
        eprintln!("seed {seed}: {:#?}\n{}", storm.told, storm.hosts.said());
        resume_unwind(panic);
    }
    if rounds > 10 {
        eprintln!("{:#?}", storm.told);
    }
    assert!(!storm.hosts.said().contains("panicked"), "{}", storm.hosts.said());
    let Counts { kills, stops, requests, commands, failed, longest } = storm.counts;
    eprintln!(
        "seed {seed}: {rounds} rounds in {} s, {kills} kills, {stops} stops, {requests} requests, {commands} commands, \
         {failed} of them failed, the longest round took {} s; {} snapshots published, none lost",
        began.elapsed().as_secs(),
        longest.as_secs(),
        storm.twin.count()
    );
}
