//! Stops a guest for a moment. The guest goes on, also when this process is killed.
//!
//! This process says `cont`. If it is killed, a guardian process says it, which has the connection as well.
//! If that has ended, too, the guardian connects anew. If that fails, the next contact says it: an object in
//! QEMU, the mark, tells that Copal has stopped the guest.
//!
//! Invariant: a guest that somebody else has paused stays so, and is said to.

use crate::qmp::{Client, Guardian, QmpError};
use crate::{error::LiveError, names::SessionName, own_command::own_command};
use serde_json::{Value, json};
use std::path::Path;

/// Does something while the guest is stopped.
/// # Errors
/// Those of QEMU. The guest goes on all the same, unless QEMU does not answer: then the mark stays.
pub(crate) fn while_stopped<T>(
    client: &mut Client,
    session: &SessionName,
    work: impl FnOnce(&mut Client) -> Result<T, QmpError>,
) -> Result<T, QmpError> {
    // An object without effect: a group of limits that limits nothing and has no members.
    let mark = json!({ "qom-type": "throttle-group", "id": session.mark() });
    client.execute("object-add", mark)?;
    let guardian = Guardian::start(
        client,
        &[("cont", json!({})), ("object-del", json!({ "id": session.mark() }))],
        &own_command(RESUME, client.path(), Some(session.mark().as_ref())),
    );
    if let Err(error) = &guardian {
        tracing::warn!(%error, "no process watches over the guest while it is stopped");
    }
    let outcome = client.execute("stop", json!({})).and_then(|_| work(client));
    let resumed = client.execute_late("cont", json!({}));
    let resumed = resumed.and_then(|_| unmark(client, session));
    drop(guardian);
    resumed.and(outcome)
}

/// The word of `copal` for [`resume_guest`], which is followed by its arguments.
pub const RESUME: &str = "resume-guest";

/// Lets the guest of the QEMU behind a socket go on, if the backup that has put up this mark has left it
/// stopped; whether it had. For the guardian of a backup that was killed, and whose connection has ended.
/// # Errors
/// Those of QEMU; `mark` is none.
pub fn resume_guest(socket: &Path, mark: &str) -> Result<bool, LiveError> {
    let session = SessionName::of(mark).filter(|_| SessionName::is_mark(mark));
    let session =
        session.ok_or_else(|| QmpError::Protocol { reason: format!("{mark} is no mark of a backup") })?;
    Ok(resume(&mut Client::connect(socket)?, &session)?)
}

/// Lets the guest go on if the session has left it stopped; whether it had.
/// # Errors
/// Those of QEMU.
pub(crate) fn resume(client: &mut Client, session: &SessionName) -> Result<bool, QmpError> {
    if !marks(client)?.contains(&session.mark()) {
        return Ok(false);
    }
    let is_stopped = status(client)?.is_some_and(|status| status == "paused");
    if is_stopped {
        client.execute_late("cont", json!({}))?;
    }
    unmark(client, session)?;
    Ok(is_stopped)
}

fn unmark(client: &mut Client, session: &SessionName) -> Result<(), QmpError> {
    let gone = client.execute_late("object-del", json!({ "id": session.mark() }));
    gone.map(|_| ())
}

/// The marks of all sessions.
/// # Errors
/// Those of the connection.
pub(crate) fn marks(client: &mut Client) -> Result<Vec<String>, QmpError> {
    let listed = match client.execute("qom-list", json!({ "path": "/objects" })) {
        // A storage daemon has no such path before its first object.
        Err(QmpError::Refused { .. }) => return Ok(Vec::new()),
        answer => answer?,
    };
    let names = listed.as_array().into_iter().flatten().filter_map(|object| object["name"].as_str());
    Ok(names.filter(|name| SessionName::is_mark(name)).map(str::to_owned).collect())
}

/// The state of a guest that does not run, in QEMU's word; `None`: it runs, or there is no guest.
/// # Errors
/// Those of QEMU.
pub(crate) fn status(client: &mut Client) -> Result<Option<String>, QmpError> {
    let answer = match client.execute("query-status", json!({})) {
        Err(error) if error.is_unknown_command() => return Ok(None),
        answer => answer?,
    };
    Ok(standing(&answer))
}

fn standing(answer: &Value) -> Option<String> {
    match answer["running"] == true {
        true => None,
        false => Some(answer["status"].as_str().unwrap_or("not running").to_owned()),
    }
}

/// Whether a guest in this state, in QEMU's word, has gone to another QEMU, or comes from there.
pub(crate) fn is_migrating(status: &str) -> bool {
    matches!(status, "inmigrate" | "postmigrate" | "finish-migrate")
}

/// A sentence about a guest that does not run, and that nobody of ours has stopped.
/// # Errors
/// Those of QEMU.
pub(crate) fn notice(client: &mut Client) -> Result<Option<String>, QmpError> {
    Ok(status(client)?.map(|status| match is_migrating(&status) {
        true => format!(
            "the guest is on its way to or from another host (QEMU says {status:?}): its disks may differ from those here"
        ),
        false => format!(
            "the guest does not run (QEMU says {status:?}): somebody else has stopped it, and copal leaves it so; the QMP command \
             `cont` lets it go on"
        ),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead, BufReader, Write},
        os::unix::net::UnixListener,
        thread::JoinHandle,
    };

    #[test]
    fn a_guest_that_does_not_run_is_told_from_one_that_does() {
        assert_eq!(standing(&json!({ "running": true, "status": "running" })), None);
        for (answer, word) in [
            (json!({ "running": false, "status": "paused" }), "paused"),
            (json!({ "status": "prelaunch" }), "prelaunch"),
            (json!(7), "not running"),
        ] {
            assert_eq!(standing(&answer).as_deref(), Some(word));
        }
    }

    const MARK: &str = "copal-0123abcd-stop";

    /// A server that has these marks and a guest in this state; returns the commands that it was sent.
    fn server(socket: &Path, marks: Vec<&'static str>, state: &'static str) -> JoinHandle<Vec<String>> {
        let listener = UnixListener::bind(socket).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            writeln!(stream, "{}", json!({ "QMP": { "version": {}, "capabilities": [] } })).unwrap();
            let mut heard = Vec::new();
            for line in BufReader::new(stream.try_clone().unwrap()).lines() {
                let asked: Value = serde_json::from_str(&line.unwrap()).unwrap();
                let command = asked["execute"].as_str().unwrap();
                let answer = match command {
                    "qom-list" => marks.iter().map(|mark| json!({ "name": mark })).collect(),
                    "query-status" => json!({ "running": state == "running", "status": state }),
                    _ => json!({}),
                };
                writeln!(stream, "{}", json!({ "return": answer, "id": asked["id"] })).unwrap();
                let id = asked["arguments"]["id"].as_str();
                heard.push(id.map_or(command.to_owned(), |id| format!("{command} {id}")));
            }
            heard
        })
    }

    /// A guest that a backup has stopped is let go on by its mark; one that somebody else has stopped, or
    /// that runs, is not.
    #[test]
    fn a_guardian_that_connects_anew_resumes_the_guest_of_its_mark_only() {
        let unmark = format!("object-del {MARK}");
        let cases = [
            (vec![MARK], "paused", true, vec!["qom-list", "query-status", "cont", &unmark]),
            (vec![MARK], "running", false, vec!["qom-list", "query-status", &unmark]),
            (vec![MARK], "io-error", false, vec!["qom-list", "query-status", &unmark]),
            (vec!["copal-76543210-stop"], "paused", false, vec!["qom-list"]),
            (vec![], "paused", false, vec!["qom-list"]),
        ];
        for (marks, state, was_stopped, expected) in cases {
            let scratch = tempfile::tempdir().unwrap();
            let socket = scratch.path().join("qmp");
            let heard = server(&socket, marks, state);
            assert_eq!(resume_guest(&socket, MARK).unwrap(), was_stopped);
            assert_eq!(heard.join().unwrap()[1..], expected);
            assert!(resume_guest(&socket, "copal-0123abcd-cbw0").is_err());
        }
        let session = SessionName::of(MARK).unwrap();
        let words = own_command(RESUME, Path::new("qmp"), Some(session.mark().as_ref()));
        assert!(Path::new(&words[2]).is_absolute(), "{words:?}");
        assert_eq!((&words[1], &words[3]), (&RESUME.into(), &MARK.into()));
    }

    /// Whether a guardian runs that would connect to this socket.
    fn is_guarded(socket: &Path) -> bool {
        let words = [MARK, "\"cont\"", RESUME, socket.to_str().unwrap()];
        let mut processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes.any(|process| {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            words.iter().all(|word| line.contains(word))
        })
    }

    /// Only tests with a machine noticed before when no guardian watched over a stopped guest, when it had no
    /// socket to connect to, or when a guest stayed stopped after the work had failed.
    #[test]
    fn a_guest_is_guarded_while_it_is_stopped_and_goes_on_when_the_work_fails() {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("qmp");
        let heard = server(&socket, Vec::new(), "running");
        let mut client = Client::connect(&socket).unwrap();
        let session = SessionName::of(MARK).unwrap();
        let failed = while_stopped(&mut client, &session, |_| -> Result<(), QmpError> {
            assert!(is_guarded(&socket));
            Err(QmpError::Protocol { reason: "no filter".to_owned() })
        });
        assert!(failed.is_err() && !is_guarded(&socket));
        drop(client);
        let [mark, unmark] = ["object-add", "object-del"].map(|command| format!("{command} {MARK}"));
        assert_eq!(heard.join().unwrap()[1..], [&mark, "stop", "cont", &unmark]);
    }

    /// Only tests with a machine noticed before when a guest that somebody else had paused was passed over in
    /// silence.
    #[test]
    fn a_guest_that_is_found_paused_is_said_to_be() {
        for (state, is_said) in [("paused", true), ("running", false)] {
            let scratch = tempfile::tempdir().unwrap();
            let socket = scratch.path().join("qmp");
            let heard = server(&socket, Vec::new(), state);
            let warnings = crate::list_bitmaps(&socket).unwrap().warnings.concat();
            assert_eq!(warnings.contains("somebody else has stopped it"), is_said, "{warnings}");
            heard.join().unwrap();
        }
    }
}
