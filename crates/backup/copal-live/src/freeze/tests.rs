//! Freezing, with an agent that is a script.

use super::*;
use std::{
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixListener,
};

/// An agent that answers `count` commands and returns their names; `deaf` ones are not answered.
fn agent(path: &Path, deaf: &'static str) -> JoinHandle<Vec<String>> {
    agent_of(path, deaf, "thawed", Vec::new())
}

/// The same, of a guest in this state; each of the commands in `refuses` is refused once.
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
fn what_is_frozen_is_thawed_whatever_happens() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    // In the ordinary way.
    let heard = agent(&path("a"), "");
    assert!(Frozen::begin(&path("a")).unwrap().end().unwrap());
    assert_eq!(heard.join().unwrap(), FROZEN);
    // Somebody went another way.
    let heard = agent(&path("b"), "");
    drop(Frozen::begin(&path("b")).unwrap());
    assert_eq!(heard.join().unwrap(), FROZEN);
    // The point in time took too long.
    let heard = agent(&path("c"), "");
    let frozen = Frozen::begin(&path("c")).unwrap();
    while !frozen.thread.as_ref().unwrap().is_finished() {
        std::thread::yield_now();
    }
    assert!(!frozen.end().unwrap());
    assert_eq!(heard.join().unwrap(), FROZEN);
    // The agent went away while it froze.
    let heard = agent(&path("d"), "guest-fsfreeze-freeze");
    let error = Frozen::begin(&path("d")).err().unwrap().to_string();
    assert!(error.contains("was not frozen") && error.contains("qemu-ga"), "{error}");
    heard.join().unwrap();
}

/// No test noticed before when file systems stayed frozen that an earlier backup had left so, that the agent
/// refused to thaw at first, or of which it said that they could not be frozen.
#[test]
fn what_may_be_frozen_is_thawed_until_the_agent_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let heard = agent_of(&path("frozen"), "", "frozen", Vec::new());
    assert!(Frozen::begin(&path("frozen")).unwrap().end().unwrap());
    let [sync, status, freeze, thaw] = FROZEN;
    assert_eq!(heard.join().unwrap(), [sync, status, thaw, freeze, thaw]);

    let heard = agent_of(&path("late"), "", "thawed", vec![thaw, thaw]);
    assert!(Frozen::begin(&path("late")).unwrap().end().unwrap());
    assert_eq!(heard.join().unwrap(), [sync, status, freeze, thaw, thaw, thaw]);

    let heard = agent_of(&path("refused"), "", "thawed", vec![freeze]);
    assert!(Frozen::begin(&path("refused")).is_err());
    assert_eq!(heard.join().unwrap(), FROZEN);
}

#[test]
fn the_agents_socket_is_found_by_what_it_is_called() {
    let listed = json!([
        {"label": "compat_monitor0", "filename": "unix:/run/agent1/qmp.sock,server=on"},
        {"label": "charchannel0", "filename": "disconnected:unix:/run/vm/org.qemu.guest_agent.0,server=on"}]);
    assert_eq!(find(&listed), Some("/run/vm/org.qemu.guest_agent.0".into()));
    assert_eq!(find(&json!([{"label": "qga0", "filename": "pty:/dev/pts/1"}])), None);
    assert_eq!(find(&json!(7)), None);
}

/// Symptom: a guest stayed frozen when its backup was killed and its connection to the agent had ended as
/// well.
/// Cause: the guardian had that connection only. Fix: it becomes a program that connects anew, and thaws what
/// is frozen.
#[test]
fn a_guardian_that_connects_anew_thaws_what_is_frozen() {
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

/// The guardian of a frozen guest has the words for a connection that has ended.
#[test]
fn the_guardian_of_a_frozen_guest_knows_the_way_to_connect_anew() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("qga");
    let heard = agent(&path, "");
    let frozen = Frozen::begin(&path).unwrap();
    let own = std::process::id().to_string();
    let children = std::fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
        let stat = std::fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        let parent = stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1).map(str::to_owned));
        parent.as_deref() == Some(&own)
    });
    let mut words = children.map(|entry| std::fs::read(entry.path().join("cmdline")).unwrap_or_default());
    let socket = path.to_str().unwrap();
    let knows = |words: Vec<u8>| {
        let words = String::from_utf8_lossy(&words).into_owned();
        words.contains(THAW) && words.contains(socket)
    };
    assert!(words.any(knows));
    drop(frozen);
    heard.join().unwrap();
}
