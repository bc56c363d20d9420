//! A cluster that is filled to its limit, half emptied, restarted and filled again.
//!
//! `cargo xtask full-disk` runs the same with larger disks and other files.

use crate::{cluster::Served, racks::Again};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    process::Stdio,
    time::{Duration, Instant},
};

const SERVERS: [&str; 3] = ["data1", "data2", "data3"];

/// A size from the environment, or this default.
fn size(variable: &str, default: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| default.to_owned())
}

/// Runs operations, eight at a time, in one process; returns the replies by the number of their operation.
fn run(cluster: &Served, operations: Vec<Value>) -> BTreeMap<usize, Value> {
    let mut process = cluster
        .command(&["fs", "run", "--parallel", "8"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = process.stdin.take().unwrap();
    let writer = std::thread::spawn(move || {
        for (id, mut operation) in operations.into_iter().enumerate() {
            operation["id"] = id.into();
            writeln!(stdin, "{operation}").unwrap();
        }
    });
    let answers = BufReader::new(process.stdout.take().unwrap()).lines().map(|line| {
        let answer: Value = serde_json::from_str(&line.unwrap()).unwrap();
        (answer["id"].as_u64().unwrap() as usize, answer)
    });
    let answers = answers.collect();
    writer.join().unwrap();
    process.wait().unwrap();
    answers
}

/// Names and ids of existing files.
type Files = Vec<(String, String)>;

struct Filling<'a> {
    cluster: &'a Served,
    body: String,
    next: usize,
}

impl Filling<'_> {
    /// Puts files until one is refused; every refusal must report a lack of space.
    fn fill(&mut self, files: &mut Files) {
        loop {
            let names: Vec<String> = (self.next..self.next + 64).map(|n| format!("f{n}")).collect();
            self.next += names.len();
            let puts = names.iter().map(|name| {
                json!({ "op": "put", "volume": "v", "name": name, "body_b64": self.body, "deadline_ms": 60_000 })
            });
            let answers = run(self.cluster, puts.collect());
            let mut is_full = false;
            for (id, answer) in answers {
                match answer["ok"].as_bool() {
                    Some(true) => files.push((names[id].clone(), answer["fid"].as_str().unwrap().to_owned())),
                    _ => {
                        assert_eq!(answer["error"], "full", "{answer}");
                        is_full = true;
                    }
                }
            }
            if is_full {
                return;
            }
        }
    }

    /// Fills the cluster until it holds `count` files: deleted files free space while others are refused.
    fn fill_up_to(&mut self, files: &mut Files, count: usize) {
        let until = Instant::now() + Duration::from_secs(180);
        while files.len() < count {
            self.fill(files);
            let disks = self.cluster.reply(&["disk", "ls"]);
            assert!(Instant::now() < until, "{} files of {count}: {disks}", files.len());
        }
    }
}

/// Deletes every other file.
fn delete_half(cluster: &Served, files: &mut Files) {
    let mut at = 0;
    let mut gone = Vec::new();
    files.retain(|(name, fid)| {
        at += 1;
        if at % 2 == 0 {
            gone.push(
                json!({ "op": "delete", "volume": "v", "name": name, "fid": fid, "deadline_ms": 60_000 }),
            );
        }
        at % 2 == 1
    });
    for answer in run(cluster, gone).values() {
        assert_eq!(answer["ok"], true, "a full cluster deletes: {answer}");
    }
}

/// Symptom: a cluster whose disks were full did not recover. Deletes freed nothing, the servers counted as
/// failed, and none of them started again.
/// Cause: a refusal for lack of space was taken for a failed disk, at a view, a boot, a seal or a quota.
/// Fix: a server reserves the space that it needs to continue, and a full disk frees dead data by itself.
#[test]
fn a_full_cluster_comes_back() {
    let limit = size("COPAL_FULL_LIMIT", "72MiB");
    let file_bytes: usize = size("COPAL_FULL_FILE_BYTES", "300000").parse().unwrap();
    let cluster = Served::start(&["--limit", &limit]);
    cluster.good(&["fs", "mkdir", "v"]);
    let mut filling = Filling {
        cluster: &cluster,
        body: "Copal+V/".chars().cycle().take(file_bytes / 3 * 4).collect(),
        next: 0,
    };
    let mut files = Files::new();
    filling.fill(&mut files);
    let first = files.len();
    assert!(first > 20, "only {first} files fit");
    let status = cluster.reply(&["status", "--wait", "healthy", "--timeout", "60s"]);
    assert_eq!(status["health"], "healthy", "a full disk is not a failed one: {status}");
    // The next heartbeats report it.
    let until = Instant::now() + Duration::from_secs(30);
    let disks = loop {
        let disks = cluster.reply(&["disk", "ls"]);
        if disks["disks"].as_array().unwrap().iter().any(|disk| disk["full"] == true) {
            break disks;
        }
        assert!(Instant::now() < until, "{disks}");
    };
    assert!(!disks.to_string().contains("down"), "{disks}");
    let status = cluster.good(&["status"]);
    assert!(status.contains("is full") && status.contains("delete some"), "{status}");
    let listed = cluster.good(&["disk", "ls"]);
    assert!(listed.contains("up, full") && listed.contains("larger --limit"), "{listed}");
    let events = cluster.good(&["events"]);
    assert!(events.contains("is full"), "{events}");
    delete_half(&cluster, &mut files);
    filling.fill_up_to(&mut files, first * 9 / 10);
    // Full again. Each server is started twice: after a kill, and after a regular end.
    SERVERS.iter().for_each(|name| cluster.signal(name, "-KILL"));
    let start_all = |more: &[&str]| -> Vec<Again> {
        let again = SERVERS.iter().map(|name| Again::start(&cluster, name, more)).collect();
        cluster.good(&["status", "--wait", "healthy", "--timeout", "120s"]);
        again
    };
    drop(start_all(&[]));
    let again = start_all(&[]);
    delete_half(&cluster, &mut files);
    filling.fill_up_to(&mut files, first * 9 / 10);
    let (name, _) = &files[files.len() / 2];
    let read = cluster.run(&["fs", "get", "v", name, "-"]);
    assert_eq!(read.stdout.len(), file_bytes / 3 * 3);
    let larger =
        format!("{}", 2 * cluster.reply(&["disk", "ls"])["disks"][0]["capacity_bytes"].as_u64().unwrap());
    drop(again);
    let _again = start_all(&["--limit", &larger]);
    filling.fill_up_to(&mut files, first * 3 / 2);
    let verified = cluster.good(&["group", "verify", "--all"]);
    assert!(!verified.contains("damaged"), "{verified}");
}
