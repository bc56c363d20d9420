//! Who is taken for somebody else: an older QEMU, an agent in a guest.

use super::Daemon;
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::{UnixListener, UnixStream},
    thread::JoinHandle,
};

/// The daemon, as if its filter did not know what came with QEMU 7.1; returns its socket. It serves one connection.
pub(super) fn older_qemu(daemon: &Daemon) -> String {
    let (old, new) = (daemon.path("old.qmp"), daemon.path("qmp.sock"));
    let listener = UnixListener::bind(&old).unwrap();
    std::thread::spawn(move || {
        let (client, _) = listener.accept().unwrap();
        let server = UnixStream::connect(new).unwrap();
        let (to_client, to_server) = (client.try_clone().unwrap(), server.try_clone().unwrap());
        let there = std::thread::spawn(move || pass_on(client, to_server, &[]));
        pass_on(server, to_client, &["cbw-timeout", "on-cbw-error"]);
        there.join().unwrap();
    });
    old
}

/// Passes lines on, with words in them made into other ones, until one side has enough.
fn pass_on(from: UnixStream, mut to: UnixStream, forgotten: &[&str]) {
    for line in BufReader::new(from).lines() {
        let Ok(line) = line else { break };
        let line = forgotten
            .iter()
            .fold(line, |line, word| line.replace(word, "nothing"));
        if writeln!(to, "{line}").is_err() {
            break;
        }
    }
    // The other direction ends as well.
    let _ = to.shutdown(std::net::Shutdown::Both);
}

/// An agent in a guest that serves one connection; returns the commands that it heard.
pub(super) fn guest_agent(socket: &str) -> JoinHandle<Vec<String>> {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        let mut heard = Vec::new();
        for line in lines.split(b'\n').map_while(Result::ok) {
            let line = line.strip_prefix(b"\xff").unwrap_or(&line).to_vec();
            let command: Value = serde_json::from_slice(&line).unwrap();
            heard.push(command["execute"].as_str().unwrap().to_owned());
            writeln!(stream, "{}", json!({ "return": 1, "id": command["id"] })).unwrap();
        }
        heard
    })
}
