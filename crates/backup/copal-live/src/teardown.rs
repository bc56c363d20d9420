//! Teardown of a session in QEMU, driven by the nodes, exports and jobs that QEMU lists.
//!
//! The same code runs at the end of a backup, after its failure, and for the remains of a killed one. Every
//! step is tried even if the previous one failed, and every step may be repeated.

use crate::qmp::{QmpClient, QmpError};
use crate::{
    answers::nodes::{self, BlockNode},
    error::LiveError,
    fleece,
    names::{PREFIX, SessionName, SessionPart},
    pause,
    write_path::{QemuState, WritePath, redirect},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

/// Resumes a guest that a killed session has left stopped. Returns a warning for each such session, and one
/// if the guest is stopped for another reason.
/// # Errors
/// Those of QEMU.
pub(crate) fn resume_leftovers(client: &mut QmpClient) -> Result<Vec<String>, QmpError> {
    let mut said = Vec::new();
    let marks = pause::marks(client)?;
    if !marks.is_empty() {
        let nodes = QemuState::ask(client)?.nodes;
        let sessions = marks.iter().filter_map(|mark| SessionName::of(mark));
        let is_alive = |session: &SessionName| {
            directory_of(&nodes, session).is_some_and(|directory| fleece::is_locked(&directory))
        };
        let sessions: Vec<SessionName> = sessions.collect();
        if sessions.iter().any(is_alive) {
            return Ok(said);
        }
        for session in sessions {
            if pause::resume(client, &session)? {
                said.push(format!(
                    "a backup that was killed (session {session}) had left the guest stopped; it is resumed now"
                ));
            }
        }
    }
    said.extend(pause::notice(client)?);
    Ok(said)
}

/// Finds another session of this QEMU whose process is alive.
/// # Errors
/// Those of QEMU.
pub(crate) fn find_live_session(
    client: &mut QmpClient,
    own: &SessionName,
) -> Result<Option<SessionName>, QmpError> {
    let nodes = nodes::parse(&client.execute("query-named-block-nodes", json!({ "flat": true }))?);
    let sessions: BTreeSet<SessionName> =
        nodes.iter().filter_map(|node| SessionName::of(&node.name)).collect();
    let is_alive = |session: &SessionName| {
        directory_of(&nodes, session).is_some_and(|directory| fleece::is_locked(&directory))
    };
    Ok(sessions.into_iter().find(|session| session != own && is_alive(session)))
}

/// Takes down the remains of sessions whose processes have ended. Returns warnings: failed steps, and a guest
/// that was stopped.
/// # Errors
/// `Busy`: a session is alive. `Hanging`: QEMU would block on the images of one. Those of QEMU.
pub(crate) fn tear_down_leftovers(client: &mut QmpClient) -> Result<Vec<String>, LiveError> {
    let qemu = QemuState::ask(client)?;
    let exports = names_in(&client.execute("query-block-exports", json!({}))?, "id");
    let jobs = names_in(&client.execute("query-jobs", json!({}))?, "id");
    let nodes = qemu.nodes.iter().map(|node| node.name.clone());
    let all = nodes.chain(exports).chain(jobs);
    let sessions: BTreeSet<SessionName> = all.filter_map(|name| SessionName::of(&name)).collect();
    for session in &sessions {
        let Some(directory) = directory_of(&qemu.nodes, session) else {
            continue;
        };
        if fleece::is_locked(&directory) {
            return Err(LiveError::Busy { session: session.to_string() });
        }
        if fleece::is_hanging(&directory) {
            return Err(LiveError::Hanging { path: directory });
        }
    }
    let mut errors = resume_leftovers(client)?;
    for session in &sessions {
        tracing::info!(%session, "taking down the session of a killed backup");
        let directory = directory_of(&qemu.nodes, session);
        // Sessions of earlier releases have no anchor.
        let has_server = nodes::find(&qemu.nodes, &session.anchor(true)).is_some()
            || directory.as_deref().is_some_and(fleece::has_socket);
        errors.extend(clear(client, session, has_server));
        if let Some(directory) = directory {
            remove(&directory, session, &mut errors);
        }
    }
    // Copies of bitmaps are of use to a reader only, and no reader is left.
    for node in &qemu.nodes {
        for bitmap in node.bitmaps.iter().filter(|bitmap| SessionName::is_map(&bitmap.name)) {
            let removed = remove_bitmap(client, &node.name, &bitmap.name);
            errors.extend(removed.err().map(|error| error.to_string()));
        }
    }
    Ok(errors)
}

/// Takes down the exports, nodes and jobs of a session. With `has_server` it also stops the NBD server,
/// unless it has other exports. Returns the errors.
pub(crate) fn clear(client: &mut QmpClient, session: &SessionName, has_server: bool) -> Vec<String> {
    let mut errors = Vec::new();
    let mut tell = |outcome: Result<(), QmpError>| {
        let is_dead = outcome.as_ref().is_err_and(QmpError::is_disconnected);
        errors.extend(outcome.err().map(|error| error.to_string()));
        !is_dead
    };
    // A stopped guest is resumed first. Its writes can pass the filter as well as those of a running guest.
    let is_alive = tell(pause::resume(client, session).map(|_| ()))
        && tell(end_exports(client, session))
        && tell(take_down(client, session, &[SessionPart::Snapshot]))
        && tell(remove_filters(client, session))
        && tell(if has_server { end_server(client) } else { Ok(()) })
        && tell(take_down(client, session, above_anchor()))
        && tell(dismiss_jobs(client, session))
        && tell(take_down(client, session, &[SessionPart::Anchor]));
    if !is_alive {
        // Most likely QEMU itself has ended: one error is enough.
        errors.truncate(1);
    }
    errors
}

/// Takes down the nodes and exports of a session's self-test. Returns the errors.
pub(crate) fn tear_down_self_test(client: &mut QmpClient, session: &SessionName) -> Vec<String> {
    let steps = [
        end_exports(client, session),
        take_down(client, session, &[SessionPart::Snapshot]),
        take_down(client, session, above_anchor()),
    ];
    let failed = steps.into_iter().filter_map(Result::err);
    failed.map(|error| error.to_string()).collect()
}

fn above_anchor() -> &'static [SessionPart] {
    &SessionPart::TOP_DOWN[1..SessionPart::TOP_DOWN.len() - 1]
}

pub(crate) fn end_exports(client: &mut QmpClient, session: &SessionName) -> Result<(), QmpError> {
    let listed = client.execute("query-block-exports", json!({}))?;
    let own = names_in(&listed, "id").into_iter().filter(|id| session.part_of(id).is_some());
    for id in own {
        client.execute("block-export-del", json!({ "id": id, "mode": "hard" }))?;
        let is_gone = names_in(&client.execute("query-block-exports", json!({}))?, "id")
            .iter()
            .all(|other| *other != id);
        if !is_gone {
            client.wait_for(
                |event| event.name == "BLOCK_EXPORT_DELETED" && event.data["id"] == id,
                "block-export-del",
            )?;
        }
    }
    Ok(())
}

/// Removes the filters from the path of the guest's writes.
fn remove_filters(client: &mut QmpClient, session: &SessionName) -> Result<(), QmpError> {
    let qemu = QemuState::ask(client)?;
    let filters = qemu.nodes.iter().filter(|node| session.part_of(&node.name) == Some(SessionPart::Filter));
    let mut paths = Vec::new();
    for filter in filters {
        let Some(below) = qemu.below(&filter.name) else {
            continue;
        };
        match qemu.path_to(filter) {
            Ok(WritePath::NoWriter) => {}
            Ok(path) => paths.push((path, below.to_owned())),
            Err(writers) => {
                return Err(QmpError::Protocol {
                    reason: format!("{} is used by {writers}, which does not belong to copal", filter.name),
                });
            }
        }
    }
    redirect(client, &paths, None)
}

pub(crate) fn take_down(
    client: &mut QmpClient,
    session: &SessionName,
    parts: &[SessionPart],
) -> Result<(), QmpError> {
    for part in parts {
        let nodes = client.execute("query-named-block-nodes", json!({ "flat": true }))?;
        let own =
            names_in(&nodes, "node-name").into_iter().filter(|name| session.part_of(name) == Some(*part));
        for name in own {
            client.execute("blockdev-del", json!({ "node-name": name }))?;
        }
    }
    Ok(())
}

/// Stops the NBD server, unless it has other exports.
fn end_server(client: &mut QmpClient) -> Result<(), QmpError> {
    let exports = client.execute("query-block-exports", json!({}))?;
    let mut exports = exports.as_array().into_iter().flatten();
    let is_used = exports
        .any(|export| export["type"] == "nbd" && !export["id"].as_str().unwrap_or("").starts_with(PREFIX));
    match is_used {
        true => Ok(()),
        false => match client.execute("nbd-server-stop", json!({})) {
            // The server is not running.
            Err(QmpError::Refused { .. }) => Ok(()),
            outcome => outcome.map(|_| ()),
        },
    }
}

fn dismiss_jobs(client: &mut QmpClient, session: &SessionName) -> Result<(), QmpError> {
    let jobs = client.execute("query-jobs", json!({}))?;
    for id in names_in(&jobs, "id").into_iter().filter(|id| session.part_of(id).is_some()) {
        client.execute("job-dismiss", json!({ "id": id }))?;
    }
    Ok(())
}

/// Removes a bitmap; a missing one is no error.
pub(crate) fn remove_bitmap(client: &mut QmpClient, node: &str, bitmap: &str) -> Result<(), QmpError> {
    let removed = client.execute("block-dirty-bitmap-remove", json!({ "node": node, "name": bitmap }));
    match removed {
        Err(QmpError::Refused { description, .. }) if description.contains("not found") => Ok(()),
        outcome => outcome.map(|_| ()),
    }
}

fn directory_of(nodes: &[BlockNode], session: &SessionName) -> Option<PathBuf> {
    let file = nodes
        .iter()
        .find(|node| matches!(session.part_of(&node.name), Some(SessionPart::File | SessionPart::Anchor)))?;
    Some(Path::new(&file.file).parent()?.to_owned())
}

/// Removes the directory of a session, if it has the name of one.
fn remove(directory: &Path, session: &SessionName, errors: &mut Vec<String>) {
    if directory.file_name().is_none_or(|name| *name != *session.directory()) {
        return;
    }
    match fleece::remove_directory(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            errors.push(format!("{} is not removed: {error}", directory.display()));
        }
        _ => {}
    }
}

/// The values of one field of all objects in a list.
fn names_in(listed: &Value, field: &str) -> Vec<String> {
    let listed = listed.as_array().into_iter().flatten();
    listed.filter_map(|object| Some(object[field].as_str()?.to_owned())).collect()
}
