//! Pause: stops a guest for a moment and resumes it, also if this process is killed.
//!
//! This process sends `cont`. If it is killed, a guardian process with a copy of the connection sends it. If
//! that connection has ended too, the guardian connects again. If that fails, the next backup resumes the
//! guest: an object in QEMU, the mark, shows that Copal has stopped it.
//!
//! Invariant: a guest that was paused by others stays paused, and is reported.

use crate::qmp::{GuardianProcess, QmpClient, QmpError};
use crate::{error::LiveError, names::SessionName, own_command::own_command};
use serde_json::{Value, json};
use std::path::Path;

/// Stops the guest and calls `work`.
/// # Errors
/// Those of QEMU. The guest is resumed anyway, unless QEMU does not answer: then the mark stays.
pub(crate) fn while_stopped<T>(
    client: &mut QmpClient,
    session: &SessionName,
    work: impl FnOnce(&mut QmpClient) -> Result<T, QmpError>,
) -> Result<T, QmpError> {
    // An object without effect: a throttle group without limits or members.
    let mark = json!({ "qom-type": "throttle-group", "id": session.mark() });
    client.execute("object-add", mark)?;
    let guardian = GuardianProcess::start(
        client,
        &[("cont", json!({})), ("object-del", json!({ "id": session.mark() }))],
        &own_command(RESUME, client.path(), Some(session.mark().as_ref())),
    );
    if let Err(error) = &guardian {
        tracing::warn!(%error, "no guardian process for the stopped guest");
    }
    let outcome = client.execute("stop", json!({})).and_then(|_| work(client));
    let resumed = client.execute_late("cont", json!({}));
    let resumed = resumed.and_then(|_| unmark(client, session));
    drop(guardian);
    resumed.and(outcome)
}

/// Subcommand of `copal` that calls [`resume_guest`]; its arguments follow.
pub const RESUME: &str = "resume-guest";

/// Resumes the guest behind a QMP socket, if the backup of this mark has left it stopped; returns whether it
/// had. The guardian of a killed backup calls it after its connection has ended.
/// # Errors
/// Those of QEMU; `mark` is malformed.
pub fn resume_guest(socket: &Path, mark: &str) -> Result<bool, LiveError> {
    let session = SessionName::of(mark).filter(|_| SessionName::is_mark(mark));
    let session = session
        .ok_or_else(|| QmpError::Protocol { reason: format!("{mark} is not the mark of a backup") })?;
    Ok(resume(&mut QmpClient::connect(socket)?, &session)?)
}

/// Resumes the guest if the session has left it stopped; returns whether it had.
/// # Errors
/// Those of QEMU.
pub(crate) fn resume(client: &mut QmpClient, session: &SessionName) -> Result<bool, QmpError> {
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

fn unmark(client: &mut QmpClient, session: &SessionName) -> Result<(), QmpError> {
    let gone = client.execute_late("object-del", json!({ "id": session.mark() }));
    gone.map(|_| ())
}

/// The marks of all sessions.
/// # Errors
/// Those of the connection.
pub(crate) fn marks(client: &mut QmpClient) -> Result<Vec<String>, QmpError> {
    let listed = match client.execute("qom-list", json!({ "path": "/objects" })) {
        // A storage daemon has no such path before its first object.
        Err(QmpError::Refused { .. }) => return Ok(Vec::new()),
        answer => answer?,
    };
    let names = listed.as_array().into_iter().flatten().filter_map(|object| object["name"].as_str());
    Ok(names.filter(|name| SessionName::is_mark(name)).map(str::to_owned).collect())
}

/// The state of a guest that does not run, as QEMU reports it; `None` if it runs, or there is no guest.
/// # Errors
/// Those of QEMU.
pub(crate) fn status(client: &mut QmpClient) -> Result<Option<String>, QmpError> {
    let answer = match client.execute("query-status", json!({})) {
        Err(error) if error.is_unknown_command() => return Ok(None),
        answer => answer?,
    };
    Ok(stopped_state(&answer))
}

fn stopped_state(answer: &Value) -> Option<String> {
    match answer["running"] == true {
        true => None,
        false => Some(answer["status"].as_str().unwrap_or("not running").to_owned()),
    }
}

/// Whether this state means that the guest is migrating to or from another QEMU.
pub(crate) fn is_migrating(status: &str) -> bool {
    matches!(status, "inmigrate" | "postmigrate" | "finish-migrate")
}

/// A warning about a guest that does not run and was not stopped by Copal.
/// # Errors
/// Those of QEMU.
pub(crate) fn notice(client: &mut QmpClient) -> Result<Option<String>, QmpError> {
    Ok(status(client)?.map(|status| match is_migrating(&status) {
        true => format!(
            "the guest is migrating to or from another host (QEMU says {status:?}): its disks may differ from those here"
        ),
        false => format!(
            "the guest does not run (QEMU says {status:?}): it was stopped by others, and copal leaves it stopped; the QMP command \
             `cont` resumes it"
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
        time::{Duration, Instant},
    };

    #[test]
    fn a_guest_that_does_not_run_is_distinguished_from_a_running_one() {
        assert_eq!(stopped_state(&json!({ "running": true, "status": "running" })), None);
        for (answer, word) in [
            (json!({ "running": false, "status": "paused" }), "paused"),
            (json!({ "status": "prelaunch" }), "prelaunch"),
            (json!(7), "not running"),
        ] {
            assert_eq!(stopped_state(&answer).as_deref(), Some(word));
        }
    }

    const MARK: &str = "copal-0123abcd-stop";

    /// A server with these marks and a guest in this state; returns the commands that it received.
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

    /// A guest that a backup has stopped is resumed by its mark. A guest that was stopped by others, or runs,
    /// is left alone.
    #[test]
    fn a_guardian_that_connects_again_resumes_only_the_guest_of_its_mark() {
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

    /// Waits until a guardian with this socket is visible: the kernel shows its command line a moment after the
    /// end of its `exec`, for which its parent waits.
    fn wait_for_guardian(socket: &Path) {
        let end = Instant::now() + Duration::from_secs(60);
        while !is_guarded(socket) {
            assert!(Instant::now() < end, "no guardian");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Whether a guardian with this socket runs.
    fn is_guarded(socket: &Path) -> bool {
        let words = [MARK, "\"cont\"", RESUME, socket.to_str().unwrap()];
        let mut processes = std::fs::read_dir("/proc").unwrap().flatten();
        processes.any(|process| {
            let line = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line);
            words.iter().all(|word| line.contains(word))
        })
    }

    /// Formerly only tests with a VM detected a missing guardian of a stopped guest, a guardian without a
    /// socket, or a guest that stayed stopped after a failure.
    #[test]
    fn a_stopped_guest_has_a_guardian_and_is_resumed_if_the_work_fails() {
        let scratch = tempfile::tempdir().unwrap();
        let socket = scratch.path().join("qmp");
        let heard = server(&socket, Vec::new(), "running");
        let mut client = QmpClient::connect(&socket).unwrap();
        let session = SessionName::of(MARK).unwrap();
        let failed = while_stopped(&mut client, &session, |_| -> Result<(), QmpError> {
            wait_for_guardian(&socket);
            Err(QmpError::Protocol { reason: "no filter".to_owned() })
        });
        assert!(failed.is_err() && !is_guarded(&socket));
        drop(client);
        let [mark, unmark] = ["object-add", "object-del"].map(|command| format!("{command} {MARK}"));
        assert_eq!(heard.join().unwrap()[1..], [&mark, "stop", "cont", &unmark]);
    }

    /// Formerly only tests with a VM detected a missing warning about a guest that was paused by others.
    #[test]
    fn a_guest_that_is_found_paused_gets_a_warning() {
        for (state, is_said) in [("paused", true), ("running", false)] {
            let scratch = tempfile::tempdir().unwrap();
            let socket = scratch.path().join("qmp");
            let heard = server(&socket, Vec::new(), state);
            let warnings = crate::list_bitmaps(&socket).unwrap().warnings.concat();
            assert_eq!(warnings.contains("it was stopped by others"), is_said, "{warnings}");
            heard.join().unwrap();
        }
    }
}
