//! A user of a cluster under test that knows the possible content: of all its own names, and of contested
//! names the winner.

use super::{NAMES, VOLUMES, client::Client};
use base64::{Engine, engine::general_purpose::STANDARD};
use copal_testkit::Random;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

/// Possible contents of a name: bodies, or absent (None). A single one if the state is certain.
pub(super) type May = Vec<Option<Vec<u8>>>;

pub(super) struct Worker {
    number: u64,
    random: Random,
    asked: u64,
    pub(super) names: BTreeMap<(u64, u64), May>,
    pub(super) acknowledged: u64,
    /// Replies about each name, the newest last.
    told: BTreeMap<String, Vec<String>>,
}

/// A name that several workers request at about the same time, and their replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Got {
    It,
    Nothing,
    /// Unknown.
    Perhaps,
}

/// Contested names by number, with the reply to each worker.
#[derive(Default)]
pub(super) struct Contest {
    turns: AtomicU64,
    told: Mutex<BTreeMap<u64, Vec<(u64, Got)>>>,
}

/// Number of workers that request one name.
const RIVALS: u64 = 3;

impl Contest {
    fn body(worker: u64, name: u64) -> Vec<u8> {
        format!("worker {worker} has name {name}").into_bytes()
    }

    fn words(name: u64) -> Value {
        json!({ "volume": format!("v{}", name % VOLUMES), "name": format!("all-{name}") })
    }

    /// Checks that at most one file was created per name, and that this file is present.
    pub(super) fn verify(&self, asker: &mut Worker, client: &Client) {
        for (name, told) in self.told.lock().unwrap().clone() {
            let winners = told.iter().filter(|(_, got)| *got == Got::It);
            let winners: Vec<u64> = winners.map(|(worker, _)| *worker).collect();
            assert!(winners.len() < 2, "name {name} was given twice: {told:?}");
            let mut line = Contest::words(name);
            line["op"] = json!("get");
            line["body"] = json!(true);
            line["consistency"] = json!("strict");
            let answer = asker.ask(client, line);
            let found = match (answer["ok"] == true, answer["error"].as_str()) {
                (true, _) => Some(STANDARD.decode(answer["body_b64"].as_str().unwrap()).unwrap()),
                (false, Some("not_found")) => None,
                _ => panic!("name {name} cannot be read: {answer}"),
            };
            let is = |worker: u64| found.as_deref() == Some(&Contest::body(worker, name)[..]);
            let is_right = match winners[..] {
                [winner] => is(winner),
                _ => {
                    let mut perhaps = told.iter().filter(|(_, got)| *got == Got::Perhaps);
                    found.is_none() || perhaps.any(|(worker, _)| is(*worker))
                }
            };
            assert!(is_right, "name {name}: {told:?}, and there is {found:?}");
        }
    }

    pub(super) fn names(&self) -> usize {
        self.told.lock().unwrap().len()
    }
}

impl Worker {
    pub(super) fn new(seed: u64, number: u64) -> Worker {
        Worker {
            number,
            random: Random::new(seed * 1000 + number),
            asked: 0,
            names: BTreeMap::new(),
            acknowledged: 0,
            told: BTreeMap::new(),
        }
    }

    /// Requests a contested name.
    fn contend(&mut self, client: &Client, contest: &Contest) {
        let name = contest.turns.fetch_add(1, Ordering::Relaxed) / RIVALS;
        let mut line = Contest::words(name);
        line["op"] = json!("put");
        line["body_b64"] = json!(STANDARD.encode(Contest::body(self.number, name)));
        let answer = self.ask(client, line);
        let got = match answer["ok"] == true {
            true => Got::It,
            false if certainly(&answer) => Got::Nothing,
            false => Got::Perhaps,
        };
        self.acknowledged += u64::from(got == Got::It);
        let mut told = contest.told.lock().unwrap();
        told.entry(name).or_default().push((self.number, got));
    }

    fn ask(&mut self, client: &Client, line: Value) -> Value {
        self.asked += 1;
        let (name, op) = (format!("{}/{}", line["volume"], line["name"]), line["op"].to_string());
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

    /// The requests that led to this state.
    fn history(&self, line: &Value) -> String {
        let name = format!("{}/{}", line["volume"], line["name"]);
        self.told.get(&name).map_or_else(String::new, |told| told.join("\n"))
    }

    pub(super) fn step(&mut self, client: &Client, contest: &Contest) {
        if self.random.below(10) == 0 {
            self.contend(client, contest);
            return;
        }
        let (volume, name) = (self.random.below(VOLUMES), self.random.below(NAMES));
        let key = (volume, name);
        let words = json!({ "volume": format!("v{volume}"), "name": format!("w{}-{name}", self.number) });
        let mut line = words.clone();
        let may = self.names.entry(key).or_insert_with(|| vec![None]).clone();
        let next = match self.random.below(5) {
            0 | 1 => {
                let len = match self.random.below(20) {
                    0 => 5 << 20,
                    1..=5 => self.random.below(70_000),
                    _ => self.random.below(6000),
                };
                let mut body = vec![0; len as usize];
                body.iter_mut().for_each(|byte| *byte = self.random.below(256) as u8);
                line["op"] = json!("put");
                line["body_b64"] = json!(STANDARD.encode(&body));
                let answer = self.ask(client, line);
                match answer["ok"] == true {
                    true => {
                        let history = self.history(&words);
                        assert!(may.contains(&None), "put over a file that is there: {answer}\n{history}");
                        self.acknowledged += 1;
                        vec![Some(body)]
                    }
                    false if answer["error"] == "exists" => {
                        let held: May = may.into_iter().filter(Option::is_some).collect();
                        assert!(!held.is_empty(), "nothing was there: {answer}\n{}", self.history(&words));
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
                        assert!(may.contains(&None), "lost {key:?} of {}: {answer}\n{history}", self.number);
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

    /// Reads a name and compares it; afterwards an uncertain state is known, except for operations still in
    /// transit.
    pub(super) fn look(&mut self, client: &Client, key: (u64, u64), may: May) -> May {
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

/// Whether the request certainly had and will have no effect.
fn certainly(answer: &Value) -> bool {
    matches!(answer["error"].as_str(), Some("degraded" | "unavailable" | "incomplete" | "exists"))
}
