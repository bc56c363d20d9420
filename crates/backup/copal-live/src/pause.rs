//! Stops a guest for a moment. The guest goes on, also when this process is killed.
//!
//! This process says `cont`. If it is killed, a guardian process says it, which has the connection as well. If that fails, the
//! next contact says it: an object in QEMU, the mark, tells that Copal has stopped the guest.
//!
//! Invariant: a guest that somebody else has paused stays so, and is said to.

use crate::names::SessionName;
use copal_qmp::{Client, Guardian, QmpError};
use serde_json::{Value, json};

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
        &[
            ("cont", json!({})),
            ("object-del", json!({ "id": session.mark() })),
        ],
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
    let names = listed
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|object| object["name"].as_str());
    Ok(names
        .filter(|name| SessionName::is_mark(name))
        .map(str::to_owned)
        .collect())
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

/// A sentence about a guest that does not run, and that nobody of ours has stopped.
/// # Errors
/// Those of QEMU.
pub(crate) fn notice(client: &mut Client) -> Result<Option<String>, QmpError> {
    Ok(status(client)?.map(|status| {
        format!(
            "the guest does not run (QEMU says {status:?}): somebody else has stopped it, and copal leaves it so; the QMP command \
             `cont` lets it go on"
        )
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
