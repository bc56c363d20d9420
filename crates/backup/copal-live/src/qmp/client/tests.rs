//! A client against scripted servers.

use super::*;
use std::{io::BufRead, io::BufReader, os::unix::net::UnixListener};

const GREETED: &str = r#"{"QMP":{"version":{},"capabilities":[]}}"#;

/// A server that sends a first line, then answers each received line with one of `script`, in which `ID` is
/// the received id.
fn server(
    first: &'static str,
    script: &'static [&'static str],
) -> (tempfile::TempDir, PathBuf, JoinHandle<Vec<String>>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = UnixListener::bind(&path).unwrap();
    let heard = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(format!("{first}\n").as_bytes()).unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut heard = Vec::new();
        for answer in script {
            let Some(Ok(line)) = lines.next() else { break };
            let id = serde_json::from_str::<Value>(&line).unwrap()["id"].to_string();
            stream.write_all(format!("{}\n", answer.replace("ID", &id)).as_bytes()).unwrap();
            heard.push(line);
        }
        heard
    });
    (dir, path, heard)
}

#[test]
fn replies_reach_their_commands_and_events_their_waiters() {
    let (_dir, path, heard) = server(
        GREETED,
        &[
            r#"{"return":{},"id":ID}"#,
            "{\"event\":\"A\",\"data\":{\"id\":1}}\n{\"return\":\"late\",\"id\":999}\n{\"return\":\"mine\",\"id\":ID}",
            r#"{"error":{"class":"CommandNotFound","desc":"The command x has not been found"},"id":ID}"#,
        ],
    );
    let mut client = QmpClient::connect(&path).unwrap();
    assert_eq!(client.execute("query-status", json!({})).unwrap(), "mine");
    let event = client.wait_for(|event| event.name == "A", "A").unwrap();
    assert_eq!(event.data, json!({ "id": 1 }));
    let refused = client.execute("x", json!({ "a": 1 })).unwrap_err();
    assert!(refused.is_unknown_command(), "{refused}");
    assert!(client.execute("query-status", json!({})).unwrap_err().is_disconnected());
    let heard = heard.join().unwrap();
    assert!(heard[2].contains(r#""arguments":{"a":1}"#), "{heard:?}");
}

#[test]
fn a_server_that_does_not_speak_qmp_is_refused() {
    for first in ["SSH-2.0-OpenSSH", r#"{"return":{}}"#, "\u{ff}"] {
        let (_dir, path, _heard) = server(first, &[]);
        let error = QmpClient::connect(&path).unwrap_err();
        assert!(matches!(error, QmpError::Protocol { .. }), "{error}");
    }
    let error = QmpClient::connect(Path::new("/none/qmp.sock")).unwrap_err().to_string();
    assert!(error.starts_with("cannot connect to /none/qmp.sock: "), "{error}");
}

#[test]
fn a_missing_reply_ends_with_a_timeout() {
    let (_dir, path, _heard) =
        server(GREETED, &[r#"{"return":{},"id":ID}"#, r#"{"event":"A"}"#, r#"{"event":"A"}"#]);
    let mut client = QmpClient::connect(&path).unwrap();
    client.set_timeout(Duration::from_millis(50));
    let error = client.execute("stop", json!({})).unwrap_err();
    assert!(matches!(error, QmpError::TimedOut { .. }), "{error}");
}

/// Symptom: a backup of a hung QEMU took a minute for each of its commands.
/// Cause: each command had its own time limit.
/// Fix: one deadline for all of them; commands that undo others are sent after it too.
#[test]
fn commands_of_a_procedure_share_a_deadline() {
    let (_dir, path, _heard) = server(
        GREETED,
        &[
            r#"{"return":{},"id":ID}"#,
            r#"{"event":"A"}"#,
            r#"{"event":"A"}"#,
            r#"{"return":"undone","id":ID}"#,
        ],
    );
    let mut client = QmpClient::connect(&path).unwrap();
    client.set_deadline(Some(Duration::from_millis(50)));
    for _ in 0..2 {
        let error = client.execute("stop", json!({})).unwrap_err();
        assert!(matches!(error, QmpError::Late { .. }), "{error}");
    }
    assert_eq!(client.execute_late("cont", json!({})).unwrap(), "undone");
}
