//! Processes of a fleet: a cluster of three servers, an agent on each of three hosts, and commands.

use crate::cluster::Served;
use copal_testkit::Random;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Read},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

pub(super) const HOSTS: [&str; 3] = ["h1", "h2", "h3"];
pub(super) const VMS_OF_A_HOST: u64 = 2;
/// A command that takes longer counts as hanging.
const PATIENCE: Duration = Duration::from_secs(180);

/// A command of a user of the fleet.
pub(super) struct Work {
    pub(super) words: Vec<String>,
}

impl Work {
    pub(super) fn new(words: &[&str]) -> Work {
        Work { words: words.iter().map(|word| (*word).to_owned()).collect() }
    }
}

pub(super) struct Running {
    words: Vec<String>,
    child: Child,
    was_killed: bool,
    output: Option<thread::JoinHandle<(String, String)>>,
}

/// End of a command.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) code: Option<i32>,
    /// Its last message.
    pub(super) told: Value,
    /// Its error message.
    pub(super) said: String,
}

impl Running {
    pub(super) fn begin(work: &Work, mut command: Command) -> Running {
        let mut child = command.spawn().unwrap();
        let (mut stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let output = thread::spawn(move || {
            let errors = thread::spawn(move || read_all(&mut stderr));
            (read_all(&mut stdout), errors.join().unwrap())
        });
        Running { words: work.words.clone(), child, was_killed: false, output: Some(output) }
    }

    pub(super) fn process(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn kill(&mut self) {
        self.was_killed = true;
        // It may have ended by itself.
        let _ = self.child.kill();
    }

    #[track_caller]
    pub(super) fn end(mut self) -> Ended {
        let end = Instant::now() + PATIENCE;
        let status: ExitStatus = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if Instant::now() >= end {
                self.child.kill().unwrap();
                let output = self.output.take().unwrap().join().unwrap();
                panic!("{:?} hangs: {output:?}", self.words);
            }
            thread::park_timeout(Duration::from_millis(20));
        };
        let (stdout, stderr) = self.output.take().unwrap().join().unwrap();
        assert!(!stderr.contains("panicked"), "{:?}: {stderr}", self.words);
        assert!(status.code().is_some() || self.was_killed, "{:?}: {status}", self.words);
        let told = stdout.lines().last().and_then(|line| serde_json::from_str(line).ok());
        Ended {
            code: status.code(),
            told: told.unwrap_or_default(),
            said: stderr.lines().last().unwrap_or_default().to_owned(),
        }
    }
}

/// The process to be killed.
#[derive(Debug)]
pub(super) enum Victim {
    Agent(usize),
    /// A server of the cluster, by its number among the processes that `copal serve` started.
    Server(usize),
    /// One of the running commands.
    Command(usize),
}

pub(super) struct Hosts {
    cluster: Served,
    agents: Vec<Agent>,
    /// Restarted servers by number; the others are children of `copal serve`.
    servers: Vec<Option<Child>>,
}

impl Hosts {
    pub(super) fn start() -> Hosts {
        let mut hosts = Hosts { cluster: Served::start(&[]), agents: Vec::new(), servers: Vec::new() };
        hosts.cluster.file("pw", b"correct horse\n");
        hosts.servers.resize_with(hosts.processes().len(), || None);
        let init = ["init", "--layout", "fleet", "--pds-fraction", "60%"];
        hosts.good(&init);
        for (number, host) in HOSTS.iter().enumerate() {
            let out = format!("{host}.key");
            hosts.good(&["key", "add", "--role", "backup", "--out", &out]);
            let first = number as u64 * VMS_OF_A_HOST + 1;
            let vms = (first..first + VMS_OF_A_HOST)
                .map(|vm| json!({ "vm": format!("vm{vm}"), "disks": { "sda": format!("vm{vm}.raw") } }));
            let plan = json!({ "v": 1, "vms": vms.collect::<Vec<_>>() });
            hosts.write(&format!("{host}.json"), plan.to_string().as_bytes());
        }
        hosts.good(&["key", "add", "--role", "delete", "--out", "ops.key"]);
        hosts.agents = HOSTS.iter().map(|host| hosts.agent(host)).collect();
        hosts
    }

    fn processes(&self) -> &Vec<Value> {
        self.cluster.ready["processes"].as_array().unwrap()
    }

    /// Writes a file atomically, like images of a snapshot.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) {
        let directory = self.cluster.scratch.path();
        std::fs::write(directory.join("being-written"), bytes).unwrap();
        std::fs::rename(directory.join("being-written"), directory.join(name)).unwrap();
    }

    fn command(&self, words: &[String]) -> Command {
        let words: Vec<&str> = ["--json"].into_iter().chain(words.iter().map(String::as_str)).collect();
        let mut command = self.cluster.command(&words);
        command
            .env("COPAL_REPOSITORY", self.cluster.ready["url"].as_str().unwrap())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if !words.contains(&"--key") {
            command.env("COPAL_PASSWORD_FILE", "pw");
        }
        command
    }

    pub(super) fn begin(&self, work: &Work) -> Running {
        Running::begin(work, self.command(&work.words))
    }

    #[track_caller]
    fn good(&self, words: &[&str]) -> Value {
        let ended = self.begin(&Work::new(words)).end();
        assert_eq!(ended.code, Some(0), "{words:?}: {ended:?}");
        ended.told
    }

    /// A backup of a VM by its host, beside the host's agent.
    pub(super) fn backup(&self, vm: u64) -> Work {
        let host = HOSTS[((vm - 1) / VMS_OF_A_HOST) as usize];
        let (name, image, key) = (format!("vm{vm}"), format!("sda=vm{vm}.raw"), format!("{host}.key"));
        Work::new(&["backup", "--vm", &name, "--disk", &image, "--key", &key, "--timeout", "5s"])
    }

    pub(super) fn snapshots(&self, vm: u64) -> Vec<String> {
        let told = self.good(&["snapshots", "--vm", &format!("vm{vm}"), "--key", "ops.key"]);
        let snapshots = told["snapshots"].as_array().unwrap().iter();
        snapshots.map(|snapshot| snapshot["id"].as_str().unwrap().to_owned()).collect()
    }

    pub(super) fn restored(&self, vm: u64, snapshot: &str) -> Vec<u8> {
        let name = format!("vm{vm}");
        let words =
            ["restore", snapshot, "--vm", &name, "--target", "out.raw", "--overwrite", "--key", "ops.key"];
        self.good(&words);
        std::fs::read(self.cluster.scratch.path().join("out.raw")).unwrap()
    }

    fn agent(&self, host: &str) -> Agent {
        let (key, state, plan) = (format!("{host}.key"), format!("s/{host}"), format!("{host}.json"));
        let words = ["agent", "--name", host, "--key", &key, "--state", &state, "--plan", &plan];
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let log = self.cluster.scratch.path().join(format!("{host}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        let mut child = self.command(&words).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.next().is_some(), "agent {host} did not start: {}", self.said());
        thread::spawn(move || lines.count());
        Agent { child }
    }

    pub(super) fn victim(&self, random: &mut Random, commands: usize) -> Victim {
        match random.below(4) {
            0 => Victim::Agent(random.index(HOSTS.len())),
            1 => Victim::Server(random.index(self.processes().len())),
            2 => Victim::Server(0),
            _ => Victim::Command(random.index(commands)),
        }
    }

    pub(super) fn kill(&mut self, victim: &Victim) {
        match *victim {
            Victim::Agent(number) => self.agents[number].kill(),
            Victim::Server(number) => match &mut self.servers[number] {
                Some(child) => {
                    child.kill().unwrap();
                    child.wait().unwrap();
                }
                None => {
                    let name = self.processes()[number]["name"].as_str().unwrap();
                    self.cluster.signal(name, "-KILL");
                }
            },
            Victim::Command(_) => {}
        }
    }

    pub(super) fn again(&mut self, victim: &Victim) {
        match *victim {
            Victim::Agent(number) => self.agents[number] = self.agent(HOSTS[number]),
            Victim::Server(number) => self.servers[number] = Some(self.server(number)),
            Victim::Command(_) => {}
        }
    }

    fn server(&self, number: usize) -> Child {
        let told = &self.processes()[number];
        let (name, directory) = (told["name"].as_str().unwrap(), told["directory"].as_str().unwrap());
        let kind = if name.starts_with("master") { "master" } else { "data" };
        let log = self.cluster.scratch.path().join(format!("{name}.log"));
        let log = std::fs::File::options().create(true).append(true).open(log).unwrap();
        self.cluster.command(&[kind, "--dir", directory]).stdout(Stdio::null()).stderr(log).spawn().unwrap()
    }

    /// Waits until the cluster is healthy and no backup is in progress: their processes were killed or have
    /// ended.
    pub(super) fn settle(&self) {
        self.good(&["status", "--wait", "healthy", "--timeout", "120s"]);
        let told = self.good(&["sessions", "ls"]);
        for session in told["sessions"].as_array().unwrap() {
            self.good(&["sessions", "fence", session["vm"].as_str().unwrap()]);
        }
    }

    /// Output of agents and servers.
    pub(super) fn said(&self) -> String {
        let names =
            HOSTS.iter().copied().chain(self.processes().iter().filter_map(|told| told["name"].as_str()));
        let mut all = String::new();
        for name in names {
            let log = std::fs::read(self.cluster.scratch.path().join(format!("{name}.log")));
            let log = log.unwrap_or_default();
            let end = &log[log.len().saturating_sub(4000)..];
            all += &format!("--- {name}\n{}\n", String::from_utf8_lossy(end));
        }
        all
    }

    /// Checks that no process panicked, except for killed ones.
    pub(super) fn end(self) {
        for host in HOSTS {
            let log = std::fs::read(self.cluster.scratch.path().join(format!("{host}.log"))).unwrap();
            assert!(!String::from_utf8_lossy(&log).contains("panicked"), "{}", self.said());
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for child in self.servers.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// An agent that has reported that it is ready.
struct Agent {
    child: Child,
}

impl Agent {
    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.kill();
    }
}

fn read_all(from: &mut impl Read) -> String {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}
