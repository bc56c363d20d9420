//! Clients of a cluster under test: one that sends many requests at once, and one that is killed in the
//! middle.

use super::{VOLUMES, WORKERS, house::House, network::Place};
use base64::{Engine, engine::general_purpose::STANDARD};
use copal_testkit::Random;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{self, Sender},
    },
    thread,
    time::Duration,
};

/// `copal fs run`, and the threads that wait for its replies.
pub(super) struct Client {
    child: Child,
    input: Mutex<ChildStdin>,
    waiting: Arc<Mutex<BTreeMap<u64, Sender<Value>>>>,
}

impl Client {
    pub(super) fn start(house: &House) -> Client {
        let mut child = house
            .copal(&["fs", "run", "--parallel", &WORKERS.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(std::fs::File::create(house.log(Place::Client)).unwrap())
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
        Client { input: Mutex::new(child.stdin.take().unwrap()), child, waiting }
    }

    pub(super) fn ask(&self, id: u64, mut line: Value) -> Value {
        let (tell, told) = mpsc::channel();
        self.waiting.lock().unwrap().insert(id, tell);
        line["id"] = json!(id);
        line["deadline_ms"] = json!(20_000);
        writeln!(self.input.lock().unwrap(), "{line}").unwrap();
        told.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|_| panic!("no answer: {line}"))
    }

    /// Ends it; it must end with success.
    pub(super) fn end(self) {
        drop(self.input);
        let mut child = self.child;
        assert!(child.wait().unwrap().success());
    }
}

/// The acknowledged state of a killed client's files, by volume and name: present or absent.
pub(super) type Left = BTreeMap<(u64, String), bool>;

/// A client that puts many files at once and is killed in the middle.
pub(super) fn killed_client(house: &House, random: &mut Random, number: u64) -> Left {
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

pub(super) fn body_of(name: &str) -> Vec<u8> {
    name.bytes().cycle().take(7000).collect()
}
