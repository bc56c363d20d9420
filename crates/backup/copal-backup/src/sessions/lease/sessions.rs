//! Open sessions with the heartbeats of their holders.

use crate::catalog::heartbeats::StoredHeartbeat;
use crate::catalog::heartbeats::{heartbeat_content, list_heartbeats};
use crate::catalog::vm::VmState;
use crate::request::error::Result;
use crate::request::open_session::{HolderId, HolderInfo, OpenSession, Session};
use crate::sessions::parts::RepositoryParts;
use std::collections::HashMap;
use uuid::Uuid;

/// Open sessions of a VM, with the newest heartbeat of each holder.
/// # Errors
/// `Damaged`; errors of the store.
pub(crate) fn open_sessions(parts: &RepositoryParts, vm: Uuid) -> Result<Vec<OpenSession>> {
    let state = parts.vm_state(vm)?;
    match state.open.is_empty() {
        true => Ok(Vec::new()),
        false => with_holders(parts, &state, &newest_heartbeats(parts)?),
    }
}

pub(super) fn with_holders(
    parts: &RepositoryParts,
    state: &VmState,
    heartbeats: &HashMap<HolderId, StoredHeartbeat>,
) -> Result<Vec<OpenSession>> {
    let open = state.open.iter().map(|session| {
        let holder = state.holder_of(session);
        let beat = holder.and_then(|holder| heartbeats.get(&holder));
        Ok(OpenSession {
            session: Session(*session),
            holder,
            info: beat.map(|beat| info(parts, beat)).transpose()?,
        })
    });
    open.collect()
}

pub(super) fn newest_heartbeats(parts: &RepositoryParts) -> Result<HashMap<HolderId, StoredHeartbeat>> {
    let heartbeats = list_heartbeats(parts.catalog().files())?.into_iter();
    // A later entry has a higher number and replaces the earlier one.
    Ok(heartbeats.map(|beat| (beat.holder, beat)).collect())
}

pub(super) fn info(parts: &RepositoryParts, beat: &StoredHeartbeat) -> Result<HolderInfo> {
    let words = heartbeat_content(parts.catalog().files(), beat)?.unwrap_or_default();
    let now_ms = parts.pack_store().volumes.store.now_ms();
    Ok(HolderInfo {
        name: words.name,
        address: words.address,
        holder: beat.holder,
        newest_beat_number: beat.number,
        beat_age_ms: now_ms.saturating_sub(beat.created_ms),
        progress: words.progress,
    })
}
