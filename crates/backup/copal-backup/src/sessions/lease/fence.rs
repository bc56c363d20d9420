//! Fences sessions whose holder is known to be dead.
//!
//! Design: docs/design/backup.md#sessions-of-a-fleet BAK-21
//! Not here: the time after which a silent holder counts as dead (`watch`).

use super::process;
use crate::catalog::fields::SessionId;
use crate::catalog::log::{AppendOutcome, LogName};
use crate::request::Vm;
use crate::request::error::Result;
use crate::sessions::parts::RepositoryParts;
use crate::steps::session::ending;
use uuid::Uuid;

/// Ends the sessions of a VM whose holders were processes of this host and have died. Returns their number.
/// # Errors
/// `Damaged`; errors of the store.
pub(crate) fn fence_dead_here(parts: &RepositoryParts, vm: &Vm) -> Result<usize> {
    let state = parts.vm_state(vm.uuid)?;
    let mut ended = 0;
    for session in &state.open {
        let has_died = state.holder_of(session).is_some_and(process::has_died);
        if has_died && fence(parts, vm.uuid, session)? {
            tracing::info!(vm = vm.name, "ended a session whose process has died on this host");
            ended += 1;
        }
    }
    Ok(ended)
}

/// Ends a session; returns false if it had ended already.
pub(super) fn fence(parts: &RepositoryParts, vm: Uuid, session: &SessionId) -> Result<bool> {
    loop {
        let state = parts.vm_state(vm)?;
        let Some(record) = ending(&state, session) else {
            return Ok(false);
        };
        let log = LogName::Vm(vm);
        if let AppendOutcome::Done = parts.catalog().append(log, state.next_number, &record)? {
            return Ok(true);
        }
    }
}
