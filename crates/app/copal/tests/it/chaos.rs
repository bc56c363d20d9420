//! Servers and the master of a cluster killed, frozen and started again while clients write, read and delete.
//!
//! Each worker has names of its own and knows what each may hold: what was acknowledged is there, byte for byte, what was
//! deleted is not, what failed for certain never appears. At the end all are started again, the cluster becomes healthy by
//! itself, and its members are equal to the last byte. `COPAL_CHAOS_SECONDS` (default 20) and `COPAL_CHAOS_SEED` set length
//! and moments; `cargo xtask cluster-chaos --minutes 10` sets them.

use crate::cluster::{free_ports, named_copal};
use base64::{Engine, engine::general_purpose::STANDARD};
use copal_testkit::Random;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{self, Sender},
    },
    thread,
    time::{Duration, Instant},
};

const SERVERS: usize = 4;
const WORKERS: u64 = 8;
const NAMES: u64 = 12;
const VOLUMES: u64 = 6;

/// Files that no client ends are closed after 70 s, and settled after that; so are names with two of them, which keep a member
/// from being whole.
const SETTLED: Duration = Duration::from_secs(150);

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// A process of the cluster, which may be away.
struct Process {
    words: Vec<String>,
    child: Option<Child>,
}

struct House {
    scratch: tempfile::TempDir,
    path: String,
    master: Process,
    servers: Vec<Process>,
}

impl House {
    fn start() -> House {
        let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (path, port) = (named_copal(scratch.path()), free_ports(SERVERS as u16 + 1));
        let process = |words: Vec<String>| Process { words, child: None };
        let master = scratch.path().join("master");
        let mut house = House {
            master: process(words(&["master", "--dir", master.to_str().unwrap()])),
            servers: Vec::new(),
            scratch,
            path,
        };
        let listen = format!("127.0.0.1:{port}");
        house.first(0, &["--new", "--groups", "16", "--listen", &listen]);
        for number in 1..=SERVERS {
            let name = format!("data{number}");
            let dir = house.scratch.path().join(&name);
            house
                .servers
                .push(process(words(&["data", "--dir", dir.to_str().unwrap()])));
            let token = house.good(&["node", "token"]).trim().to_owned();
            let listen = format!("127.0.0.1:{}", usize::from(port) + number);
            house.first(number, &["--name", &name, "--listen", &listen, "--join", &token]);
        }
        house.good(&["status", "--wait", "healthy"]);
        house
    }

    fn copal(&self, words: &[&str]) -> Command {
        let mut command = Command::new("copal");
        command
            .args(words)
            .env_clear()
            .env("PATH", &self.path)
            .env("COPAL_CLUSTER", self.scratch.path().join("master/client.json"))
            .env(
                "COPAL_LOG",
                std::env::var("COPAL_LOG").unwrap_or_else(|_| "warn".to_owned()),
            )
            .stdin(Stdio::null());
        command
    }

    fn good(&self, words: &[&str]) -> String {
        let run = self.copal(words).output().unwrap();
        let (stdout, stderr) = (
            String::from_utf8_lossy(&run.stdout),
            String::from_utf8_lossy(&run.stderr),
        );
        assert!(
            run.status.success(),
            "{words:?}: {stdout}{stderr}\n{}",
            self.logs()
        );
        stdout.into_owned()
    }

    /// What the processes wrote on standard error.
    fn logs(&self) -> String {
        let log = |number: usize| std::fs::read_to_string(self.log(number)).unwrap_or_default();
        (0..=SERVERS)
            .map(|number| format!("== {number}\n{}", log(number)))
            .collect()
    }

    fn log(&self, number: usize) -> PathBuf {
        self.scratch.path().join(format!("log{number}"))
    }

    fn process(&mut self, number: usize) -> &mut Process {
        match number {
            0 => &mut self.master,
            number => &mut self.servers[number - 1],
        }
    }

    fn first(&mut self, number: usize, more: &[&str]) {
        let mut typed = self.process(number).words.clone();
        typed.extend(words(more));
        let child = self.spawn(number, &typed);
        self.process(number).child = Some(child);
    }

    /// Starts a process, and waits until it is ready.
    fn spawn(&self, number: usize, typed: &[String]) -> Child {
        let typed: Vec<&str> = typed.iter().map(String::as_str).collect();
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log(number))
            .unwrap();
        let mut child = self
            .copal(&typed)
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.next();
        assert!(
            matches!(&ready, Some(Ok(line)) if line.starts_with("ready")),
            "{typed:?}: {}",
            self.logs()
        );
        child
    }

    fn again(&mut self, number: usize) {
        let typed = self.process(number).words.clone();
        let child = self.spawn(number, &typed);
        self.process(number).child = Some(child);
    }

    fn kill(&mut self, number: usize) {
        if let Some(mut child) = self.process(number).child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    fn signal(&mut self, number: usize, signal: &str) {
        let Some(child) = &self.process(number).child else {
            return;
        };
        let pid = child.id().to_string();
        assert!(
            Command::new("kill")
                .args([signal, &pid])
                .status()
                .unwrap()
                .success()
        );
    }

    /// One thing goes wrong, and right again.
    fn trouble(&mut self, random: &mut Random) -> String {
        let server = 1 + random.index(SERVERS);
        let moment = |random: &mut Random, most: u64| Duration::from_millis(random.below(most));
        match random.below(8) {
            0..=2 => {
                let away = moment(random, 3000);
                self.kill(server);
                thread::park_timeout(away);
                self.again(server);
                format!("server {server} killed for {away:?}")
            }
            3 => {
                let away = moment(random, 1500);
                self.kill(0);
                thread::park_timeout(away);
                self.again(0);
                format!("master killed for {away:?}")
            }
            4 | 5 => {
                let frozen = moment(random, 13_000);
                self.signal(server, "-STOP");
                thread::park_timeout(frozen);
                self.signal(server, "-CONT");
                format!("server {server} frozen for {frozen:?}")
            }
            6 => {
                let other = 1 + (server + random.index(SERVERS - 1)) % SERVERS;
                let (first, second) = (moment(random, 1000), moment(random, 3000));
                self.kill(server);
                thread::park_timeout(first);
                self.kill(other);
                thread::park_timeout(second);
                self.again(server);
                thread::park_timeout(first);
                if self.process(other).child.is_none() {
                    self.again(other);
                }
                format!("servers {server} and {other} killed")
            }
            _ => {
                (1..=SERVERS).for_each(|number| self.kill(number));
                thread::park_timeout(moment(random, 1000));
                (1..=SERVERS).for_each(|number| self.again(number));
                "all servers killed".to_owned()
            }
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        (0..=self.servers.len()).for_each(|number| self.kill(number));
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// `copal fs run`, and who waits for which answer.
struct Client {
    child: Child,
    input: Mutex<ChildStdin>,
    waiting: Arc<Mutex<BTreeMap<u64, Sender<Value>>>>,
}

impl Client {
    fn start(house: &House) -> Client {
        let mut child = house
            .copal(&["fs", "run", "--parallel", &WORKERS.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let waiting: Arc<Mutex<BTreeMap<u64, Sender<Value>>>> = Arc::default();
        let told = Arc::clone(&waiting);
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let answer: Value = serde_json::from_str(&line).unwrap();
                let id = answer["id"].as_u64().unwrap();
                let tell = told.lock().unwrap().remove(&id).unwrap();
                tell.send(answer).unwrap();
            }
        });
        Client {
            input: Mutex::new(child.stdin.take().unwrap()),
            child,
            waiting,
        }
    }

    fn ask(&self, id: u64, mut line: Value) -> Value {
        let (tell, told) = mpsc::channel();
        self.waiting.lock().unwrap().insert(id, tell);
        line["id"] = json!(id);
        line["deadline_ms"] = json!(20_000);
        writeln!(self.input.lock().unwrap(), "{line}").unwrap();
        told.recv_timeout(Duration::from_secs(60))
            .unwrap_or_else(|_| panic!("no answer: {line}"))
    }
}

/// What a client that was killed had been told of its files, by volume and name: held, or nothing.
type Left = BTreeMap<(u64, String), bool>;

/// A client that puts many files at once and is killed in the middle of it.
fn killed_client(house: &House, random: &mut Random, number: u64) -> Left {
    const PUTS: u64 = 60;
    let mut child = house
        .copal(&["fs", "run", "--parallel", "16"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let mut left = Left::new();
    for id in 0..PUTS {
        let (volume, name) = (random.below(VOLUMES), format!("k{number}-{id}"));
        let line = json!({
            "id": id, "op": "put", "volume": format!("v{volume}"), "name": name,
            "body_b64": STANDARD.encode(body_of(&name)),
        });
        writeln!(input, "{line}").unwrap();
        left.insert((volume, name), false);
    }
    let wanted = random.below(PUTS);
    let mut answers = output.lines().map_while(Result::ok);
    let mut note = |line: String| {
        let Ok(answer) = serde_json::from_str::<Value>(&line) else {
            return;
        };
        let name = format!("k{number}-{}", answer["id"]);
        if let Some((_, held)) = left.iter_mut().find(|((_, of), _)| *of == name) {
            *held = answer["ok"] == true;
        }
    };
    (0..wanted).filter_map(|_| answers.next()).for_each(&mut note);
    child.kill().unwrap();
    answers.for_each(note);
    child.wait().unwrap();
    left
}

fn body_of(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(7000).collect()
}

/// What a name may hold: bodies, or nothing (None). One where all is known.
type May = Vec<Option<Vec<u8>>>;

struct Worker {
    number: u64,
    random: Random,
    asked: u64,
    names: BTreeMap<(u64, u64), May>,
    acknowledged: u64,
    /// What was answered about each name, the newest last.
    told: BTreeMap<String, Vec<String>>,
}

impl Worker {
    fn ask(&mut self, client: &Client, line: Value) -> Value {
        self.asked += 1;
        let (name, op) = (
            format!("{}/{}", line["volume"], line["name"]),
            line["op"].to_string(),
        );
        let mut answer = client.ask(self.number << 32 | self.asked, line);
        let body = answer.as_object_mut().unwrap().remove("body_b64");
        let told = self.told.entry(name).or_default();
        told.push(format!("{op}: {answer}"));
        if told.len() > 8 {
            told.remove(0);
        }
        if let Some(body) = body {
            answer["body_b64"] = body;
        }
        answer
    }

    /// What led to this.
    fn history(&self, line: &Value) -> String {
        let name = format!("{}/{}", line["volume"], line["name"]);
        self.told
            .get(&name)
            .map_or_else(String::new, |told| told.join("\n"))
    }

    fn step(&mut self, client: &Client) {
        let (volume, name) = (self.random.below(VOLUMES), self.random.below(NAMES));
        let key = (volume, name);
        let words = json!({ "volume": format!("v{volume}"), "name": format!("w{}-{name}", self.number) });
        let mut line = words.clone();
        let may = self.names.entry(key).or_insert_with(|| vec![None]).clone();
        let certainly = |answer: &Value| {
            matches!(
                answer["error"].as_str(),
                Some("degraded" | "unavailable" | "incomplete" | "exists")
            )
        };
        let next = match self.random.below(5) {
            0 | 1 => {
                let len = match self.random.below(20) {
                    0 => 5 << 20,
                    1..=5 => self.random.below(70_000),
                    _ => self.random.below(6000),
                };
                let mut body = vec![0; len as usize];
                body.iter_mut()
                    .for_each(|byte| *byte = self.random.below(256) as u8);
                line["op"] = json!("put");
                line["body_b64"] = json!(STANDARD.encode(&body));
                let answer = self.ask(client, line);
                match answer["ok"] == true {
                    true => {
                        let history = self.history(&words);
                        assert!(
                            may.contains(&None),
                            "put over a file that is there: {answer}\n{history}"
                        );
                        self.acknowledged += 1;
                        vec![Some(body)]
                    }
                    false if answer["error"] == "exists" => {
                        let held: May = may.into_iter().filter(Option::is_some).collect();
                        assert!(
                            !held.is_empty(),
                            "nothing was there: {answer}\n{}",
                            self.history(&words)
                        );
                        held
                    }
                    false if certainly(&answer) => may,
                    false => {
                        let mut may = may;
                        may.push(Some(body));
                        may
                    }
                }
            }
            2 => {
                line["op"] = json!("delete");
                let answer = self.ask(client, line);
                match answer["ok"] == true || answer["error"] == "not_found" {
                    true if answer["error"] == "not_found" => {
                        let history = self.history(&words);
                        assert!(
                            may.contains(&None),
                            "lost {key:?} of {}: {answer}\n{history}",
                            self.number
                        );
                        vec![None]
                    }
                    true => {
                        self.acknowledged += 1;
                        vec![None]
                    }
                    false => {
                        let mut may = may;
                        may.push(None);
                        may
                    }
                }
            }
            _ => self.look(client, key, may),
        };
        self.names.insert(key, next);
    }

    /// Reads a name, and compares; what was open is known then, but for what may still be on its way.
    fn look(&mut self, client: &Client, key: (u64, u64), may: May) -> May {
        let (volume, name) = key;
        let answer = self.ask(
            client,
            json!({
                "op": "get", "volume": format!("v{volume}"), "name": format!("w{}-{name}", self.number),
                "body": true, "consistency": "strict",
            }),
        );
        let who = format!("worker {}, {key:?}", self.number);
        let found = match (answer["ok"] == true, answer["error"].as_str()) {
            (true, _) => Some(STANDARD.decode(answer["body_b64"].as_str().unwrap()).unwrap()),
            (false, Some("not_found")) => None,
            _ => return may,
        };
        let lens: Vec<Option<usize>> = may.iter().map(|body| body.as_ref().map(Vec::len)).collect();
        let len = found.as_ref().map(Vec::len);
        assert!(
            may.contains(&found),
            "{who}: found {len:?}, may be {lens:?}: fid {}\n{}",
            answer["fid"],
            self.history(
                &json!({ "volume": format!("v{volume}"), "name": format!("w{}-{name}", self.number) })
            )
        );
        may
    }
}

#[test]
#[expect(
    clippy::print_stderr,
    reason = "what happened is printed where something is lost, and the figures"
)]
fn nothing_acknowledged_is_lost_whoever_is_killed_or_frozen() {
    let (seconds, seed) = (setting("COPAL_CHAOS_SECONDS", 20), setting("COPAL_CHAOS_SEED", 1));
    let mut house = House::start();
    for volume in 0..VOLUMES {
        house.good(&["fs", "mkdir", &format!("v{volume}")]);
    }
    let client = Client::start(&house);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut random = Random::new(seed);
    // What dead clients left takes two minutes to come to all members: too long for every run.
    let kills_clients = seconds >= 60;
    let (mut troubles, mut left) = (Vec::new(), Left::new());
    let mut workers: Vec<Worker> = (0..WORKERS)
        .map(|number| Worker {
            number,
            random: Random::new(seed * 1000 + number),
            asked: 0,
            names: BTreeMap::new(),
            acknowledged: 0,
            told: BTreeMap::new(),
        })
        .collect();
    let outcome = thread::scope(|scope| {
        let running: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                let client = &client;
                scope.spawn(move || {
                    while Instant::now() < end {
                        worker.step(client);
                    }
                })
            })
            .collect();
        while Instant::now() < end {
            troubles.push(house.trouble(&mut random));
            if kills_clients {
                let number = troubles.len() as u64;
                left.extend(killed_client(&house, &mut random, number));
            }
            thread::park_timeout(Duration::from_millis(random.below(4000)));
        }
        let ended = running.into_iter().map(|worker| worker.join());
        ended.collect::<Result<Vec<()>, _>>()
    });
    if let Err(panic) = outcome {
        eprintln!("seed {seed}: {troubles:#?}\n{}", house.logs());
        std::panic::resume_unwind(panic);
    }
    let healthy = house
        .copal(&["status", "--wait", "healthy", "--timeout", "150s"])
        .output()
        .unwrap();
    if !healthy.status.success() {
        eprintln!(
            "{}{}{}",
            house.good(&["status"]),
            house.good(&["group", "ls"]),
            house.good(&["events"])
        );
        panic!("seed {seed}: {troubles:#?}\n{}", house.logs());
    }
    let verified = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for worker in &mut workers {
            for (key, may) in worker.names.clone() {
                worker.look(&client, key, may);
            }
        }
        for ((volume, name), held) in &left {
            let got = house
                .copal(&["fs", "get", &format!("v{volume}"), name, "-"])
                .output()
                .unwrap();
            let is_whole = got.status.success() && got.stdout == body_of(name);
            let is_absent = got.status.code() == Some(40);
            assert!(is_whole || (is_absent && !held), "{name}, held {held}: {got:?}");
        }
        // What a client gave up, and what it was told the outcome of is unknown, comes to all members or to none.
        let end = Instant::now() + SETTLED;
        while Instant::now() < end
            && !house
                .copal(&["group", "verify", "--all"])
                .status()
                .unwrap()
                .success()
        {
            thread::park_timeout(Duration::from_secs(2));
        }
        house.good(&["group", "verify", "--all", "--deep"]);
    }));
    if let Err(panic) = verified {
        eprintln!("seed {seed}: {troubles:#?}\n{}", house.logs());
        std::panic::resume_unwind(panic);
    }
    let acknowledged: u64 = workers.iter().map(|worker| worker.acknowledged).sum();
    eprintln!(
        "seed {seed}: {acknowledged} operations acknowledged, {} troubles",
        troubles.len()
    );
    assert!(acknowledged > seconds, "the load has stood still: {troubles:#?}");
    for number in 0..=SERVERS {
        let log = std::fs::read_to_string(house.log(number)).unwrap();
        assert!(
            !log.contains("ERROR") && !log.contains("panicked"),
            "{troubles:#?}\n{log}"
        );
    }
    drop(client.input);
    let mut child = client.child;
    assert!(child.wait().unwrap().success());
}
