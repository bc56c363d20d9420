//! A session of a VM: whether it may open, publish, or be ended.
//!
//! - BAK-5: a session that was ended cannot publish. BAK-21: whoever is not alone ends no session to open its
//!   own.

use crate::catalog::fields::SessionId;
use crate::catalog::record::{PackPlace, Record};
use crate::catalog::vm::{Published, VmState};
use crate::request::SnapshotId;

/// What becomes of a session that wants to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// Its record stands: the append that was told to be lost counts.
    Opened,
    /// The VM is being removed.
    Retired,
    /// Another one is open and may be alive.
    Held,
    /// This one was left by somebody who is gone: it is ended first.
    Stale(SessionId),
    /// Its record is appended behind all that was read.
    Append,
}

/// `is_alone`: nobody else writes, so whoever opened another session is gone.
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

/// Packs that a session removes before it looks for chunks: somebody has announced that they go, and may have
/// died (BAK-15).
pub(crate) fn first_removed(state: &VmState) -> &[PackPlace] {
    &state.removing
}

/// What becomes of a session that wants to publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publishing {
    /// Its record stands: the append that was told to be lost counts.
    Published(Published),
    /// It was ended from outside.
    Fenced,
    /// Its record is appended behind all that was read.
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
