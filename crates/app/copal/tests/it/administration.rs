//! JSON of administrative commands, compared with `tests/golden/admin` after values that differ between runs
//! are masked.
//!
//! A golden file is the list of the commands of one test, in order, with their exit codes and lines. With
//! COPAL_GOLDEN_WRITE set, the tests write the files and fail.

mod mask;

use crate::{cluster::Served, racks::Again, recovery::wait_for};
use mask::Mask;
use serde_json::{Value, json};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Longest time for a state to be reached.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval between repetitions of a command.
const AGAIN: Duration = Duration::from_millis(100);

/// Commands of a test, beside the golden file.
struct Recording<'a> {
    cluster: &'a Served,
    mask: Mask,
    path: PathBuf,
    /// Cases of the golden file; `None`: it is being written.
    golden: Option<Vec<Value>>,
    cases: Vec<Value>,
}

impl<'a> Recording<'a> {
    fn new(cluster: &'a Served, name: &str) -> Recording<'a> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/admin/{name}.json"));
        let is_written = std::env::var_os("COPAL_GOLDEN_WRITE").is_some();
        let golden = (!is_written).then(|| {
            let text = std::fs::read_to_string(&path).unwrap();
            serde_json::from_str(&text).unwrap()
        });
        let mask = Mask::new(cluster.scratch.path());
        Recording { cluster, mask, path, golden, cases: Vec::new() }
    }

    /// One run of a command: its exit code and its lines, masked.
    fn case(&self, words: &[&str]) -> Value {
        let run = self.cluster.run(&[&["--json"], words].concat());
        let text = String::from_utf8(run.stdout).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| self.mask.line(line)).collect();
        let command = self.mask.text(&words.join(" "));
        json!({ "command": command, "exit_code": run.status.code(), "lines": lines })
    }

    /// Runs a command that has an effect, or a constant reply.
    #[track_caller]
    fn once(&mut self, words: &[&str]) {
        let case = self.case(words);
        if let Some(expected) = self.expected() {
            assert_eq!(case, expected, "{words:?}:\n{case:#}\ninstead of\n{expected:#}");
        }
        self.cases.push(case);
    }

    /// Repeats a query until its reply equals that of the golden file; while the file is written, until
    /// `is_so`.
    #[track_caller]
    fn until(&mut self, words: &[&str], is_so: impl Fn(&str) -> bool) {
        let end = Instant::now() + PATIENCE;
        let expected = self.expected();
        loop {
            let case = self.case(words);
            let is_wanted = match &expected {
                Some(expected) => case == *expected,
                None => is_so(&case.to_string()),
            };
            if is_wanted {
                return self.cases.push(case);
            }
            let expected = expected.as_ref().unwrap_or(&Value::Null);
            assert!(Instant::now() < end, "{words:?}:\n{case:#}\ninstead of\n{expected:#}");
            std::thread::park_timeout(AGAIN);
        }
    }

    fn expected(&self) -> Option<Value> {
        let golden = self.golden.as_ref()?;
        Some(golden.get(self.cases.len()).cloned().unwrap_or_default())
    }

    /// Checks that all cases of the golden file were run.
    fn end(self) {
        match self.golden {
            Some(golden) => assert_eq!(self.cases.len(), golden.len(), "{}", self.path.display()),
            None => {
                let text = format!("{:#}\n", Value::Array(self.cases));
                std::fs::write(&self.path, text).unwrap();
                panic!("{} is written; look at it, and run the test as it is", self.path.display());
            }
        }
    }
}

fn mentions<'a>(parts: &'a [&'a str]) -> impl Fn(&str) -> bool + 'a {
    |case| parts.iter().all(|part| case.contains(part))
}

#[test]
fn questions_about_a_healthy_cluster() {
    let cluster = Served::start(&[]);
    let mut golden = Recording::new(&cluster, "questions");
    golden.until(&["status"], mentions(&["healthy: 64 groups"]));
    golden.once(&["status", "--wait", "incomplete", "--timeout", "0s"]);
    golden.once(&["node", "ls"]);
    golden.once(&["disk", "ls"]);
    golden.once(&["group", "ls"]);
    golden.once(&["group", "ls", "--degraded"]);
    golden.once(&["group", "show", "1"]);
    golden.once(&["group", "show", "65"]);
    golden.once(&["group", "why-degraded", "1"]);
    golden.once(&["group", "why-degraded", "65"]);
    golden.once(&["group", "boost", "1"]);
    golden.once(&["group", "boost", "65"]);
    golden.once(&["group", "verify", "--all"]);
    golden.once(&["group", "force-accept", "1", "--from", "data1", "--dry-run"]);
    golden.once(&["group", "force-accept", "1", "--from", "nobody", "--dry-run"]);
    golden.once(&["group", "force-accept", "65", "--from", "data1", "--lose-since", "everything"]);
    golden.once(&["events", "--after", "1000000"]);
    golden.once(&["node", "token"]);
    golden.once(&["node", "token", "--master"]);
    golden.once(&["fs", "mkdir", "mail"]);
    golden.once(&["fs", "where", "mail"]);
    golden.once(&["fs", "where", "none"]);
    golden.once(&["rebalance", "plan"]);
    golden.once(&["meta", "backup", "--dir", "c/master", "kept"]);
    golden.once(&["meta", "backup", "--dir", "c/master", "kept"]);
    golden.once(&["meta", "check", "--dir", "c/master"]);
    golden.once(&["meta", "check", "kept"]);
    golden.once(&["meta", "check", "--dir", "c/data1"]);
    golden.once(&["meta", "restore", "--dir", "restored", "kept"]);
    golden.end();
}

#[test]
fn orders_about_servers() {
    let cluster = Served::start(&[]);
    let mut golden = Recording::new(&cluster, "servers");
    golden.once(&["node", "maintenance", "data2", "--for", "30m", "--dry-run"]);
    golden.once(&["node", "maintenance", "data2", "--for", "30m"]);
    golden.once(&["node", "ls"]);
    golden.once(&["node", "maintenance", "data2", "--for", "0s"]);
    golden.once(&["node", "maintenance", "data2", "--for", "48h"]);
    golden.once(&["node", "maintenance", "nobody"]);
    golden.once(&["node", "drain", "data2", "--dry-run"]);
    golden.once(&["node", "drain", "data2"]);
    golden.until(&["status"], mentions(&["data2 is being emptied", "without_place"]));
    golden.once(&["node", "rm", "data2"]);
    golden.once(&["node", "drain", "data2", "--undo"]);
    golden.once(&["node", "drain", "nobody"]);
    golden.once(&["node", "rm", "data2", "--dry-run"]);
    golden.once(&["node", "rm", "nobody"]);
    golden.once(&["node", "lost", "nobody"]);
    golden.once(&["node", "lost", "data2"]);
    golden.once(&["node", "lost", "data2", "--dry-run"]);
    golden.once(&["events", "--after", "4"]);
    golden.end();
}

#[test]
fn clients_and_their_rights() {
    let cluster = Served::start(&[]);
    let mut golden = Recording::new(&cluster, "clients");
    golden.once(&["client", "ls"]);
    let add = ["client", "add", "nightly", "--path", "vms", "--rights", "read,create", "--out"];
    golden.once(&[&add[..], &["nightly.json"]].concat());
    golden.once(&[&add[..], &["nightly.json"]].concat());
    golden.once(&[&add[..], &["again.json"]].concat());
    golden.once(&["client", "add", "No", "--path", "vms", "--rights", "read", "--out", "no.json"]);
    golden.once(&["client", "add", "no", "--path", "vms//a", "--rights", "read", "--out", "no.json"]);
    golden.once(&["client", "add", "no", "--path", "vms", "--rights", "write", "--out", "no.json"]);
    golden.once(&["client", "ls"]);
    golden.once(&["client", "renew", "nightly"]);
    golden.once(&["client", "renew", "nobody"]);
    for command in [
        &["status"][..],
        &["events"],
        &["disk", "ls"],
        &["group", "ls"],
        &["node", "token"],
        &["client", "ls"],
        &["rebalance", "plan"],
        &["node", "drain", "data2", "--dry-run"],
    ] {
        golden.once(&[&["--cluster", "nightly.json"], command].concat());
    }
    golden.once(&["client", "rm", "nightly", "--dry-run"]);
    golden.once(&["client", "rm", "nightly"]);
    golden.once(&["client", "rm", "nightly"]);
    golden.once(&["client", "rm", "nightly", "--dry-run"]);
    golden.once(&[&add[..], &["again.json"]].concat());
    golden.once(&["client", "ls"]);
    golden.end();
}

#[test]
fn plans_and_moves() {
    let more = ["--first-servers", "3", "--recovery-rate", "1M", "--limit", "2G"];
    let cluster = Served::with_servers(4, &more);
    let mut golden = Recording::new(&cluster, "moves");
    // A move that takes seconds.
    golden.once(&["fs", "mkdir", "mail"]);
    let group = cluster.reply(&["fs", "where", "mail"])["group"].to_string();
    let large = cluster.file("large", &vec![7; 24 << 20]);
    cluster.good(&["fs", "put", "mail", "large", &large]);
    golden.once(&["rebalance", "apply", "none.json"]);
    golden.once(&["rebalance", "pause", "--dry-run"]);
    golden.until(&["rebalance", "plan", "--out", "plan.json"], |case| !case.contains(r#""bytes":0"#));
    golden.once(&["rebalance", "apply", "plan.json", "--dry-run"]);
    let to_data4 = ["group", "move", &group, "--from", "data1", "--to", "data4"];
    golden.once(&[&to_data4[..], &["--dry-run"]].concat());
    golden.once(&["group", "move", &group, "--cancel"]);
    golden.once(&["group", "move", "65", "--from", "data1", "--to", "data4"]);
    golden.once(&["group", "move", "65", "--cancel"]);
    golden.once(&["group", "move", &group, "--from", "data1", "--to", "data2"]);
    golden.once(&["group", "move", &group, "--from", "data1", "--to", "nobody"]);
    golden.once(&to_data4);
    golden.until(&["status"], mentions(&["running"]));
    golden.until(&["group", "why-degraded", &group], |_| true);
    golden.once(&["group", "move", &group, "--cancel", "--dry-run"]);
    golden.once(&["group", "move", &group, "--cancel"]);
    golden.once(&["rebalance", "apply", "plan.json"]);
    golden.once(&["rebalance", "pause"]);
    golden.end();
}

#[test]
fn a_server_is_lost() {
    let cluster = Served::start(&["--permanent-after", "3h"]);
    let mut golden = Recording::new(&cluster, "loss");
    cluster.signal("data3", "-KILL");
    golden.until(&["status"], mentions(&["degraded: data3 down"]));
    golden.once(&["node", "ls"]);
    golden.once(&["disk", "ls"]);
    golden.once(&["group", "ls", "--degraded"]);
    golden.once(&["group", "why-degraded", "1"]);
    golden.once(&["node", "lost", "data3", "--dry-run"]);
    golden.once(&["node", "lost", "data3"]);
    golden.until(&["status"], mentions(&["without_place"]));
    golden.until(&["group", "why-degraded", "1"], mentions(&["given up"]));
    golden.once(&["group", "boost", "1"]);
    golden.once(&["node", "drain", "data3"]);
    golden.once(&["node", "maintenance", "data3"]);
    golden.once(&["events", "--after", "4"]);
    golden.end();
}

#[test]
fn a_group_goes_on_from_one_member() {
    let cluster = Served::start(&["--permanent-after", "3h"]);
    let mut golden = Recording::new(&cluster, "force-accept");
    cluster.signal("data3", "-KILL");
    cluster.good(&["status", "--wait", "degraded"]);
    cluster.good(&["fs", "mkdir", "mail"]);
    let group = cluster.reply(&["fs", "where", "mail"])["group"].to_string();
    cluster.good(&["fs", "put", "mail", "missed", &cluster.file("one", b"one")]);
    // In this order: the second query needs the state of the first.
    cluster.signal("data1", "-KILL");
    wait_for(&cluster, PATIENCE, |status| status["servers"][0]["state"] == "down");
    cluster.signal("data2", "-KILL");
    let _again = Again::start(&cluster, "data3", &[]);
    golden.until(&["status"], mentions(&["incomplete"]));
    let order = ["group", "force-accept", &group, "--from", "data3"];
    golden.until(&[&order[..], &["--dry-run"]].concat(), mentions(&["may_lack_since_ms"]));
    golden.once(&["group", "force-accept", &group, "--from", "data1", "--dry-run"]);
    golden.once(&order);
    golden.once(&[&order[..], &["--lose-since", "2100-01-01T00:00:00Z"]].concat());
    golden.until(&["group", "why-degraded", &group], mentions(&["no member in sync is up"]));
    golden.once(&[&order[..], &["--lose-since", "everything"]].concat());
    golden.until(&["group", "why-degraded", &group], mentions(&["1 of 3 copies in sync"]));
    golden.end();
}
