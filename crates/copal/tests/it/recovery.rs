//! Copies that are made anew: a server is given up, emptied, filled, and bytes on a disk are damaged.

use crate::cluster::Served;
use serde_json::Value;
use std::time::{Duration, Instant};

/// Files that take so many bytes together, in a volume of their own each eight.
fn fill(cluster: &Served, files: usize, bytes_each: usize) {
    let mut run = cluster
        .command(&["fs", "run", "--parallel", "8"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = String::new();
    for number in 0..files {
        let (volume, body) = (number / 8, base64(bytes_each, number as u64));
        if number % 8 == 0 {
            cluster.good(&["fs", "mkdir", &format!("v{volume}")]);
        }
        lines.push_str(&format!(
            "{{\"id\":{number},\"op\":\"put\",\"volume\":\"v{volume}\",\"name\":\"f{number}\",\"body_b64\":\"{body}\"}}\n"
        ));
    }
    use std::io::Write;
    run.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let done = run.wait_with_output().unwrap();
    let answers = String::from_utf8(done.stdout).unwrap();
    assert_eq!(answers.matches("\"ok\":true").count(), files, "{answers}");
}

/// Bytes that do not compress, as base64.
fn base64(bytes: usize, seed: u64) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let digits = (0..bytes / 3 * 4).map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        DIGITS[(state >> 58) as usize] as char
    });
    digits.collect()
}

/// Asks for the status until it is as wanted.
#[track_caller]
fn wait_for(cluster: &Served, limit: Duration, wanted: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + limit;
    loop {
        let status = cluster.told(&["status"]);
        if wanted(&status) {
            return status;
        }
        assert!(Instant::now() < end, "{status:#}");
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

#[test]
fn a_server_that_is_given_up_is_copied_at_the_rate_that_was_set_and_the_end_is_told() {
    let cluster = Served::with_servers(4, &["--recovery-rate", "6M"]);
    // Three servers had joined when the groups were laid out: the fourth has none of them.
    fill(&cluster, 48, 600_000);
    cluster.signal("data2", "-KILL");
    cluster.bad(40, &["group", "boost", "1"]);
    cluster.good(&["node", "lost", "data2"]);
    let begun = Instant::now();
    let status = wait_for(&cluster, Duration::from_secs(20), |status| {
        status["recovery"]["ends_in_s"].as_u64() > Some(0)
    });
    let task = &status["tasks"][0];
    assert_eq!(
        (&task["kind"], &task["dst"]),
        (&"copy".into(), &"data4".into()),
        "{status:#}"
    );
    assert_eq!(
        status["recovery"]["running"], 1,
        "one disk takes in one group: {status:#}"
    );
    let last = status["tasks"].as_array().unwrap().last().unwrap()["gid"].to_string();
    let boosted = cluster.good(&["group", "boost", &last]);
    assert!(boosted.contains("is the next"), "{boosted}");
    assert!(cluster.good(&["status"]).contains("Copies"));
    cluster.good(&["status", "--wait", "healthy", "--timeout", "60s"]);
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(3), "29 MB at 6 MB/s: {took:?}");
    cluster.good(&["group", "verify", "--all", "--deep"]);
    let nodes = cluster.told(&["node", "ls"]);
    assert_eq!(nodes["nodes"].as_array().unwrap().len(), 3);
}
