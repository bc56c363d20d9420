//! Pages for monitoring of a cluster's processes.

use crate::cluster::Served;
use std::{
    io::{Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

/// A page as it comes: status line, headers, body.
pub(crate) fn page(address: &str, path: &str) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    answer
}

/// The value of a sample; `None`: there is none.
fn value(page: &str, sample: &str) -> Option<f64> {
    let line = page.lines().find_map(|line| line.strip_prefix(sample));
    line.and_then(|rest| rest.strip_prefix(' ')?.parse().ok())
}

#[test]
fn each_process_counts_its_answers_and_reports_its_health() {
    let cluster = Served::start(&[]);
    let processes = cluster.ready["processes"].as_array().unwrap();
    let http = |name: &str| {
        let process = processes.iter().find(|process| process["name"] == name);
        process.unwrap()["http"].as_str().unwrap().to_owned()
    };
    assert_eq!(http("data2"), format!("127.0.0.1:{}", cluster.port + 202));
    cluster.good(&["fs", "mkdir", "mail"]);
    cluster.good(&["fs", "put", "mail", "m1", "/etc/hostname"]);
    assert_ne!(cluster.run(&["fs", "put", "mail", "m1", "/etc/hostname"]).status.code(), Some(0));

    // The client waits for the first refusal; the other replicas may not have been asked.
    let refusals = ["data1", "data2", "data3"].map(|name| {
        let told = page(&http(name), "/metrics");
        value(&told, "copal_rpc_errors_total{method=\"Put\",code=\"EXISTS\"}").unwrap_or_default()
    });
    assert!(refusals.iter().sum::<f64>() > 0.0, "{refusals:?}");
    let told = page(&http("data1"), "/metrics");
    assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
    for sample in [
        "copal_rpc_requests_total{method=\"Put\"}",
        "copal_rpc_seconds_bucket{method=\"Put\",le=\"+Inf\"}",
        "copal_groups{role=\"N\"}",
        "copal_journal_operations",
        "copal_store_used_bytes",
        "copal_device_flushes_total",
        "copal_memory_bytes",
    ] {
        assert!(value(&told, sample).is_some_and(|value| value > 0.0), "{sample}\n{told}");
    }
    assert_eq!(value(&told, "copal_groups{role=\"R\"}"), Some(0.0), "{told}");
    assert_eq!(value(&told, "copal_epoch_lag_versions"), Some(0.0), "{told}");
    assert_eq!(value(&told, "copal_map_heard_version"), value(&told, "copal_map_version"), "{told}");
    assert!(value(&told, "copal_heartbeat_age_seconds").is_some_and(|age| age < 10.0), "{told}");

    let told = page(&http("master"), "/metrics");
    for (sample, expected) in [
        ("copal_cluster_health{health=\"healthy\"}", 1.0),
        ("copal_cluster_groups{copies=\"whole\"}", 64.0),
        ("copal_server_up{server=\"data3\"}", 1.0),
        ("copal_master_leads", 1.0),
        ("copal_tasks", 0.0),
    ] {
        assert_eq!(value(&told, sample), Some(expected), "{sample}\n{told}");
    }
    // With a database of its own, a master leads without an end.
    assert_eq!(value(&told, "copal_master_lease_left_seconds"), None, "{told}");
    for name in ["master", "data1", "data2", "data3"] {
        for path in ["/health", "/ready"] {
            let told = page(&http(name), path);
            assert!(told.starts_with("HTTP/1.1 200 "), "{name} {path}: {told}");
            assert!(told.contains("content-type: application/json"), "{told}");
        }
    }
}

#[test]
fn a_connection_closed_for_malformed_input_is_counted() {
    let cluster = Served::start(&[]);
    let (calls, http) =
        (format!("127.0.0.1:{}", cluster.port + 1), format!("127.0.0.1:{}", cluster.port + 201));
    let refused = "copal_connections_refused_total{why=\"handshake\"}";
    let before = value(&page(&http, "/metrics"), refused).unwrap();
    let mut garbage = TcpStream::connect(&calls).unwrap();
    garbage.write_all(&[b'x'; 100]).unwrap();
    // Until the other side has closed.
    let _ = garbage.read_to_end(&mut Vec::new());
    let end = Instant::now() + Duration::from_secs(10);
    while value(&page(&http, "/metrics"), refused).unwrap() <= before {
        assert!(Instant::now() < end, "garbage is not counted");
        std::thread::park_timeout(Duration::from_millis(50));
    }
}

#[test]
fn a_master_that_ended_is_missed_by_its_servers() {
    let cluster = Served::start(&[]);
    let http = format!("127.0.0.1:{}", cluster.port + 201);
    assert!(page(&http, "/health").starts_with("HTTP/1.1 200 "));
    cluster.signal("master", "-KILL");
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let told = page(&http, "/health");
        if told.starts_with("HTTP/1.1 503 ") {
            assert!(told.contains("no master was reached for 1"), "{told}");
            break;
        }
        assert!(Instant::now() < end, "{told}");
        std::thread::park_timeout(Duration::from_millis(200));
    }
    // Existing files are still served.
    assert!(page(&http, "/ready").starts_with("HTTP/1.1 200 "));
}
