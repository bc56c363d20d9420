//! Several masters over one database: one leads, and others take over.

use crate::{
    cluster::{free_ports, named_copal},
    monitoring::page,
};
use copal_testkit::MariaDb;
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// Longest wait before the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

struct House {
    scratch: tempfile::TempDir,
    path: String,
    database: String,
    port: u16,
    processes: Vec<(String, Child)>,
    _maria: MariaDb,
}

impl House {
    fn new() -> House {
        let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let place = scratch.path().join("maria");
        std::fs::create_dir(&place).unwrap();
        let maria = MariaDb::start(&place, 32).unwrap();
        std::fs::write(scratch.path().join("pw"), "secret\n").unwrap();
        House {
            path: named_copal(scratch.path(), ""),
            database: format!("mysql://copal@127.0.0.1:{}/copal", maria.port()),
            port: free_ports(8),
            processes: Vec::new(),
            scratch,
            _maria: maria,
        }
    }

    fn dir(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn copal(&self, words: &[&str]) -> Command {
        let mut command = Command::new("copal");
        command
            .args(words)
            .current_dir(self.scratch.path())
            .env_clear()
            .env("PATH", &self.path)
            .env("COPAL_CLUSTER", self.dir("master1/client.json"))
            .stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.copal(words).output().unwrap()
    }

    fn good(&self, words: &[&str]) -> String {
        let run = self.run(words);
        let stderr = String::from_utf8_lossy(&run.stderr);
        assert!(run.status.success(), "{words:?}: {stderr}");
        String::from_utf8(run.stdout).unwrap()
    }

    /// Starts a process and waits until it is ready; returns its message.
    fn start(&mut self, name: &str, words: &[&str]) -> Value {
        let log = std::fs::File::options().create(true).append(true).open(self.dir("log")).unwrap();
        let mut child = self.copal(words).arg("--json").stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = lines.next();
        let Some(Ok(line)) = ready else {
            panic!("{words:?}: {}", std::fs::read_to_string(self.dir("log")).unwrap());
        };
        self.processes.push((name.to_owned(), child));
        serde_json::from_str(&line).unwrap()
    }

    fn start_master(&mut self, number: u16) -> Value {
        let (name, listen) = (format!("master{number}"), format!("127.0.0.1:{}", self.port + number));
        let (dir, database) = (self.dir(&name), self.database.clone());
        let dir = dir.to_str().unwrap();
        let mut words = vec!["master", "--dir", dir];
        let token;
        if !self.dir(&name).exists() {
            words.extend(["--listen", &listen, "--meta", &database, "--meta-password-file", "pw"]);
            if number == 1 {
                words.extend(["--new", "--groups", "8"]);
            } else {
                token = self.good(&["node", "token", "--master"]).trim().to_owned();
                words.extend(["--join", &token]);
            }
        }
        self.start(&name, &words)
    }

    fn kill(&mut self, name: &str) {
        let at = self.processes.iter().position(|(of, _)| of == name).unwrap();
        let (_, mut child) = self.processes.remove(at);
        child.kill().unwrap();
        child.wait().unwrap();
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.good(&["status", "--json"])).unwrap()
    }
}

impl Drop for House {
    fn drop(&mut self) {
        for (_, child) in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn three_masters_share_a_database_and_the_next_one_leads_when_one_is_killed() {
    let mut house = House::new();
    let first = house.start_master(1);
    assert_eq!(first["leads"], true, "{first}");
    for number in [2, 3] {
        let further = house.start_master(number);
        assert_eq!(further["leads"], false, "{further}");
    }
    for number in 1..=3 {
        let token = house.good(&["node", "token"]).trim().to_owned();
        let (name, listen) = (format!("data{number}"), format!("127.0.0.1:{}", house.port + 3 + number));
        let dir = house.dir(&name).to_str().unwrap().to_owned();
        house.start(&name, &["data", "--dir", &dir, "--name", &name, "--listen", &listen, "--join", &token]);
    }
    house.good(&["status", "--wait", "healthy"]);
    house.good(&["fs", "mkdir", "mail"]);
    // A client that knows the views continues under any leader.
    let mut run = house
        .copal(&["fs", "run", "--parallel", "1"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = run.stdin.take().unwrap();
    let mut output = BufReader::new(run.stdout.take().unwrap()).lines();
    let mut number = 0;
    let mut put = || {
        number += 1;
        writeln!(
            input,
            r#"{{"id":{number},"op":"put","volume":"mail","name":"m{number}","body_b64":"aGVsbG8="}}"#
        )
        .unwrap();
        let answer: Value = serde_json::from_str(&output.next().unwrap().unwrap()).unwrap();
        assert_eq!(answer["ok"], true, "{answer}");
    };
    put();
    let mut term = house.status()["master"]["term"].as_u64().unwrap();
    // The leader is killed three times in a row; each time another takes over, and the killed one stands by
    // again.
    for leader in [1, 2, 3] {
        let told = house.status();
        let leads = told["master"]["address"].as_str().unwrap().to_owned();
        let leads: u16 = leads.rsplit_once(':').unwrap().1.parse().unwrap();
        let leads = leads - house.port;
        house.kill(&format!("master{leads}"));
        let begun = Instant::now();
        put();
        let name = format!("after{leader}");
        while !house.run(&["fs", "mkdir", &name]).status.success() {
            assert!(begun.elapsed() < PATIENCE, "no master leads");
        }
        put();
        let told = house.status();
        let next = told["master"]["term"].as_u64().unwrap();
        assert!(next > term, "{told}");
        term = next;
        house.start_master(leads);
    }
    house.good(&["status", "--wait", "healthy"]);
    put();
    drop(input);
    assert!(run.wait().unwrap().success());
    assert_eq!(house.status()["master"]["masters"].as_array().unwrap().len(), 3);
    house.good(&["group", "verify", "--all", "--deep"]);
    let volumes = house.good(&["fs", "ls"]);
    for name in ["mail", "after1", "after2", "after3"] {
        assert!(volumes.contains(name), "{volumes}");
    }
    // A token for a data server admits no master; a password on the command line is refused.
    let token = house.good(&["node", "token"]).trim().to_owned();
    let listen = format!("127.0.0.1:{}", house.port + 7);
    let refused = house.run(&[
        "master",
        "--dir",
        "m4",
        "--listen",
        &listen,
        "--meta",
        &house.database,
        "--join",
        &token,
    ]);
    assert_eq!(refused.status.code(), Some(21), "{refused:?}");
    let shown =
        house.run(&["master", "--dir", "m5", "--new", "--listen", &listen, "--meta", "mysql://u:pw@h/db"]);
    assert_eq!(shown.status.code(), Some(2), "{shown:?}");
    assert!(!String::from_utf8_lossy(&shown.stderr).contains("pw@"));
    let logs = std::fs::read_to_string(house.dir("log")).unwrap();
    assert!(!logs.contains("secret") && !logs.contains("panicked"), "{logs}");
}

/// Forwards connections from port `at` to port `to`.
fn forward(at: u16, to: u16) {
    let listener = std::net::TcpListener::bind(("127.0.0.1", at)).unwrap();
    std::thread::spawn(move || {
        for came in listener.incoming() {
            let Ok(came) = came else { return };
            let gone = std::net::TcpStream::connect(("127.0.0.1", to)).unwrap();
            let ways = [(came.try_clone().unwrap(), gone.try_clone().unwrap()), (gone, came)];
            for (mut from, mut into) in ways {
                std::thread::spawn(move || {
                    // Ends when either side ends.
                    let _ = std::io::copy(&mut from, &mut into);
                    let _ = into.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
}

/// Symptom: after a boot no master ran. Cause: each ended when the database did not answer yet, and the
/// service manager gave up after five tries. Fix: a master whose database is unreachable at its start reports
/// it and waits.
#[test]
fn a_master_waits_for_its_database_and_says_so() {
    let mut house = House::new();
    house.start_master(1);
    house.kill("master1");
    // A port without a listener.
    let elsewhere = house.port + 6;
    let real = house.database.clone();
    let home = house.dir("master1/master.json");
    let written = std::fs::read_to_string(&home).unwrap();
    let port = real.rsplit_once(':').unwrap().1.split_once('/').unwrap().0.to_owned();
    std::fs::write(&home, written.replace(&format!(":{port}/"), &format!(":{elsewhere}/"))).unwrap();
    let dir = house.dir("master1");
    let mut child = house.copal(&["master", "--dir", dir.to_str().unwrap(), "--json"]);
    let mut child = child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    house.processes.push(("master1".to_owned(), child));
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let waiting = next();
    assert_eq!(waiting["message_type"], "waiting", "{waiting}");
    assert!(waiting["reason"].as_str().unwrap().contains("database"), "{waiting}");
    // Symptom: meanwhile monitoring reported that another master led, and that all was well.
    let http = waiting["http"].as_str().unwrap();
    for path in ["/health", "/ready"] {
        let told = page(http, path);
        assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
    }
    assert!(page(http, "/health").contains("waits for its database"));
    forward(elsewhere, port.parse().unwrap());
    let ready = next();
    // It leads at once, or when the lease of the killed master has ended.
    assert_eq!(ready["message_type"], "ready", "{ready}");
}
