//! Rules for a session of a VM: opening, publishing and ending.
//!
//! - BAK-5: an ended session cannot publish.
//! - BAK-21: a process that is not the only writer ends no session in order to open its own.

use crate::catalog::fields::SessionId;
use crate::catalog::record::{PackPlace, Record};
use crate::catalog::vm::{Published, VmState};
use crate::request::SnapshotId;

/// Result of opening a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Its record is in the log: the append that was reported as lost took effect.
    Opened,
    /// The VM is being removed.
    Retired,
    /// Another session is open and may be alive.
    Held,
    /// The holder of this session is dead: it is ended first.
    Stale(SessionId),
    /// Its record is to be appended behind everything that was read.
    Append,
}

/// `is_alone`: this process is the only writer, so holders of other sessions are dead.
pub(crate) fn opening(state: &VmState, session: &SessionId, is_alone: bool) -> Opening {
    if state.open.contains(session) {
        return Opening::Opened;
    }
    match state.open.first() {
        _ if state.is_retired => Opening::Retired,
        Some(stale) if is_alone => Opening::Stale(*stale),
        Some(_) => Opening::Held,
        None => Opening::Append,
    }
}

/// Packs that a session removes before it looks for chunks: a process has listed them for removal, and may
/// have died (BAK-15).
pub(crate) fn first_removed(state: &VmState) -> &[PackPlace] {
    &state.removing
}

/// Result of publishing a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publishing {
    /// Its record is in the log: the append that was reported as lost took effect.
    Published(Published),
    /// Another process ended the session.
    Fenced,
    /// Its record is to be appended behind everything that was read.
    Append,
}

pub(crate) fn publishing(state: &VmState, session: &SessionId, snapshot: SnapshotId) -> Publishing {
    let mut published = state.published.iter();
    match published.find(|one| one.snapshot == snapshot) {
        Some(published) => Publishing::Published(*published),
        None if state.may_publish(session) => Publishing::Append,
        None => Publishing::Fenced,
    }
}

/// The record that ends a session; `None`: it has ended.
pub(crate) fn ending(state: &VmState, session: &SessionId) -> Option<Record> {
    let is_open = state.open.contains(session);
    is_open.then_some(Record::Fence { session: *session })
}
