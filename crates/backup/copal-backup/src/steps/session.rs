//! Rules for a session of a VM: opening, publishing and ending.
//!
//! - BAK-5: an ended session cannot publish.
//! - BAK-21: a process that is not the only writer ends no session in order to open its own.

use crate::catalog::fields::SessionId;
use crate::catalog::record::{PackPlace, Record};
use crate::catalog::vm::{PublishedSnapshot, VmState};
use crate::request::SnapshotId;

/// Result of opening a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenStep {
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

/// The next step to open `session`. `is_alone`: this process is the only writer, so holders of other sessions
/// are dead.
pub(crate) fn opening(state: &VmState, session: &SessionId, is_alone: bool) -> OpenStep {
    if state.open.contains(session) {
        return OpenStep::Opened;
    }
    match state.open.first() {
        _ if state.is_retired => OpenStep::Retired,
        Some(stale) if is_alone => OpenStep::Stale(*stale),
        Some(_) => OpenStep::Held,
        None => OpenStep::Append,
    }
}

/// Packs that a session removes before it looks for chunks: a process has listed them for removal, and may
/// have died (BAK-15).
pub(crate) fn first_removed(state: &VmState) -> &[PackPlace] {
    &state.removing
}

/// Result of publishing a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PublishStep {
    /// Its record is in the log: the append that was reported as lost took effect.
    Published(PublishedSnapshot),
    /// Another process ended the session.
    Fenced,
    /// Its record is to be appended behind everything that was read.
    Append,
}

pub(crate) fn publishing(state: &VmState, session: &SessionId, snapshot: SnapshotId) -> PublishStep {
    let mut published = state.published.iter();
    match published.find(|one| one.snapshot == snapshot) {
        Some(published) => PublishStep::Published(*published),
        None if state.may_publish(session) => PublishStep::Append,
        None => PublishStep::Fenced,
    }
}

/// The record that ends a session; `None`: it has ended.
pub(crate) fn ending(state: &VmState, session: &SessionId) -> Option<Record> {
    let is_open = state.open.contains(session);
    is_open.then_some(Record::Fence { session: *session })
}
