//! Freezing, with a scripted agent.

use super::*;
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixListener,
    time::Instant,
};

/// An agent that returns the names of the commands it received; it does not answer `deaf` commands.
fn agent(path: &Path, deaf: &'static str) -> JoinHandle<Vec<String>> {
    agent_of(path, deaf, "thawed", Vec::new())
}

/// The same, for a guest in this state; each command in `refuses` is refused once.
fn agent_of(
    path: &Path,
    deaf: &'static str,
    state: &'static str,
    mut refuses: Vec<&'static str>,
) -> JoinHandle<Vec<String>> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let lines = BufReader::new(stream.try_clone().unwrap());
        let mut heard = Vec::new();
        for line in lines.split(b'\n') {
            let Ok(line) = line else { break };
            let line = line.strip_prefix(b"\xff").unwrap_or(&line).to_vec();
            let command: Value = serde_json::from_slice(&line).unwrap();
            let name = command["execute"].as_str().unwrap().to_owned();
            let value = match name.as_str() {
                "guest-fsfreeze-status" => json!(state),
                _ => json!(1),
            };
            let is_deaf = name == deaf;
            let refused = refuses.iter().position(|refused| *refused == name);
            heard.push(name);
            if is_deaf {
                break;
            }
            let answer = match refused {
                Some(at) => {
                    refuses.swap_remove(at);
                    json!({ "error": { "class": "GenericError", "desc": "not now" }, "id": command["id"] })
                }
                None => json!({ "return": value, "id": command["id"] }),
            };
            writeln!(stream, "{answer}").unwrap();
        }
        heard
    })
}

const FROZEN: [&str; 4] =
    ["guest-sync", "guest-fsfreeze-status", "guest-fsfreeze-freeze", "guest-fsfreeze-thaw"];

#[test]
fn a_frozen_guest_is_thawed_in_every_case() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    // Normal end.
    let heard = agent(&path("a"), "");
    assert!(FrozenGuest::begin(&path("a")).unwrap().end().unwrap());
    assert_eq!(heard.join().unwrap(), FROZEN);
    // Dropped after an error.
    let heard = agent(&path("b"), "");
    drop(FrozenGuest::begin(&path("b")).unwrap());
    assert_eq!(heard.join().unwrap(), FROZEN);
    // The time limit passed before the end.
    let heard = agent(&path("c"), "");
    let frozen = FrozenGuest::begin(&path("c")).unwrap();
    while !frozen.thread.as_ref().unwrap().is_finished() {
        std::thread::yield_now();
    }
    assert!(!frozen.end().unwrap());
    assert_eq!(heard.join().unwrap(), FROZEN);
    // The agent closed the connection during the freeze.
    let heard = agent(&path("d"), "guest-fsfreeze-freeze");
    let error = FrozenGuest::begin(&path("d")).err().unwrap().to_string();
    assert!(error.contains("was not frozen") && error.contains("qemu-ga"), "{error}");
    heard.join().unwrap();
}

/// Formerly no test detected that file systems stayed frozen: after an earlier backup, after a refused thaw,
/// or after a refused freeze.
#[test]
fn a_guest_that_may_be_frozen_is_thawed_until_the_agent_confirms() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let heard = agent_of(&path("frozen"), "", "frozen", Vec::new());
    assert!(FrozenGuest::begin(&path("frozen")).unwrap().end().unwrap());
    let [sync, status, freeze, thaw] = FROZEN;
    assert_eq!(heard.join().unwrap(), [sync, status, thaw, freeze, thaw]);

    let heard = agent_of(&path("late"), "", "thawed", vec![thaw, thaw]);
    assert!(FrozenGuest::begin(&path("late")).unwrap().end().unwrap());
    assert_eq!(heard.join().unwrap(), [sync, status, freeze, thaw, thaw, thaw]);

    let heard = agent_of(&path("refused"), "", "thawed", vec![freeze]);
    assert!(FrozenGuest::begin(&path("refused")).is_err());
    assert_eq!(heard.join().unwrap(), FROZEN);
}

#[test]
fn the_agents_socket_is_found_by_its_name() {
    let listed = json!([
        {"label": "compat_monitor0", "filename": "unix:/run/agent1/qmp.sock,server=on"},
        {"label": "charchannel0", "filename": "disconnected:unix:/run/vm/org.qemu.guest_agent.0,server=on"}]);
    assert_eq!(find(&listed), Some("/run/vm/org.qemu.guest_agent.0".into()));
    assert_eq!(find(&json!([{"label": "qga0", "filename": "pty:/dev/pts/1"}])), None);
    assert_eq!(find(&json!(7)), None);
}

/// Symptom: a guest stayed frozen when its backup was killed and its connection to the agent had ended too.
/// Cause: the guardian only had that connection. Fix: it executes a program that connects again and thaws the
/// guest.
#[test]
fn a_guardian_that_connects_again_thaws_a_frozen_guest() {
    let dir = tempfile::tempdir().unwrap();
    for (state, heard) in
        [("frozen", vec![FROZEN[0], FROZEN[1], FROZEN[3]]), ("thawed", FROZEN[..2].to_vec())]
    {
        let path = dir.path().join(state);
        let agent = agent_of(&path, "", state, Vec::new());
        assert_eq!(thaw_guest(&path).unwrap(), state == "frozen");
        assert_eq!(agent.join().unwrap(), heard);
    }
    let words = own_command(THAW, Path::new("qga"), None);
    assert!(words[1] == THAW && Path::new(&words[2]).is_absolute(), "{words:?}");
}

/// The guardian of a frozen guest has the command line for a lost connection.
#[test]
fn the_guardian_of_a_frozen_guest_can_connect_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("qga");
    let heard = agent(&path, "");
    let frozen = FrozenGuest::begin(&path).unwrap();
    // The kernel shows the command line of a child a moment after the end of its `exec`.
    let end = Instant::now() + Duration::from_secs(60);
    while !has_guardian(path.to_str().unwrap()) {
        assert!(Instant::now() < end, "no guardian");
        std::thread::park_timeout(Duration::from_millis(5));
    }
    drop(frozen);
    heard.join().unwrap();
}

/// Whether a child of this process has the command line of a guardian of this socket.
fn has_guardian(socket: &str) -> bool {
    let own = std::process::id().to_string();
    let children = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1).map(str::to_owned));
        parent.as_deref() == Some(&own)
    });
    let mut words = children.map(|entry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default());
    let knows = |words: Vec<u8>| {
        let words = String::from_utf8_lossy(&words).into_owned();
        words.contains(THAW) && words.contains(socket)
    };
    words.any(knows)
}
