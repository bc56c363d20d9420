//! Proxies between `copal` and QEMU that change lines: an older QEMU, a newer one, one that delays a line;
//! and an agent in a guest.

use super::Daemon;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    thread::JoinHandle,
};

/// The daemon without the filter options of QEMU 7.1; returns its socket. It serves one connection.
pub(super) fn older_qemu(daemon: &Daemon) -> String {
    let forget = |line: String| {
        let forgotten = ["cbw-timeout", "on-cbw-error"].iter();
        Some(forgotten.fold(line, |line, word| line.replace(word, "nothing")))
    };
    let (socket, _) = between(daemon.path("qmp.sock"), daemon.path("old.qmp"), Some, forget);
    socket
}

/// The daemon as if it had this version; returns its socket, and the commands that pass. It serves one
/// connection.
pub(super) fn qemu_of(daemon: &Daemon, major: u64, minor: u64) -> (String, JoinHandle<Vec<Value>>) {
    let version = move |line: String| {
        let mut line: Value = serde_json::from_str(&line).unwrap();
        if line.get("QMP").is_some() {
            line["QMP"]["version"]["qemu"] = json!({ "major": major, "minor": minor, "micro": 0 });
        }
        Some(line.to_string())
    };
    between(daemon.path("qmp.sock"), daemon.path("versioned.qmp"), Some, version)
}

/// A proxy to a QEMU that changes lines, and stops at lines that become `None`. Serves one connection.
/// Returns its socket, and the commands that pass.
pub(super) fn between(
    qemu: String,
    socket: String,
    mut to_qemu: impl FnMut(String) -> Option<String> + Send + 'static,
    to_copal: impl FnMut(String) -> Option<String> + Send + 'static,
) -> (String, JoinHandle<Vec<Value>>) {
    let listener = UnixListener::bind(&socket).unwrap();
    let passed = std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = UnixStream::connect(qemu).unwrap();
        let (to_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let back = std::thread::spawn(move || pass_on(server, to_client, to_copal));
        let mut passed = Vec::new();
        pass_on(client, to_server, |line| {
            let line = to_qemu(line)?;
            passed.extend(serde_json::from_str::<Value>(&line));
            Some(line)
        });
        back.join().unwrap();
        passed
    });
    (socket, passed)
}

/// Forwards lines until one side ends.
fn pass_on(from: UnixStream, mut to: UnixStream, mut change: impl FnMut(String) -> Option<String>) {
    for line in BufReader::new(from.try_clone().unwrap()).lines() {
        let line = line.ok().and_then(&mut change);
        if line.is_none_or(|line| writeln!(to, "{line}").is_err()) {
            break;
        }
    }
    // Each side sees the end.
    for stream in [from, to] {
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

/// An agent in a guest that serves one connection; returns the commands that it received. It does not answer
/// `deaf` if the file `SOCKET.deaf` exists.
pub(super) fn guest_agent(socket: &str, deaf: &'static str) -> JoinHandle<Vec<String>> {
    let listener = UnixListener::bind(socket).unwrap();
    let told = format!("{socket}.deaf");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        let mut heard = Vec::new();
        for line in lines.split(b'\n').map_while(Result::ok) {
            let line = line.strip_prefix(b"\xff").unwrap_or(&line).to_vec();
            let command: Value = serde_json::from_slice(&line).unwrap();
            let name = command["execute"].as_str().unwrap().to_owned();
            if name == deaf {
                std::fs::write(&told, "").unwrap();
            } else {
                writeln!(stream, "{}", json!({ "return": 1, "id": command["id"] })).unwrap();
            }
            heard.push(name);
        }
        heard
    })
}
